// Products and convolutions with rows that are applied to their results: fused where a solver does so, else
// in a launch of their own.
#pragma once
#include <ATen/core/Tensor.h>

#include "ops/common/fused.h"
#include "primitives/common/epilogue.h"

namespace dlb {

// The rows behind a product or convolution: x0 is its result, x1 .. the `extras`, which
// broadcast to it. y0 has the result's dtype, and goes where the result would; y1, where there is one, goes
// to `second`, which has the result's shape and strides. Products may compute in another dtype than the
// result's, which y0 then has.
struct Then {
  const FusedOp& op;
  at::TensorList extras;
  at::Tensor second;
  c10::ScalarType computes;  // x0's dtype

  // `column` and `row`: the dimensions of the result for which an extra may have one element each; -1: none.
  // Throws c10::ValueError for rows that reduce, take scalars or have more than two results, and
  // c10::TypeError for a y0 of another dtype than the result's. `computes_`: where it is not the result's.
  Then(const FusedOp& op_, at::TensorList extras_, const at::Tensor& result, int64_t column, int64_t row,
       std::optional<c10::ScalarType> computes_ = std::nullopt);

  // The epilogue, with its operands set; none where solvers cannot take these rows.
  const solver::Epilogue& epilogue() const { return epilogue_; }
  void set_operands(solver::EpilogueOperands& operands) const;

  // What a launch of the rows alone reads and writes.
  uint64_t bytes(const at::Tensor& result) const;

  // Computes `result`: by fused(), which says whether it did, else by plain(product) and a
  // launch of the rows. The product is the result itself where y0 has its dtype.
  template <class Fused, class Plain>
  void run(const at::Tensor& result, Fused&& fused, Plain&& plain) const {
    if (epilogue_ && fused()) return;
    const at::Tensor product = product_for(result);
    plain(product);
    run_apart(product, result);
  }

  // The results as ops return them.
  std::vector<at::Tensor> with(const at::Tensor& result) const;

 private:
  // Where x0 lies until the rows are computed in a launch of their own.
  at::Tensor product_for(const at::Tensor& result) const;
  // Computes the rows by a launch from the product, whose place y0 takes where that is the result itself.
  void run_apart(const at::Tensor& product, const at::Tensor& result) const;

  solver::Epilogue epilogue_;
  c10::SmallVector<at::Tensor, solver::kMostExtras> placed_;  // the extras as kernels find them
};

// The dtype of y0, where x0 is of `computes`. Throws c10::ValueError for rows of more inputs than there are.
c10::ScalarType first_dtype(const FusedOp& op, c10::ScalarType computes, at::TensorList extras);

}  // namespace dlb
