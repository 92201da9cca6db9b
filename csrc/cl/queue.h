// An in-order command queue, the enqueueing of single commands to it, and the log of commands with the
// device's times that it keeps while it is profiled.
#pragma once
#include <array>
#include <atomic>
#include <cstdint>
#include <deque>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "cl/device.h"
#include "cl/library.h"

namespace dlb::cl {

class Submitter;

// What takes a queue's launches in place of the driver: the ring of a thread (cl/submitter.h), or a tape
// (cl/tape.h).
class LaunchSink {
 public:
  enum class Kind : uint8_t { kRing, kTape };
  bool is_tape() const { return kind_ == Kind::kTape; }

 protected:
  explicit LaunchSink(Kind kind) : kind_(kind) {}
  ~LaunchSink() = default;

 private:
  const Kind kind_;
};

struct Range {
  cl_uint dims = 1;
  size_t global[3] = {1, 1, 1};
  size_t local[3] = {1, 1, 1};
  static Range linear(size_t groups, size_t local) { return {1, {groups * local, 1, 1}, {local, 1, 1}}; }
  // Work-groups of one work-item, in three dimensions.
  static Range grid(int64_t x, int64_t y, int64_t z) {
    return {3, {static_cast<size_t>(x), static_cast<size_t>(y), static_cast<size_t>(z)}, {1, 1, 1}};
  }
};

// kLibrary stands for all kernels that one call of a library enqueues.
enum class CommandKind : uint8_t { kKernel, kLibrary, kWrite, kRead, kCopy };

// One command that a profiled queue ran.
struct CommandRecord {
  CommandKind kind = CommandKind::kKernel;
  const char* name = nullptr;    // of the kernel or library function; lives as long as the process
  const char* solver = nullptr;  // whose kernel it is, null for none; lives as long as the process
  uint64_t op = 0;               // CommandContext::op
  uint64_t bytes = 0;            // moved by a transfer
  Range range;                   // work-items of a kernel
  int32_t thread = 0;            // the system's id of the thread that enqueued it
  int64_t enqueue_start = 0, enqueue_end = 0;  // host ns since 1970
  uint64_t start = 0, end = 0;                 // device ns
};

// The op and the solver that the calling thread enqueues for; read while a queue is profiled.
struct CommandContext {
  uint64_t op = 0;  // the profiler's number of the innermost op, 0 outside of all
  const char* solver = nullptr;
};
CommandContext& command_context() noexcept;

// The commands of a queue. Thread-safe.
class CommandLog {
 public:
  // Takes over the events; `before` is null or a marker whose end is the record's start.
  void add(const CommandRecord& record, cl_event before, cl_event event);
  // The records since the last call, in order. Waits for the commands. Those that failed, or ran in a queue
  // without profiling, are left out.
  std::vector<CommandRecord> take();

 private:
  struct Pending {
    CommandRecord record;
    cl_event before, event;
  };
  void settle_first();
  std::mutex mutex_;
  std::deque<Pending> pending_;
  std::vector<CommandRecord> finished_;
};

// The driver's queue, and what is kept to tell where an error that the driver reports late came from.
struct Queue {
  std::atomic<cl_command_queue> handle{
      nullptr};                           // changes when the stream moves to a profiling queue or back
  std::atomic<CommandLog*> log{nullptr};  // null unless profiled
  Device* device = nullptr;
  Submitter* submitter = nullptr;  // null where callers launch themselves; set before the first launch
  // Where launches go: to the submitter, to the tape of a graph that is captured, or, where it is null, to
  // the driver.
  std::atomic<LaunchSink*> sink{nullptr};
  // Names of the last kernels, newest at (launches - 1) % 8. Threads that share the queue may race for a
  // slot.
  std::array<std::atomic<const char*>, 8> recent{};
  std::atomic<uint32_t> launches{0};         // since the process started; wraps
  std::atomic<cl_event> milestone{nullptr};  // behind a launch kMostInFlight / 2 to kMostInFlight ago
};

// A host that enqueues faster than the device works waits once this many kernels are in a queue: drivers
// without a bound of their own (PoCL) would take memory without end.
constexpr uint32_t kMostInFlight = 4096;

// The enqueueing of one command: construct, call the driver with queue() and event(), destruct. Logs the
// command when the queue is profiled. When the queue's handle has changed meanwhile, waits for the command,
// so that what this thread enqueues next comes after it.
class Command {
 public:
  // For a marker or barrier, which is not logged.
  explicit Command(Queue& queue) : queue_(queue), handle_(queue.handle.load(std::memory_order_acquire)) {}
  Command(Queue& queue, CommandKind kind, const char* name, uint64_t bytes = 0)
      : queue_(queue),
        log_(queue.log.load(std::memory_order_acquire)),
        handle_(queue.handle.load(std::memory_order_acquire)) {
    if (log_) [[unlikely]]
      begin(kind, name, bytes);
  }
  ~Command() {
    if (log_ || queue_.handle.load(std::memory_order_acquire) != handle_) [[unlikely]]
      end();
  }
  Command(const Command&) = delete;

  cl_command_queue queue() const { return handle_; }
  cl_event* event() { return log_ ? &event_ : nullptr; }
  void set_range(const Range& range) {
    if (log_) [[unlikely]]
      record_->range = range;
  }

 private:
  void begin(CommandKind kind, const char* name, uint64_t bytes) noexcept;
  void end() noexcept;
  Queue& queue_;
  CommandLog* const log_ = nullptr;
  const cl_command_queue handle_;
  // Used only while the queue has a log.
  cl_event before_, event_;
  std::optional<CommandRecord> record_;
};

// While it lives, what the thread enqueues is this solver's, where the queue is profiled. The name lives as
// long as the process.
class SolverScope {
 public:
  SolverScope(const Queue& queue, const char* solver) : active_(queue.log.load(std::memory_order_relaxed)) {
    if (active_) [[unlikely]]
      previous_ = std::exchange(command_context().solver, solver);
  }
  ~SolverScope() {
    if (active_) [[unlikely]]
      command_context().solver = previous_;
  }
  SolverScope(const SolverScope&) = delete;

 private:
  const bool active_;
  const char* previous_ = nullptr;
};

// Host and device clock at one moment, in ns.
struct ClockPair {
  int64_t host = 0;  // since 1970
  uint64_t device = 0;
};
// Reads both clocks by a marker in a profiling queue, to within the microseconds that an empty queue takes
// for the marker. Waits for the queue. Throws Error.
ClockPair read_clocks(cl_command_queue queue);

}  // namespace dlb::cl
