// Kernels and memory of C++ that Inductor generated (aoti/dlb_calls.h).
#include <ATen/core/Tensor.h>
#include <ATen/ops/from_blob.h>
#include <torch/csrc/inductor/aoti_torch/utils.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <exception>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

#include "api/aoti/dlb_calls.h"
#include "runtime/address_map.h"
#include "runtime/tensor.h"
#include "runtime/user_kernel.h"

namespace {

using dlb::UserKernel;
using Kind = UserKernel::Kind;

constexpr size_t kMostDevices = 64;

const at::Tensor& tensor_of(AtenTensorHandle handle) {
  return *torch::aot_inductor::tensor_handle_to_tensor_pointer(handle);
}

std::vector<UserKernel::Parameter> parameters_of(const std::string& letters) {
  std::vector<UserKernel::Parameter> parameters(letters.size());
  for (size_t i = 0; i < letters.size(); ++i) {
    UserKernel::Parameter& parameter = parameters[i];
    parameter.name = letters[i] == 'e' ? "dlb_errors" : std::to_string(i);
    parameter.format = letters[i];
    parameter.kind = strchr("rwe", letters[i]) ? Kind::kBuffer : Kind::kValue;
    parameter.written = letters[i] == 'w';
    parameter.type = parameter.kind == Kind::kBuffer ? "buffer" : "number";
  }
  return parameters;
}

template <class T>
void put(UserKernel::Argument& argument, T value) {
  std::memcpy(argument.value, &value, sizeof value);
  argument.size = sizeof value;
}

void set_number(UserKernel::Argument& argument, char format, const DlbArgument& given) {
  c10::Scalar item;
  if (given.tensor) item = dlb::cpu_scalar(tensor_of(given.tensor));
  const auto integer = [&] { return given.tensor ? item.to<int64_t>() : given.integer; };
  const auto real = [&] { return given.tensor ? item.to<double>() : given.real; };
  switch (format) {
    case 'i':
      return put(argument, static_cast<int32_t>(integer()));
    case 'q':
      return put(argument, integer());
    case 'f':
      return put(argument, static_cast<float>(real()));
    default:
      return put(argument, real());
  }
}

// Memory that packages hold, by its address.
class Blocks {
 public:
  void* add(c10::DataPtr block) {
    std::lock_guard<std::mutex> lock(mutex_);
    void* const pointer = block.get();
    blocks_.emplace(pointer, std::move(block));
    return pointer;
  }
  void remove(void* pointer) {
    std::unique_lock<std::mutex> lock(mutex_);
    const auto block = blocks_.extract(pointer);
    lock.unlock();  // and frees it
  }

 private:
  std::mutex mutex_;
  std::unordered_map<void*, c10::DataPtr> blocks_;
};

Blocks& blocks() {
  static Blocks* const made = new Blocks;  // packages may be closed at exit, behind static objects
  return *made;
}

at::Tensor bytes_at(void* pointer, size_t bytes, c10::Device device) {
  return at::for_blob(pointer, {static_cast<int64_t>(bytes)})
      .options(c10::TensorOptions(at::kByte).device(device))
      .target_device(device)
      .make_tensor();
}

}  // namespace

struct DlbKernelOpaque {
  DlbKernelOpaque(const char* name, const char* source, const char* parameters)
      : name_(name), source_(source), parameters_(parameters) {}
  DlbKernelOpaque(const DlbKernelOpaque&) = delete;
  DlbKernelOpaque& operator=(const DlbKernelOpaque&) = delete;
  ~DlbKernelOpaque() {
    for (auto& each : built_) delete each.load();
  }

  UserKernel& on(int32_t device) {
    auto& built = built_.at(static_cast<size_t>(device));
    if (UserKernel* const kernel = built.load(std::memory_order_acquire)) return *kernel;
    std::lock_guard<std::mutex> lock(mutexes_[static_cast<size_t>(device)]);
    if (UserKernel* const kernel = built.load(std::memory_order_acquire)) return *kernel;
    auto made = std::make_unique<UserKernel>(dlb::device_of(static_cast<c10::DeviceIndex>(device)), source_,
                                             "", name_, parameters_of(parameters_));
    built.store(made.get(), std::memory_order_release);
    return *made.release();
  }

