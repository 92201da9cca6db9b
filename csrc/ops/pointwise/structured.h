// Structured ops whose checks and promotion are PyTorch's own: a class over at::meta::structured_X that
// allocates or resizes the output.
#pragma once
#include <ATen/EmptyTensor.h>
#include <ATen/TensorIterator.h>
#include <ATen/native/Resize.h>
// Up to 2.12 the outputs of meta functions carry dimension names.
#if __has_include(<ATen/core/Dimname.h>)
#include <ATen/core/Dimname.h>
#define DLB_NAMES , at::DimnameList names
#define DLB_PASS_NAMES , names
#else
#define DLB_NAMES
#define DLB_PASS_NAMES
#endif

#include <type_traits>

#include "ops/common/pointwise.h"

namespace dlb {

// `Structured<at::meta::structured_clamp> op(out); op.meta(self, min, max);` leaves the output checked and
// sized, and, for metas that build an iterator, `op` ready for run_pointwise().
template <class Meta>
class Structured final : public Meta {
 public:
  explicit Structured(at::Tensor& out) : out_(out) {}

  void set_output_raw_strided(int64_t index, at::IntArrayRef sizes, at::IntArrayRef strides,
                              at::TensorOptions options DLB_NAMES) override {
    take(sizes, strides, options);
    if constexpr (std::is_base_of_v<at::TensorIteratorBase, Meta>)
      at::TensorIteratorBase::set_output_raw_strided(index, sizes, strides, options DLB_PASS_NAMES);
  }
  void set_output_strided(int64_t index, at::IntArrayRef sizes, at::IntArrayRef strides,
                          at::TensorOptions options DLB_NAMES) override {
    set_output_raw_strided(index, sizes, strides, options DLB_PASS_NAMES);
  }
  const at::Tensor& maybe_get_output(int64_t) override { return out_; }

 private:
  void take(at::IntArrayRef sizes, at::IntArrayRef strides, const at::TensorOptions& options) {
    TORCH_CHECK(options.dtype() == out_.dtype(), "Expected out tensor to have dtype ", options.dtype(),
                ", but got ", out_.dtype(), " instead");
    TORCH_CHECK(options.device() == out_.device(), "Expected out tensor to have device ", options.device(),
                ", but got ", out_.device(), " instead");
    if (at::native::resize_output(out_, sizes) && !strides.empty()) out_.as_strided_(sizes, strides);
  }

  at::Tensor& out_;
};

}  // namespace dlb
#undef DLB_NAMES
#undef DLB_PASS_NAMES
