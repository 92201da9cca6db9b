// The CPU fallback: ops, or dtypes of an op, that have no kernel here run on the CPU with copies, are warned
// about once and counted.
#pragma once
#include <ATen/core/boxing/KernelFunction.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

#include <map>
#include <string>

namespace dlb {

// Runs the op on the CPU: inputs are copied there, results and mutated arguments copied back.
// DLBACKEND_FALLBACK: "warn" (default, once per op), "silent", or "error" (raises NotImplementedError).
void cpu_fallback(const c10::OperatorHandle& op, torch::jit::Stack* stack);

// The same for tensors of another layout, whose kernels the CPU has under `key` (SparseCPU, SparseCsrCPU).
void cpu_fallback_as(c10::DispatchKey key, const c10::OperatorHandle& op, torch::jit::Stack* stack);

// Typed entry for a kernel that handles only some dtypes: runs aten::<name>.<overload> on the CPU.
template <class Result, class... Args>
Result call_cpu_fallback(const char* name, const char* overload, Args... args) {
  const auto op = c10::Dispatcher::singleton().findSchemaOrThrow(name, overload);
  return c10::impl::BoxedKernelWrapper<Result(Args...)>::call(
      c10::BoxedKernel::makeFromFunction<&cpu_fallback>(), op, c10::DispatchKeySet(), args...);
}

// Calls per op since the start or the last reset: {"aten::median": 3}.
std::map<std::string, uint64_t> fallback_report();
void reset_fallback_report();

}  // namespace dlb
