// Streams: in-order command queues, one default stream and a pool of side streams per device, and the calling
// thread's current device and streams.
#pragma once
#include <c10/core/Device.h>
#include <c10/core/Stream.h>

#include <atomic>
#include <mutex>

#include "cl/program.h"

namespace dlb {

constexpr c10::DeviceType kDeviceType = c10::DeviceType::PrivateUse1;

// One in-order queue of a device. Made on first use, lives as long as the process.
class Stream {
 public:
  // Of streams that PyTorch does not know: not in stream_of(), not waited for by synchronize_device().
  static constexpr c10::StreamId kInternal = -1;

  Stream(cl::Device& device, c10::StreamId id);

  cl::Queue& queue() { return queue_; }
  // For enqueueing a command; counted, so that query() knows when nothing was enqueued since the last wait.
  cl_command_queue handle() {
    uses_.fetch_add(1, std::memory_order_relaxed);
    return queue_.handle;
  }
  cl::Device& device() const { return device_; }
  c10::StreamId id() const { return id_; }
  c10::Stream unwrap() const;

  // Waits until all work enqueued so far is done. Raises what the driver or a kernel reported since the last
  // synchronising call: IndexError for indices found out of range, RuntimeError naming the last kernels
  // otherwise.
  void synchronize();

  // True when nothing enqueued so far is still to run. Does not wait.
  bool query();

  // The buffer into which kernels record what they find wrong with their data (see device_error.h). Marks it
  // as to be looked at by the next synchronising call.
  cl_mem error_buffer();

  // Called after a wait that was not synchronize() (a blocking read): raises what kernels recorded.
  void raise_device_error();

  // Turns a status of a waiting call into an exception that names the kernels that ran last.
  void check_wait(cl_int status, const char* call);

  // Makes event timestamps available on this queue; waits for the work in flight the first time.
  void enable_profiling();

 private:
  cl::Device& device_;
  const c10::StreamId id_;
  cl::Queue queue_;
  std::mutex mutex_;
  cl_mem error_buffer_ = nullptr;
  std::atomic<bool> error_pending_{false};
  bool profiling_ = false;

  // How much was enqueued so far, in commands of any kind.
  uint64_t enqueued() const {
    return uses_.load(std::memory_order_relaxed) +
           (uint64_t{queue_.launches.load(std::memory_order_relaxed)} << 32);
  }
  std::atomic<uint32_t> uses_{0};
  std::atomic<uint64_t> finished_{0};  // enqueued() at the last moment known to be idle
  cl_event marker_ = nullptr;          // of query(), behind everything up to marked_; guarded by mutex_
  uint64_t marked_ = 0;
};

constexpr int kStreamsPerPool = 32;

// The stream of that id; id 0 is the default stream. Throws c10::Error for an id that getNewStream never gave
// out.
Stream& stream_of(c10::DeviceIndex device, c10::StreamId id);
Stream& stream_of(const c10::Stream& stream);

// The next side stream of the device, round robin over the pool.
Stream& next_pool_stream(c10::DeviceIndex device);

// The calling thread's current device, and its current stream on a device.
c10::DeviceIndex current_device() noexcept;
void set_current_device(c10::DeviceIndex device);  // throws c10::Error when there is no such device
void unchecked_set_device(c10::DeviceIndex device) noexcept;
Stream& current_stream(c10::DeviceIndex device);
inline Stream& current_stream() {
  return current_stream(current_device());
}
c10::StreamId exchange_current_stream(c10::DeviceIndex device, c10::StreamId id);

// Waits for all streams of a device that were ever used.
void synchronize_device(c10::DeviceIndex device);

// At process exit: waits for all queues of all devices and swallows errors.
void finish_all_queues() noexcept;

// cl::device() with PyTorch's exception.
cl::Device& device_of(c10::DeviceIndex index);

}  // namespace dlb
