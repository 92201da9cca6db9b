// PyTorch's kernels of the CPU for tensors of another layout, taken for the device.
#pragma once
#include <ATen/core/dispatch/Dispatcher.h>

#include "ops/fallback.h"

namespace dlb {

// Boxed kernels for tensors that the CPU has kernels for under `Key` (SparseCPU, NestedTensorCPU and so on).
template <c10::DispatchKey Key>
struct CpuKernels {
  // The CPU's kernel itself, on tensors of the device: for one that only calls ops which dispatch anew, and
  // never reads the memory of a tensor's elements.
  static void as_it_is(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
    op.redispatchBoxed(c10::DispatchKeySet(Key), stack);
  }
  // On copies on the CPU, counted (ops/fallback.h).
  static void on_copies(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
    cpu_fallback_as(Key, op, stack);
  }
};

}  // namespace dlb
