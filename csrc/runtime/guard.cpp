// The device guard: how PyTorch's core switches devices and streams and handles events on ocl.
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <c10/util/Exception.h>
#include <torch/headeronly/version.h>

#include "runtime/allocator.h"
#include "runtime/autograd_threads.h"
#include "runtime/event.h"
#include "runtime/stream.h"

namespace dlb {
namespace {

Event* as_event(void* event) {
  return static_cast<Event*>(event);
}

struct Guard final : c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const override { return kDeviceType; }

  c10::Device exchangeDevice(c10::Device device) const override {
    const c10::Device previous = getDevice();
    set_current_device(device.index());
    return previous;
  }
  c10::Device getDevice() const override { return {kDeviceType, current_device()}; }
  void setDevice(c10::Device device) const override {
    set_current_device(device.index());
    note_autograd_thread();  // other callers change the device by guards, which exchange it
  }
  void uncheckedSetDevice(c10::Device device) const noexcept override {
    unchecked_set_device(device.index());
  }
  c10::DeviceIndex deviceCount() const noexcept override {
    return static_cast<c10::DeviceIndex>(cl::device_count());
  }

  // The element types that kernels compute with.
  c10::DeviceCapability getDeviceCapability(c10::Device device) const override {
    c10::DeviceCapability capability;
    auto& bits = capability.capability_data.capability_bits;
    bits = 0;
    for (auto type :
         {c10::kIndex_Bool, c10::kIndex_Byte, c10::kIndex_Char, c10::kIndex_Short, c10::kIndex_Int,
          c10::kIndex_Long, c10::kIndex_UInt16, c10::kIndex_UInt32, c10::kIndex_UInt64, c10::kIndex_Half,
          c10::kIndex_BFloat16, c10::kIndex_Float, c10::kIndex_ComplexFloat})
      bits |= uint64_t{1} << type;
    if (device_of(device.index()).fp64)
      bits |= uint64_t{1} << c10::kIndex_Double | uint64_t{1} << c10::kIndex_ComplexDouble;
    return capability;
  }

  c10::Stream getStream(c10::Device device) const override { return current_stream(device.index()).unwrap(); }
  c10::Stream getDefaultStream(c10::Device device) const override {
    return stream_of(device.index(), 0).unwrap();
  }
  c10::Stream getStreamFromGlobalPool(c10::Device device, bool) const override {
    return getNewStream(device);
  }
  c10::Stream getNewStream(c10::Device device, int = 0) const override {
    return next_pool_stream(device.has_index() ? device.index() : current_device()).unwrap();
  }
  c10::Stream exchangeStream(c10::Stream stream) const override {
    const c10::StreamId previous = exchange_current_stream(stream.device_index(), stream.id());
    return stream_of(stream.device_index(), previous).unwrap();
  }
#if TORCH_VERSION_MINOR >= 13
  bool isStreamCapturing(const c10::Stream& stream) const override {
    return stream_of(stream).graph() != nullptr;
  }
#endif
  bool queryStream(const c10::Stream& stream) const override {
    return stream_of(stream).query();
  }
  void synchronizeStream(const c10::Stream& stream) const override {
    stream_of(stream).synchronize();
  }
  void synchronizeDevice(const c10::DeviceIndex device) const override {
    synchronize_device(device < 0 ? current_device() : device);
  }

  void record(void** event, const c10::Stream& stream, const c10::DeviceIndex,
              const c10::EventFlag flag) const override {
    if (!*event) *event = new Event(flag == c10::EventFlag::BACKEND_DEFAULT);
    as_event(*event)->record(stream_of(stream));
  }
  void block(void* event, const c10::Stream& stream) const override {
    if (event) as_event(event)->block(stream_of(stream));
  }
  bool queryEvent(void* event) const override {
    return !event || as_event(event)->query();
  }
  void synchronizeEvent(void* event) const override {
    if (event) as_event(event)->synchronize();
  }
  void destroyEvent(void* event, const c10::DeviceIndex) const noexcept override {
    delete as_event(event);
  }
  double elapsedTime(void* start, void* end, const c10::DeviceIndex) const override {
    TORCH_CHECK(start && end, "Both events must be recorded before calculating elapsed time.");
    return as_event(start)->elapsed_ms(*as_event(end));
  }

  void recordDataPtrOnStream(const c10::DataPtr& data, const c10::Stream& stream) const override {
    allocator()->recordStream(data, stream);
  }
};

C10_REGISTER_GUARD_IMPL(PrivateUse1, Guard)

}  // namespace
}  // namespace dlb
