// Expressions of rows on tensors: what would be several launches as one.
#pragma once
#include <ATen/core/Tensor.h>
#include <c10/core/Scalar.h>

#include <array>
#include <atomic>
#include <string>

#include "codegen/expression.h"
#include "primitives/reduce/reduce.h"

namespace dlb {

// An expression as an op. Lives as long as the process, because kernels are found by its address.
struct FusedOp {
  std::string name;
  bool reduces = false;
  codegen::Expression expression;  // one of the two
  codegen::ReduceExpression reduction;
  codegen::PointwiseOp pointwise{};
  codegen::ReduceOp reduce{};

  // The part that takes the inputs.
  const codegen::Expression& front() const { return reduces ? reduction.before : expression; }
  size_t results() const { return reduces ? reduction.reduced.size() : expression.results.size(); }
  bool is_reduced(size_t y) const { return reduces && reduction.reduced[y]; }
  codegen::DType dtype_of(size_t y, const codegen::DType* inputs) const {
    return reduces ? reduction.dtype_of(y, inputs) : expression.dtype_of(expression.results[y], inputs);
  }
};

// The op of the text (codegen/expression.h). Takes a lock. Throws c10::ValueError for text that is no
// expression.
const FusedOp& fused_op_of(const std::string& text);

// An expression that the library runs: its op for each dtype, which ".T" in the text stands for:
//   const FusedRows kMeanOfSquares("v = mul.T(x0, x0); y0 = mean.T(v)");
class FusedRows {
 public:
  explicit FusedRows(const char* text) : text_(text) {}
  // Takes no lock and makes no string after the first call for the dtype.
  const FusedOp& of(c10::ScalarType type) const;

 private:
  const char* const text_;
  mutable std::array<std::atomic<const FusedOp*>, codegen::kDTypes> ops_{};
};

struct FusedArguments {
  at::TensorList inputs;                    // on one device, broadcast with each other
  c10::ArrayRef<c10::Scalar> scalars = {};  // s0, s1 ..
  at::OptionalIntArrayRef dims = {};        // of the broadcast shape, over which is reduced; all by default
  bool keepdim = false;
};

// Computes the results y0, y1 .., of `dtypes`, or of the rows' dtypes for those missing. Enqueued like any
// op. Throws c10::ValueError for other numbers of inputs or scalars than the expression has, c10::Error for
// shapes that do not broadcast or tensors of another device, NotImplementedError for a type that the device
// lacks.
std::vector<at::Tensor> run_fused(const FusedOp& op, const FusedArguments& arguments,
                                  c10::ArrayRef<c10::ScalarType> dtypes = {});

// The same into tensors of the results' shapes, of any dtypes and strides.
void run_fused_out(const FusedOp& op, const FusedArguments& arguments, at::TensorList outputs);

// Reduces over the dimensions of the mask, of inputs that are broadcast to `shape`. `is_reduced(k)` tells
// outputs that are reduced from those that have one value per element.
template <class IsReduced>
void run_reduction(const codegen::ReduceOp& op, at::TensorList outputs, IsReduced&& is_reduced,
                   at::TensorList inputs, at::IntArrayRef shape, DimMask mask, at::ScalarType compute,
                   c10::ArrayRef<c10::Scalar> scalars) {
  c10::SmallVector<const at::Tensor*, 8> reduced, mapped, taken;
  c10::SmallVector<at::Tensor, 8> broadcast;
  for (size_t k = 0; k < outputs.size(); ++k) (is_reduced(k) ? reduced : mapped).push_back(&outputs[k]);
  broadcast.reserve(inputs.size());
  for (const at::Tensor& input : inputs) {
    TORCH_CHECK(input.device() == outputs[0].device(), op.name, ": expected all tensors on ",
                outputs[0].device(), ", but an input is on ", input.device());
    broadcast.push_back(input.expand(shape));
    taken.push_back(&broadcast.back());
  }
  run_reduce({op, reduced, mapped, taken, mask, compute, scalars});
}

}  // namespace dlb