 private:
  const char* const name_;
  const char* const source_;
  const char* const parameters_;
  std::array<std::atomic<UserKernel*>, kMostDevices> built_{};
  std::array<std::mutex, kMostDevices> mutexes_;
};

AOTITorchError dlb_aoti_new_kernel(const char* name, const char* source, const char* parameters,
                                   DlbKernelHandle* kernel) {
  AOTI_TORCH_CONVERT_EXCEPTION_TO_ERROR_CODE({ *kernel = new DlbKernelOpaque(name, source, parameters); });
}

void dlb_aoti_delete_kernel(DlbKernelHandle kernel) {
  delete kernel;
}

AOTITorchError dlb_aoti_build(const DlbKernelHandle* kernels, size_t count, int32_t device) {
  AOTI_TORCH_CONVERT_EXCEPTION_TO_ERROR_CODE({
    std::atomic<size_t> next{0};
    std::mutex mutex;
    std::exception_ptr error;
    const auto work = [&] {
      for (size_t i = next++; i < count; i = next++) {
        try {
          kernels[i]->on(device);
        } catch (...) {
          std::lock_guard<std::mutex> lock(mutex);
          error = std::current_exception();
        }
      }
    };
    std::vector<std::thread> others;
    const size_t wanted = std::min<size_t>({count, std::thread::hardware_concurrency(), 8});
    for (size_t i = 1; i < wanted; ++i) others.emplace_back(work);
    work();
    for (std::thread& other : others) other.join();
    if (error) std::rethrow_exception(error);
  });
}

AOTITorchError dlb_aoti_launch(DlbKernelHandle kernel, int32_t device, const DlbArgument* given,
                               int64_t items, int64_t group) {
  AOTI_TORCH_CONVERT_EXCEPTION_TO_ERROR_CODE({
    UserKernel& built = kernel->on(device);
    const auto& parameters = built.parameters();
    c10::SmallVector<UserKernel::Argument, 8> arguments(parameters.size());
    for (size_t i = 0; i < parameters.size(); ++i) {
      if (parameters[i].kind == Kind::kBuffer)
        built.set_tensor(arguments[i], tensor_of(given[i].tensor), parameters[i]);
      else
        set_number(arguments[i], parameters[i].format, given[i]);
    }
    UserKernel::Sizes sizes;
    sizes.has_local = true;
    sizes.global[0] = static_cast<size_t>(items);
    sizes.local[0] = static_cast<size_t>(group);
    built.launch(dlb::current_stream(static_cast<c10::DeviceIndex>(device)), sizes,
                 {arguments.data(), arguments.size()});
  });
}

AOTITorchError dlb_aoti_allocate(size_t bytes, void** pointer) {
  AOTI_TORCH_CONVERT_EXCEPTION_TO_ERROR_CODE(
      { *pointer = blocks().add(dlb::allocate_beside_graph(bytes, dlb::current_device())); });
}

AOTITorchError dlb_aoti_free(void* pointer) {
  AOTI_TORCH_CONVERT_EXCEPTION_TO_ERROR_CODE({ blocks().remove(pointer); });
}

AOTITorchError dlb_aoti_copy(void* to, const void* from, size_t bytes) {
  AOTI_TORCH_CONVERT_EXCEPTION_TO_ERROR_CODE({
    const c10::Device device(dlb::kDeviceType, dlb::device_of_pointer(to));
    const dlb::Segment* const segment = dlb::find_segment(from);
    const c10::Device other =
        segment ? c10::Device(dlb::kDeviceType, segment->device) : c10::Device(at::kCPU);
    bytes_at(to, bytes, device).copy_(bytes_at(const_cast<void*>(from), bytes, other));
    dlb::current_stream(device.index()).synchronize();
  });
}

AOTITorchError dlb_aoti_set_device(int32_t device) {
  AOTI_TORCH_CONVERT_EXCEPTION_TO_ERROR_CODE(
      { dlb::set_current_device(static_cast<c10::DeviceIndex>(device)); });
}

AOTITorchError dlb_aoti_synchronize() {
  AOTI_TORCH_CONVERT_EXCEPTION_TO_ERROR_CODE({ dlb::current_stream(dlb::current_device()).synchronize(); });
}
