// Results and scratch memory as tensors, past the dispatcher: at::empty() takes it three calls to get here.
#pragma once
#include <ATen/EmptyTensor.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/DeviceGuard.h>

#include <optional>

#include "runtime/allocator.h"
#include "runtime/stream.h"

namespace dlb {

inline c10::OptionalDeviceGuard guard_of(c10::Device device) {
  return c10::OptionalDeviceGuard(device.index() == current_device() ? std::nullopt : std::optional(device));
}

// A tensor on that device for a kernel to write all of: it is not filled where PyTorch's deterministic
// algorithms fill uninitialised memory.
inline at::Tensor new_tensor(at::IntArrayRef sizes, c10::ScalarType dtype, c10::Device device,
                             std::optional<at::MemoryFormat> format = std::nullopt) {
  const c10::OptionalDeviceGuard guard = guard_of(device);
  return at::detail::empty_generic(sizes, allocator(), c10::DispatchKeySet(c10::DispatchKey::PrivateUse1),
                                   dtype, format);
}

// The same with these strides, which must not overlap.
inline at::Tensor new_strided_tensor(at::IntArrayRef sizes, at::IntArrayRef strides, c10::ScalarType dtype,
                                     c10::Device device) {
  const c10::OptionalDeviceGuard guard = guard_of(device);
  return at::detail::empty_strided_generic(sizes, strides, allocator(),
                                           c10::DispatchKeySet(c10::DispatchKey::PrivateUse1), dtype);
}

}  // namespace dlb
