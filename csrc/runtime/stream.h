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
#include "cl/submitter.h"

namespace dlb {

class Graph;  // runtime/graph.h
namespace cl {
class Tape;  // cl/tape.h
}

constexpr c10::DeviceType kDeviceType = c10::DeviceType::PrivateUse1;

// One in-order queue of a device. Made on first use, lives as long as the process.
class Stream {
 public:
  // The id of streams that PyTorch does not know. stream_of() does not find them, and synchronize_device()
  // does not wait for them.
  static constexpr c10::StreamId kInternal = -1;

  Stream(cl::Device& device, c10::StreamId id);

  // The queue for launching kernels, and for nothing else: launches may still be on their way to it.
  cl::Queue& queue() { return queue_; }
  // The queue for enqueueing another command with cl::Command, behind all launches up to now. Uses are
  // counted, so that query() knows when nothing was enqueued since the last wait.
  cl::Queue& use() {
    if (graph()) [[unlikely]]
      refuse_capture("a command that is neither a kernel nor a copy");
    drain();
    uses_.fetch_add(1, std::memory_order_relaxed);
    return queue_;
  }
  // The driver's queue, for commands that are not logged. The stream must be kInternal, or no other thread
  // may enqueue to it meanwhile.
  cl_command_queue handle() { return use().handle; }
  cl::Device& device() const { return device_; }
  c10::StreamId id() const { return id_; }
  c10::Stream unwrap() const;

  // The graph that takes what is enqueued to the stream, while it is captured (runtime/graph.h); else null.
  Graph* graph() const { return graph_.load(std::memory_order_acquire); }
  // From now on work goes to that graph and its tape; null for both: to the queue again.
  void capture_into(Graph* graph, cl::Tape* tape);
  // The driver's queue, for a blocking command that is run now and is no part of a graph that is captured.
  cl_command_queue handle_now() {
    drain();
    return queue_.handle;
  }

  // Returns when the driver has all that was launched before.
  void drain() noexcept {
    if (queue_.submitter) queue_.submitter->drain();
  }

  // Waits until all work enqueued so far is done. Errors of kernels and late launches stay for the next
  // synchronising call; throws only where the wait itself fails.
  void wait();

  // wait(), and raises what the driver or a kernel reported since the last synchronising call: IndexError for
  // indices found out of range, OutOfMemoryError where the driver had no memory for a kernel, RuntimeError
  // otherwise, both naming the last kernels.
  void synchronize();

  // True when all that was enqueued so far is done. Does not wait.
  bool query();

  // Raises what kernels recorded, and what the driver refused of launches that were not enqueued at once. To
  // be called after a wait other than synchronize(), such as a blocking read.
  void raise_device_error();

  // Throws for the status of a waiting call that failed. The message names the kernels that ran last.
  void check_wait(cl_int status, const char* call);

  // The buffer that a replay's kernels report errors to, which the next synchronising call will read.
  cl_mem error_buffer_for_replay();

  // Makes event timestamps available on this queue for good; waits for the work in flight the first time.
  void enable_profiling();

  // Logs every command from now on, with the device's times. Like stop_log(), waits for the work in flight.
  void start_log();
  // Whether the queue takes times.
  bool is_profiling() const { return queue_.handle != plain_; }
  // The commands since start_log(), and the clocks at its start and end. Empty when there was no start_log().
  // Moves back to a queue without profiling, unless enable_profiling() was called. Throws Error for what the
  // driver reports late.
  struct Log {
    std::vector<cl::CommandRecord> commands;
    cl::ClockPair start, end;
  };
  Log stop_log();

 private:
  friend class ErrorBuffer;
  [[noreturn]] void refuse_capture(const char* what) const;
  // Throws, and makes the capture invalid, while the stream is captured.
  void refuse_wait() const {
    if (graph()) [[unlikely]]
      refuse_capture("a wait for the device");
  }
  cl_mem error_buffer();
  void move_to(cl_command_queue next);
  void use_profiling_queue();
  cl::Device& device_;
  const c10::StreamId id_;
  cl::Queue queue_;
  std::mutex mutex_;
  std::atomic<Graph*> graph_{nullptr};
  cl_mem error_buffer_ = nullptr;
  std::atomic<bool> error_pending_{false};
  // Guarded by mutex_.
  cl_command_queue plain_ = nullptr, profiling_ = nullptr;  // made on first use and kept
  bool timed_ = false;                                      // enable_profiling() was called
  std::unique_ptr<cl::CommandLog> log_;  // kept after stop_log(): another thread may be about to add to it
  cl::ClockPair log_start_;

  // Counts the commands of any kind that were enqueued so far.
  uint64_t enqueued() const {
    return uses_.load(std::memory_order_relaxed) +
           (uint64_t{queue_.launches.load(std::memory_order_relaxed)} << 32);
  }
  std::atomic<uint32_t> uses_{0};
  std::atomic<uint64_t> finished_{0};  // enqueued() at the last moment known to be idle
  cl_event marker_ = nullptr;          // of query(), behind everything up to marked_; guarded by mutex_
  uint64_t marked_ = 0;
};

// The buffer into which a launch's kernel records what it finds wrong with its data (see device_error.h).
// Lives until the launch is made: the synchronising calls after that read the buffer, and those that other
// threads make meanwhile need not.
class ErrorBuffer {
 public:
  explicit ErrorBuffer(Stream& stream) : stream_(stream), mem_(stream.error_buffer()) {}
  ~ErrorBuffer() { stream_.error_pending_.store(true, std::memory_order_release); }
  ErrorBuffer(const ErrorBuffer&) = delete;
  cl_mem mem() const { return mem_; }

 private:
  Stream& stream_;
  const cl_mem mem_;
};

constexpr int kStreamsPerPool = 32;

// The stream with that id; id 0 is the default stream. Throws c10::Error for an id that getNewStream never
// gave out, and for a device that does not exist. Here and below a negative device stands for the thread's
// current one.
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

// Waits for all streams of a device that were ever used, then raises the error of the first stream that
// failed.
void synchronize_device(c10::DeviceIndex device);
// The same without raising the errors of kernels and late launches, which stay for the next synchronising
// call: for code that waits for reasons of its own.
void wait_for_device(c10::DeviceIndex device);

// The devices that have a stream.
std::vector<c10::DeviceIndex> used_devices();

// Begins to log the commands of all streams that PyTorch knows, and of those made later. False when they are
// logged already.
bool start_logs();
struct StreamLog {
  c10::DeviceIndex device;
  c10::StreamId stream;
  Stream::Log log;
};
// Ends what start_logs() began, and returns the logs that are not empty. Errors that the driver reports late
// become warnings.
std::vector<StreamLog> stop_logs();

// Waits for all queues of all devices, at process exit. Errors are logged: nobody is left to handle them.
void finish_all_queues() noexcept;

// As cl::device(), but throws c10::Error for a device that does not exist.
cl::Device& device_of(c10::DeviceIndex index);

}  // namespace dlb
