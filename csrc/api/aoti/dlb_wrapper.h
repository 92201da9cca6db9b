// Helpers for the C++ that Inductor generates for ocl, for AOTInductor's packages and for cpp_wrapper.
// dlb_package.h and dlb_jit.h include it after PyTorch's headers.
#pragma once
#include <torch/csrc/stable/c/shim.h>

#include <dlb_calls.h>

#include <initializer_list>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

// PyTorch's macro of this name reports which call failed; this one reports the cause.
#undef AOTI_TORCH_ERROR_CODE_CHECK
#define AOTI_TORCH_ERROR_CODE_CHECK(call) dlb::aoti::check((call), #call)

namespace dlb::aoti {

inline void check(AOTITorchError status, const char* call) {
  if (status == AOTI_TORCH_SUCCESS) return;
  const char* why = torch_exception_get_what_without_backtrace();
  throw std::runtime_error(why && *why ? why : std::string(call) + " failed");
}

class Kernel;
static std::vector<Kernel*> kernels;  // of this file

// One of the file's kernels.
class Kernel {
 public:
  Kernel(const char* name, const char* source, const char* parameters) {
    check(dlb_aoti_new_kernel(name, source, parameters, &handle_), "dlb_aoti_new_kernel");
    kernels.push_back(this);
  }
  Kernel(const Kernel&) = delete;
  Kernel& operator=(const Kernel&) = delete;
  ~Kernel() { dlb_aoti_delete_kernel(handle_); }

  DlbKernelHandle handle() const { return handle_; }

  void launch(int32_t device, std::initializer_list<DlbArgument> arguments, int64_t items, int64_t group) {
    check(dlb_aoti_launch(handle_, device, arguments.begin(), items, group), "dlb_aoti_launch");
  }

 private:
  DlbKernelHandle handle_ = nullptr;
};

// Builds the file's kernels.
static inline void build(int32_t device) {
  std::vector<DlbKernelHandle> handles;
  for (const Kernel* kernel : kernels) handles.push_back(kernel->handle());
  check(dlb_aoti_build(handles.data(), handles.size(), device), "dlb_aoti_build");
}

inline DlbArgument tensor(AtenTensorHandle value) {
  return {value, 0, 0};
}
inline DlbArgument integer(int64_t value) {
  return {nullptr, value, 0};
}
inline DlbArgument real(double value) {
  return {nullptr, 0, value};
}

inline int64_t parts(int64_t count, int64_t size) {
  return (count + size - 1) / size;
}

// As run_length() of dlbackend/compile/inductor/runtime.py.
inline int64_t run_length(int64_t count, int64_t least, int64_t wanted, int64_t step) {
  const int64_t length = std::max(least, parts(count, wanted));
  return parts(length, step) * step;
}

// Makes a device the current one. A model runs on the current stream: there is no handle of another.
class DeviceGuard {
 public:
  explicit DeviceGuard(int32_t device) : guard_(nullptr, aoti_torch_delete_device_guard) {
    DeviceGuardHandle made = nullptr;
    AOTI_TORCH_ERROR_CODE_CHECK(aoti_torch_create_device_guard(device, &made));
    guard_.reset(made);
  }
  DeviceGuard(void*, int32_t device) : DeviceGuard(device) {}

  void set_index(int32_t device) {
    AOTI_TORCH_ERROR_CODE_CHECK(aoti_torch_device_guard_set_index(guard_.get(), device));
  }

 private:
  std::unique_ptr<DeviceGuardOpaque, decltype(&aoti_torch_delete_device_guard)> guard_;
};

}  // namespace dlb::aoti
