// PrivateUse1 hooks: what PyTorch's generic code asks of the device.
#include "runtime/hooks.h"

#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <c10/core/CachingDeviceAllocator.h>

#include <mutex>

#include "runtime/allocator.h"
#include "runtime/generator.h"
#include "runtime/host_allocator.h"
#include "runtime/profiler.h"
#include "runtime/stream.h"
#include "runtime/transfer.h"

namespace dlb {
namespace {

struct Hooks final : at::PrivateUse1HooksInterface {
  void init() const override { device_of(current_device()); }
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return cl::device_count() > 0; }
  bool hasPrimaryContext(c10::DeviceIndex index) const override { return index < cl::device_count(); }

  c10::DeviceIndex deviceCount() const override { return static_cast<c10::DeviceIndex>(cl::device_count()); }
  c10::DeviceIndex getCurrentDevice() const override { return current_device(); }
  void setCurrentDevice(c10::DeviceIndex device) const override { set_current_device(device); }
  c10::DeviceIndex exchangeDevice(c10::DeviceIndex device) const override {
    const c10::DeviceIndex previous = current_device();
    set_current_device(device);
    return previous;
  }
  c10::DeviceIndex maybeExchangeDevice(c10::DeviceIndex device) const override {
    return device < 0 ? current_device() : exchangeDevice(device);
  }

  const at::Generator& getDefaultGenerator(c10::DeviceIndex device) const override {
    return default_generator(device);
  }
  at::Generator getNewGenerator(c10::DeviceIndex device) const override {
    if (device < 0) device = current_device();
    device_of(device);  // throws where there is none
    return at::make_generator<OclGenerator>(device);
  }

  at::Device getDeviceFromPtr(void* pointer) const override {
    return {kDeviceType, device_of_pointer(pointer)};
  }
  bool isPinnedPtr(const void* pointer) const override { return is_pinned(pointer); }
  at::Allocator* getPinnedMemoryAllocator() const override { return host_allocator(); }

  void resizePrivateUse1Bytes(const c10::Storage& storage, size_t bytes) const override {
    resize_storage(storage, bytes);
  }
};

}  // namespace

void register_hooks() {
  static std::once_flag once;
  std::call_once(once, [] {
    at::RegisterPrivateUse1HooksInterface(new Hooks);
    register_profiler();
  });
}

}  // namespace dlb
