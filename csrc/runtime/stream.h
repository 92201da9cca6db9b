// Streams: in-order command queues, one default stream and a pool of side streams per device, and the calling
// thread's current device and streams.
#pragma once
#include <c10/core/Device.h>
#include <c10/core/Stream.h>

#include <atomic>
#include <memory>
#include <mutex>
#include <vector>

#include "cl/queue.h"

namespace dlb {

constexpr c10::DeviceType kDeviceType = c10::DeviceType::PrivateUse1;

// One in-order queue of a device. Made on first use, lives as long as the process.
class Stream {
 public:
  // Of streams that PyTorch does not know: not in stream_of(), not waited for by synchronize_device().
  static constexpr c10::StreamId kInternal = -1;

  Stream(cl::Device& device, c10::StreamId id);

  // For launching kernels.
  cl::Queue& queue() { return queue_; }
  // For enqueueing another command, with cl::Command; counted, so that query() knows when nothing was
  // enqueued since the last wait.
  cl::Queue& use() {
    uses_.fetch_add(1, std::memory_order_relaxed);
    return queue_;
  }
  // The same for commands that are not logged, of a stream that is kInternal or whose thread enqueues alone.
  cl_command_queue handle() { return use().handle; }
  cl::Device& device() const { return device_; }
  c10::StreamId id() const { return id_; }
  c10::Stream unwrap() const;

  // Waits until all work enqueued so far is done. Raises what the driver or a kernel reported since the last
  // synchronising call: IndexError for indices found out of range, OutOfMemoryError where the driver had no
  // memory for a kernel, RuntimeError otherwise, both naming the last kernels.
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

  // Makes event timestamps available on this queue for good; waits for the work in flight the first time.
  void enable_profiling();

  // Logs every command from now on, with the device's times. Waits for the work in flight, as stop_log()
  // does.
  void start_log();
  // Whether the queue takes times.
  bool is_profiling() const { return queue_.handle != plain_; }
  // The commands since start_log(), and the clocks at both its ends; empty when there was none. Goes back to
  // a queue without profiling, unless enable_profiling() was called. Throws Error for what the driver reports
  // late.
  struct Log {
    std::vector<cl::CommandRecord> commands;
    cl::ClockPair start, end;
  };
  Log stop_log();

 private:
  void move_to(cl_command_queue next);
  void use_profiling_queue();
  cl::Device& device_;
  const c10::StreamId id_;
  cl::Queue queue_;
  std::mutex mutex_;
  cl_mem error_buffer_ = nullptr;
  std::atomic<bool> error_pending_{false};
  // Guarded by mutex_.
  cl_command_queue plain_ = nullptr, profiling_ = nullptr;  // made on first use and kept
  bool timed_ = false;                                      // enable_profiling() was called
  std::unique_ptr<cl::CommandLog> log_;  // kept after stop_log(): another thread may be about to add to it
  cl::ClockPair log_start_;

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
// out, and where there is no such device. Here and below a negative device is the thread's current one.
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

// Waits for all streams of a device that were ever used; then raises what the first one that failed raised.
void synchronize_device(c10::DeviceIndex device);

// Logs the commands of all streams that PyTorch knows, also of those made later. False when this is already
// so.
bool start_logs();
struct StreamLog {
  c10::DeviceIndex device;
  c10::StreamId stream;
  Stream::Log log;
};
// Ends it and returns the logs that are not empty. What the driver reports late becomes a warning.
std::vector<StreamLog> stop_logs();

// At process exit: waits for all queues of all devices and swallows errors.
void finish_all_queues() noexcept;

// cl::device() with PyTorch's exception.
cl::Device& device_of(c10::DeviceIndex index);

}  // namespace dlb
