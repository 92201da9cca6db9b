// Runs PyTorch's own shape and dtype checks (the meta part of a structured op) for an out= kernel.
#pragma once
#include <ATen/core/Tensor.h>
#include <ATen/native/Resize.h>

#include <array>

namespace dlb {

// A structured op's meta class that writes into given outputs: checks their dtype and device and resizes
// them, as PyTorch's generated wrappers do. Meta is at::meta::structured_<op>.
template <class Meta, size_t Outputs = 1>
class OutOp final : public Meta {
 public:
  explicit OutOp(std::array<std::reference_wrapper<const at::Tensor>, Outputs> outputs) : outputs_(outputs) {}
  explicit OutOp(const at::Tensor& output) requires(Outputs == 1) : outputs_{std::cref(output)} {}

  void set_output_strided(int64_t i, at::IntArrayRef sizes, at::IntArrayRef strides,
                          at::TensorOptions options) override {
    resize(i, sizes, strides, options);
  }
  void set_output_raw_strided(int64_t i, at::IntArrayRef sizes, at::IntArrayRef strides,
                              at::TensorOptions options) override {
    resize(i, sizes, strides, options);
  }
  const at::Tensor& maybe_get_output(int64_t i) override { return outputs_[i].get(); }

 private:
  void resize(int64_t i, at::IntArrayRef sizes, at::IntArrayRef strides, const at::TensorOptions& options) {
    const at::Tensor& out = outputs_[i].get();
    TORCH_CHECK(options.dtype() == out.dtype(), "Expected out tensor to have dtype ", options.dtype(),
                ", but got ", out.dtype(), " instead");
    TORCH_CHECK(options.device() == out.device(), "Expected out tensor to have device ", options.device(),
                ", but got ", out.device(), " instead");
    if (at::native::resize_output(out, sizes) && !strides.empty()) out.as_strided_(sizes, strides);
  }

  std::array<std::reference_wrapper<const at::Tensor>, Outputs> outputs_;
};

}  // namespace dlb
