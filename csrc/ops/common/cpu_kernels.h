// PyTorch's kernels of the CPU for tensors of another layout, taken for the device.
#pragma once
#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/DeviceGuard.h>

#include "ops/fallback.h"

namespace dlb {

// The device that a call names, or else that of its first tensor.
inline std::optional<c10::Device> device_of_call(c10::ArrayRef<c10::IValue> arguments) {
  std::optional<c10::Device> first;
  for (const c10::IValue& argument : arguments) {
    if (argument.isDevice()) return argument.toDevice();
    if (first) continue;
    if (argument.isTensor() && argument.toTensor().defined()) first = argument.toTensor().device();
    if (argument.isTensorList() && !argument.toListRef().empty())
      first = argument.toListRef()[0].toTensor().device();
  }
  return first;
}

// Boxed kernels for tensors that the CPU has kernels for under `Key` (SparseCPU, NestedTensorCPU and so on).
template <c10::DispatchKey Key>
struct CpuKernels {
  // The CPU's kernel itself, on tensors of the device: for one that only calls ops which dispatch anew, and
  // never reads the memory of a tensor's elements.
  static void as_it_is(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
    // The constructor of a sparse tensor asks which device is current.
    c10::OptionalDeviceGuard guard;
    const auto device = device_of_call(torch::jit::last(*stack, op.schema().arguments().size()));
    if (device && device->is_privateuseone() && device->has_index()) guard.reset_device(*device);
    op.redispatchBoxed(c10::DispatchKeySet(Key), stack);
  }
  // On copies on the CPU, counted (ops/fallback.h).
  static void on_copies(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
    cpu_fallback_as(Key, op, stack);
  }
};

}  // namespace dlb
