// The logs of profiled queues, and reading the two clocks.
#include "cl/queue.h"

#include <sys/syscall.h>
#include <unistd.h>

#include <chrono>
#include <limits>
#include <utility>

namespace dlb::cl {
namespace {

constexpr size_t kMostPending = 2 * kMostInFlight;  // events that are held; commands before these are done

int64_t host_now() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::system_clock::now().time_since_epoch())
      .count();
}

bool read_time(cl_event event, cl_profiling_info which, uint64_t& ns) {
  cl_ulong value = 0;
  if (api().clGetEventProfilingInfo(event, which, sizeof value, &value, nullptr) != CL_SUCCESS) return false;
  ns = value;
  return true;
}

}  // namespace

CommandContext& command_context() noexcept {
  static thread_local CommandContext context;
  return context;
}

void CommandLog::add(const CommandRecord& record, cl_event before, cl_event event) {
  std::lock_guard<std::mutex> lock(mutex_);
  pending_.push_back({record, before, event});
  if (pending_.size() >= kMostPending) settle_first();
}

void CommandLog::settle_first() {
  Pending& first = pending_.front();
  api().clWaitForEvents(1, &first.event);
  CommandRecord& record = first.record;
  const bool known = (first.before ? read_time(first.before, CL_PROFILING_COMMAND_END, record.start)
                                   : read_time(first.event, CL_PROFILING_COMMAND_START, record.start)) &&
                     read_time(first.event, CL_PROFILING_COMMAND_END, record.end);
  if (known) finished_.push_back(record);
  if (first.before) api().clReleaseEvent(first.before);
  api().clReleaseEvent(first.event);
  pending_.pop_front();
}

std::vector<CommandRecord> CommandLog::take() {
  std::lock_guard<std::mutex> lock(mutex_);
  while (!pending_.empty()) settle_first();
  return std::exchange(finished_, {});
}

void Command::begin(CommandKind kind, const char* name, uint64_t bytes) noexcept {
  static thread_local const auto thread = static_cast<int32_t>(::syscall(SYS_gettid));
  const CommandContext& context = command_context();
  CommandRecord& record = record_.emplace();
  record.kind = kind;
  record.name = name;
  record.bytes = bytes;
  record.op = context.op;
  record.solver = context.solver;
  record.thread = thread;
  before_ = event_ = nullptr;
  // A library's event is that of its last kernel, so a marker notes where its first one begins.
  if (kind == CommandKind::kLibrary) api().clEnqueueMarkerWithWaitList(handle_, 0, nullptr, &before_);
  record.enqueue_start = host_now();
}

void Command::end() noexcept {
  if (log_) {
    record_->enqueue_end = host_now();
    if (event_)
      log_->add(*record_, before_, event_);
    else if (before_)
      api().clReleaseEvent(before_);
  }
  if (queue_.handle.load(std::memory_order_acquire) != handle_) api().clFinish(handle_);
}

ClockPair read_clocks(cl_command_queue queue) {
  // The device's clock is known to half of the time that the marker waits: 20 us in a time slice of this
  // process, but some milliseconds where it waits for the slices of other processes that use the GPU. Hence
  // several tries.
  constexpr int kTries = 8;
  constexpr int64_t kGoodEnough = 60'000, kMostTime = 100'000'000;  // ns
  ClockPair best;
  int64_t least = std::numeric_limits<int64_t>::max();
  const int64_t start = host_now();
  for (int i = 0; i < kTries || (least > kGoodEnough && host_now() - start < kMostTime); ++i) {
    cl_event marker = nullptr;
    uint64_t end = 0;
    const int64_t before = host_now();
    DLB_CL(clEnqueueMarkerWithWaitList, queue, 0, nullptr, &marker);
    api().clWaitForEvents(1, &marker);
    const int64_t after = host_now();
    // The time at which it was queued is of no use: NVIDIA takes it from another clock than starts and ends.
    if (read_time(marker, CL_PROFILING_COMMAND_END, end) && after - before < least) {
      least = after - before;
      best = {before + least / 2, end};
    }
    api().clReleaseEvent(marker);
  }
  return best;
}

}  // namespace dlb::cl
