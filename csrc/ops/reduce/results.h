// PyTorch's own shape and dtype checks (at::meta) for reductions, with results that the caller gave or new
// ones.
#pragma once
#include <ATen/EmptyTensor.h>
#include <ATen/MemoryOverlap.h>
#include <ATen/native/ReduceOpsUtils.h>
#include <c10/core/CachingDeviceAllocator.h>

#include <array>

#include "ops/common/meta_op.h"
#include "primitives/reduce/reduce.h"

namespace dlb {

// A contiguous tensor on the current device; skips the dispatcher.
inline at::Tensor new_result(at::IntArrayRef sizes, c10::ScalarType dtype) {
  return at::detail::empty_generic(sizes, allocator(), c10::DispatchKeySet(c10::DispatchKey::PrivateUse1),
                                   dtype, std::nullopt);
}

// Gives `out` the dtype check and the size that out= promises. Any strides will do for a reduction.
inline void prepare_out(at::Tensor& out, at::IntArrayRef sizes, const at::TensorOptions& options) {
  check_out(out, options);
  at::native::resize_output(out, sizes);
}

inline void check_overlap(const at::Tensor& out, const at::Tensor& input) {
  at::assert_no_internal_overlap(out);
  at::assert_no_partial_overlap(out, input);
}

// `Results<at::meta::structured_X> r(out..); r.meta(..)`: results given are checked and resized, undefined
// ones made. Then r[i] are the results.
template <class Meta, size_t N = 1>
class Results final : public MetaOp<Meta> {
 public:
  Results() = default;
  template <class... Tensors>
  explicit Results(const at::Tensor& first, const Tensors&... more) : results_{first, more...} {
    static_assert(sizeof...(more) + 1 == N);
  }

  const at::Tensor& maybe_get_output(int64_t i) override { return results_[static_cast<size_t>(i)]; }
  at::Tensor& operator[](size_t i) { return results_[i]; }

  // Refuses results given as the CPU does in ops whose kernels are elementwise there: such as overlap
  // themselves, and a part of `input`. Plain reductions accept both.
  void check_overlap(const at::Tensor& input) const {
    for (size_t i = 0; i < N; ++i)
      if (given_[i]) dlb::check_overlap(results_[i], input);
  }

 private:
  void place(size_t i, at::IntArrayRef sizes, at::IntArrayRef, const at::TensorOptions& options) override {
    given_[i] = results_[i].defined();
    if (given_[i])
      prepare_out(results_[i], sizes, options);
    else
      results_[i] = new_result(sizes, c10::typeMetaToScalarType(options.dtype()));
  }
  std::array<at::Tensor, N> results_;
  std::array<bool, N> given_{};
};

inline DimMask mask_of(at::OptionalIntArrayRef dims, const at::Tensor& self, bool allow_empty = false) {
  return at::native::make_dim_mask(dims, self.dim(), allow_empty);
}
inline DimMask mask_of(int64_t dim, const at::Tensor& self) {
  return mask_of(at::IntArrayRef(dim), self);
}

// One input, one result.
inline void reduce(const codegen::ReduceOp& op, const at::Tensor& self, DimMask mask, c10::ScalarType compute,
                   const at::Tensor& out, c10::ArrayRef<c10::Scalar> scalars = {}) {
  const at::Tensor *input = &self, *output = &out;
  run_reduce({op, {output}, {}, {input}, mask, compute, scalars});
}

}  // namespace dlb
