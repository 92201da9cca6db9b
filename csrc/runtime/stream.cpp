// Streams, their pools and the thread's current ones.
#include "runtime/stream.h"

#include <c10/util/Exception.h>

#include <array>
#include <cstdio>
#include <exception>
#include <memory>
#include <vector>

#include "cl/builders.h"
#include "cl/compile_process.h"
#include "cl/kernel.h"
#include "cl/log.h"
#include "cl/settings.h"
#include "runtime/device_error.h"
#include "runtime/graph.h"

namespace dlb {
namespace {

struct DeviceStreams {
  std::array<std::atomic<Stream*>, kStreamsPerPool + 1> streams{};
  std::atomic<uint32_t> next{0};
  std::mutex mutex;
};

std::array<DeviceStreams, cl::kDeviceIndices>& all_streams() {
  static auto* all = new std::array<DeviceStreams, cl::kDeviceIndices>;
  return *all;
}

// The streams of an index that is not negative, whether there is such a device or not.
DeviceStreams& streams_of(c10::DeviceIndex device) {
  return all_streams()[static_cast<size_t>(device)];
}

std::atomic<bool> g_logging{false};

template <class F>
void for_each_stream(F&& f) {
  for (DeviceStreams& streams : all_streams()) {
    std::lock_guard<std::mutex> lock(streams.mutex);
    for (auto& slot : streams.streams)
      if (Stream* stream = slot.load(std::memory_order_acquire)) f(*stream);
  }
}

thread_local c10::DeviceIndex t_device = 0;
thread_local std::array<uint8_t, cl::kDeviceIndices> t_streams{};

cl_command_queue make_queue(cl::Device& device, cl_command_queue_properties properties) {
  cl_int status = CL_SUCCESS;
  cl_command_queue queue = cl::api().clCreateCommandQueue(device.context(), device.id, properties, &status);
  if (status != CL_SUCCESS) cl::throw_error(status, "clCreateCommandQueue", device.name);
  return queue;
}

[[maybe_unused]] const bool g_throws_out_of_memory = [] {
  cl::on_out_of_memory(
      [](const std::string& message) { TORCH_CHECK_WITH(OutOfMemoryError, false, message); });
  return true;
}();

}  // namespace

Stream::Stream(cl::Device& device, c10::StreamId id) : device_(device), id_(id) {
  queue_.device = &device;
  queue_.handle = plain_ = make_queue(device, 0);
  if (id != kInternal && cl::has_enqueue_thread(device)) queue_.submitter = new cl::Submitter(queue_);
  queue_.sink = queue_.submitter;
  if (cl::can_defer_builds(device)) cl::start_compile_processes(device);
}

c10::Stream Stream::unwrap() const {
  return c10::Stream(c10::Stream::UNSAFE,
                     c10::Device(kDeviceType, static_cast<c10::DeviceIndex>(device_.index)), id_);
}

void Stream::capture_into(Graph* graph, cl::Tape* tape) {
  drain();
  graph_ = graph;
  queue_.sink = tape ? static_cast<cl::LaunchSink*>(tape) : queue_.submitter;
}

void Stream::refuse_capture(const char* what) const {
  graph()->refuse(what);
}

void Stream::check_wait(cl_int status, const char* call) {
  if (status == CL_SUCCESS) [[likely]]
    return;
  cl::throw_error(status, call,
                  device_.name + ", reported late: it belongs to one of the last kernels, oldest first: " +
                      cl::recent_kernels(queue_));
}

void Stream::wait() {
  refuse_wait();
  drain();
  const uint64_t enqueued_before = enqueued();
  check_wait(cl::api().clFinish(queue_.handle), "clFinish");
  finished_.store(enqueued_before, std::memory_order_relaxed);
}

void Stream::synchronize() {
  wait();
  raise_device_error();
}

bool Stream::query() {
  refuse_wait();
  if (queue_.submitter && !queue_.submitter->is_drained()) return false;
  const uint64_t now = enqueued();
  if (now == finished_.load(std::memory_order_relaxed)) return true;
  std::lock_guard<std::mutex> lock(mutex_);
  if (!marker_ || marked_ != now) {
    if (marker_) cl::api().clReleaseEvent(marker_);
    marker_ = nullptr;
    DLB_CL(clEnqueueMarkerWithWaitList, queue_.handle, 0, nullptr, &marker_);
    DLB_CL(clFlush, queue_.handle);
    marked_ = now;
  }
  cl_int status = CL_QUEUED;
  DLB_CL(clGetEventInfo, marker_, CL_EVENT_COMMAND_EXECUTION_STATUS, sizeof status, &status, nullptr);
  if (status > CL_COMPLETE) return false;
  cl::api().clReleaseEvent(marker_);
  marker_ = nullptr;
  finished_.store(now, std::memory_order_relaxed);
  return true;
}

cl_mem Stream::error_buffer() {
  if (Graph* const captured = graph(); captured && &captured->stream() != this) [[unlikely]]
    return captured->stream().error_buffer();
  if (!error_buffer_) {
    std::lock_guard<std::mutex> lock(mutex_);
    if (!error_buffer_) {
      cl_int status = CL_SUCCESS;
      int64_t zeros[4] = {};
      cl_mem buffer = cl::api().clCreateBuffer(device_.context(), CL_MEM_READ_WRITE | CL_MEM_COPY_HOST_PTR,
                                               sizeof zeros, zeros, &status);
      cl::check(status, "clCreateBuffer");
      error_buffer_ = buffer;
    }
  }
  return error_buffer_;
}

cl_mem Stream::error_buffer_for_replay() {
  return ErrorBuffer(*this).mem();
}

void Stream::raise_device_error() {
  if (queue_.submitter) {
    queue_.submitter->note_wait();
    queue_.submitter->raise_late_error();
  }
  if (!error_pending_.exchange(false, std::memory_order_acquire)) return;
  drain();  // what shall be read may be recorded by launches that are still on their way
  int64_t words[3] = {};
  DLB_CL(clEnqueueReadBuffer, queue_.handle, error_buffer_, CL_TRUE, 0, sizeof words, words, 0, nullptr,
         nullptr);
  if (static_cast<int32_t>(words[0]) == 0) return;
  const int64_t zeros[3] = {};
  DLB_CL(clEnqueueWriteBuffer, queue_.handle, error_buffer_, CL_TRUE, 0, sizeof zeros, zeros, 0, nullptr,
         nullptr);
  dlb::raise_device_error(words);
}

// A queue cannot gain profiling later, and having it on from the start makes every launch dearer on some
// drivers. Other threads may be enqueueing: the next queue begins behind all that the old one was given, so
// that no later command overtakes an earlier one. cl::Command waits for what just then went to the old queue.
// No user event holds the next queue back meanwhile: PoCL's device "basic" runs what such an event releases
// in clSetUserEventStatus, under the lock that it needs to do so.
void Stream::move_to(cl_command_queue next) {
  const cl_command_queue old = queue_.handle;
  if (next == old) return;
  cl_event before = nullptr;
  DLB_CL(clEnqueueMarkerWithWaitList, old, 0, nullptr, &before);
  cl_int status = cl::api().clFlush(old);
  if (status == CL_SUCCESS) status = cl::api().clEnqueueBarrierWithWaitList(next, 1, &before, nullptr);
  cl::api().clReleaseEvent(before);
  cl::check(status, "clEnqueueBarrierWithWaitList");
  queue_.handle = next;
  check_wait(cl::api().clFinish(old), "clFinish");
}

void Stream::use_profiling_queue() {
  drain();
  if (!profiling_) profiling_ = make_queue(device_, CL_QUEUE_PROFILING_ENABLE);
  move_to(profiling_);
}

void Stream::enable_profiling() {
  std::lock_guard<std::mutex> lock(mutex_);
  if (timed_) return;
  use_profiling_queue();
  timed_ = true;
}

void Stream::start_log() {
  std::lock_guard<std::mutex> lock(mutex_);
  use_profiling_queue();
  log_start_ = cl::read_clocks(profiling_);
  if (!log_) log_ = std::make_unique<cl::CommandLog>();
  log_->take();
  queue_.log.store(log_.get(), std::memory_order_release);
}

Stream::Log Stream::stop_log() {
  std::lock_guard<std::mutex> lock(mutex_);
  if (!queue_.log.exchange(nullptr)) return {};
  const cl_int status = cl::api().clFinish(profiling_);
  Log log{log_->take(), log_start_, cl::read_clocks(profiling_)};
  if (!timed_) move_to(plain_);
  check_wait(status, "clFinish");
  return log;
}

Stream& stream_of(c10::DeviceIndex device, c10::StreamId id) {
  if (device < 0) device = t_device;
  DeviceStreams& streams = streams_of(device);
  TORCH_CHECK(id >= 0 && id <= kStreamsPerPool, "ocl has no stream with id ", id);
  std::atomic<Stream*>& slot = streams.streams[static_cast<size_t>(id)];
  if (Stream* stream = slot.load(std::memory_order_acquire)) [[likely]]
    return *stream;
  cl::Device& cl_device = device_of(device);
  std::lock_guard<std::mutex> lock(streams.mutex);
  if (Stream* stream = slot.load(std::memory_order_acquire)) return *stream;
  auto* made = new Stream(cl_device, id);
  if (g_logging) made->start_log();
  slot.store(made, std::memory_order_release);
  return *made;
}

Stream& stream_of(const c10::Stream& stream) {
  return stream_of(stream.device_index(), stream.id());
}

Stream& next_pool_stream(c10::DeviceIndex device) {
  if (device < 0) device = t_device;
  return stream_of(device, 1 + static_cast<c10::StreamId>(streams_of(device).next++ % kStreamsPerPool));
}

cl::Device& device_of(c10::DeviceIndex index) {
  if (index < 0) index = t_device;
  cl::api();
  TORCH_CHECK(index < cl::device_count(), cl::no_device(index));
  return cl::device(index);
}

c10::DeviceIndex current_device() noexcept {
  return t_device;
}

void set_current_device(c10::DeviceIndex device) {
  if (device == t_device) return;
  device_of(device);
  t_device = device;
}

void unchecked_set_device(c10::DeviceIndex device) noexcept {
  t_device = device;
}

Stream& current_stream(c10::DeviceIndex device) {
  if (device < 0) device = t_device;
  return stream_of(device, t_streams[static_cast<size_t>(device)]);
}

c10::StreamId exchange_current_stream(c10::DeviceIndex device, c10::StreamId id) {
  if (device < 0) device = t_device;
  stream_of(device, id);
  const c10::StreamId previous = t_streams[static_cast<size_t>(device)];
  t_streams[static_cast<size_t>(device)] = static_cast<uint8_t>(id);
  return previous;
}

namespace {

// Calls a member of all streams of a device, also when one throws, and rethrows the first exception at the
// end, so that nothing is still running when the caller sees it. Leaves out streams that are captured, in
// which nothing runs, but not the one that is `refused`.
void wait_for_streams(c10::DeviceIndex device, void (Stream::*wait)(), const Stream* refused) {
  if (device < 0) device = t_device;
  device_of(device);
  std::exception_ptr first;
  for (auto& slot : streams_of(device).streams) {
    try {
      if (Stream* stream = slot.load(std::memory_order_acquire))
        if (!stream->graph() || stream == refused) (stream->*wait)();
    } catch (...) {
      if (!first) first = std::current_exception();
    }
  }
  if (first) std::rethrow_exception(first);
}

}  // namespace

void synchronize_device(c10::DeviceIndex device) {
  wait_for_streams(device, &Stream::synchronize, &current_stream(device));
}
void wait_for_device(c10::DeviceIndex device) {
  wait_for_streams(device, &Stream::wait, nullptr);
}

bool start_logs() {
  if (g_logging.exchange(true)) return false;
  for_each_stream([](Stream& stream) { stream.start_log(); });
  return true;
}

std::vector<StreamLog> stop_logs() {
  g_logging = false;
  std::vector<StreamLog> logs;
  std::string errors;
  for_each_stream([&](Stream& stream) {
    try {
      Stream::Log log = stream.stop_log();
      if (!log.commands.empty())
        logs.push_back({stream.unwrap().device_index(), stream.id(), std::move(log)});
    } catch (const std::exception& error) {
      errors += errors.empty() ? error.what() : std::string("; ") + error.what();
    }
  });
  if (!errors.empty()) {
    TORCH_WARN("some times are missing from the profile: ", errors);
  }
  return logs;
}

std::vector<c10::DeviceIndex> used_devices() {
  std::vector<c10::DeviceIndex> devices;
  for_each_stream([&](Stream& stream) {
    const c10::DeviceIndex device = stream.unwrap().device_index();
    if (devices.empty() || devices.back() != device) devices.push_back(device);
  });
  return devices;
}

namespace {

// No call is left to raise what was found after the last synchronising one.
void report_at_exit(Stream& stream) noexcept {
  const auto say = [&](const char* what) {
    std::fprintf(stderr, "dlbackend: ocl:%d: found when the process ended: %s\n", stream.device().index,
                 what);
  };
  try {
    stream.raise_device_error();
  } catch (const c10::Error& error) {
    say(error.what_without_backtrace());
  } catch (const std::exception& error) {
    say(error.what());
  }
}

}  // namespace

void finish_all_queues() noexcept {
  if (cl::in_bad_fork()) return;
  for (DeviceStreams& streams : all_streams())
    for (auto& slot : streams.streams)
      if (Stream* stream = slot.load(std::memory_order_acquire)) {
        // clFinish might never return: a daemon thread may go on enqueueing.
        const cl_command_queue queue = stream->handle_now();
        cl_event marker = nullptr;
        cl_int status = cl::api().clEnqueueMarkerWithWaitList(queue, 0, nullptr, &marker);
        if (status == CL_SUCCESS) {
          cl::api().clFlush(queue);
          status = cl::api().clWaitForEvents(1, &marker);
          cl::api().clReleaseEvent(marker);
        }
        if (status == CL_SUCCESS)
          report_at_exit(*stream);
        else
          cl::log(1, std::string("work at exit failed,") + cl::status_name(status));
      }
}

}  // namespace dlb
