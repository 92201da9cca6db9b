// The base of classes that take the results which PyTorch's own checks (the meta part of a structured op) ask
// for.
#pragma once
#include <ATen/TensorIterator.h>
#include <ATen/TensorMeta.h>
#include <ATen/core/Tensor.h>
#include <ATen/native/Resize.h>
#include <torch/headeronly/version.h>

#include <optional>
#include <type_traits>
// Up to torch 2.12 the results of meta functions carry dimension names.
#if TORCH_VERSION_MINOR < 13
#include <ATen/core/Dimname.h>
#define DLB_NAMES , at::DimnameList names
#define DLB_PASS_NAMES , names
#else
#define DLB_NAMES
#define DLB_PASS_NAMES
#endif

namespace dlb {

// Meta is at::meta::structured_<op>; a derived class says in place() what becomes of result i. Its strides
// are empty where the meta function does not say any.
template <class Meta>
class MetaOp : public Meta {
 public:
  void set_output_strided(int64_t i, at::IntArrayRef sizes, at::IntArrayRef strides,
                          at::TensorOptions options DLB_NAMES) final {
    set_output_raw_strided(i, sizes, strides, options DLB_PASS_NAMES);
  }
  void set_output_raw_strided(int64_t i, at::IntArrayRef sizes, at::IntArrayRef strides,
                              at::TensorOptions options DLB_NAMES) final {
    place(static_cast<size_t>(i), sizes, strides, options);
    if constexpr (std::is_base_of_v<at::TensorIteratorBase, Meta>)
      at::TensorIteratorBase::set_output_raw_strided(i, sizes, strides, options DLB_PASS_NAMES);
  }

 protected:
  virtual void place(size_t i, at::IntArrayRef sizes, at::IntArrayRef strides,
                     const at::TensorOptions& options) = 0;
};

// Raises what PyTorch's generated wrappers raise for an out= tensor of another dtype or on another device.
inline void check_out(const at::Tensor& out, const at::TensorOptions& options) {
  TORCH_CHECK(out.dtype() == options.dtype(), "Expected out tensor to have dtype ", options.dtype(),
              ", but got ", out.dtype(), " instead");
  TORCH_CHECK(out.device() == options.device(), "Expected out tensor to have device ", options.device(),
              ", but got ", out.device(), " instead");
}

// Raises what PyTorch's generated wrappers raise where the tensors among the arguments are on several
// devices.
template <class... Args>
void check_common_device(const Args&... args) {
  std::optional<c10::Device> device;
  const auto check = [&](const auto& argument) {
    if constexpr (std::is_same_v<std::decay_t<decltype(argument)>, at::Tensor>) {
      if (!argument.defined()) return;
      if (!device) device = argument.device();
      TORCH_CHECK(*device == argument.device(),
                  "Expected all tensors to be on the same device, but found at least two devices, ", *device,
                  " and ", argument.device(), "!");
    }
  };
  (check(args), ...);
}

}  // namespace dlb
#undef DLB_NAMES
#undef DLB_PASS_NAMES
