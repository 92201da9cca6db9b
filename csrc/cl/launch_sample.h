// Launches that are noted in one process and repeated in another, for drivers that compile a kernel's machine
// code when it is first launched with a work-group size: the other process then has it compiled and kept in
// the driver's cache. What is repeated computes nothing: all values are zero, sizes too, and the buffers
// small. It is also found out how long the launches take, since what takes longest had best be optimised
// first.
#pragma once
#include <atomic>
#include <cstdint>
#include <mutex>
#include <string>
#include <vector>

#include "cl/device.h"
#include "cl/queue.h"

namespace dlb::cl {

// Notes one launch of a kernel for each machine code that it needs: the work-group size, and whether the grid
// is small.
class LaunchSampler {
 public:
  explicit LaunchSampler(std::string kernel) : kernel_(std::move(kernel)) {}

  // An argument as the driver was given it. The caller holds the kernel's lock, as for launch().
  enum class Kind : uint8_t { kValue, kBuffer, kLocal };
  void set(cl_uint position, size_t size, Kind kind);
  // A launch with the arguments that were set last. Whether it was noted.
  bool launch(const Range& range);
  // Finds out when a launch ends, and where it `counts` how long it takes: from the end of the one before,
  // for which this was called too. Takes over its event.
  void time(cl_event event, bool counts);

  // What was noted up to now, for repeat_launches(). Thread-safe, as is the count of launches.
  std::string noted() const;
  const std::string& kernel() const { return kernel_; }
  uint64_t launches() const noexcept { return launches_.load(std::memory_order_relaxed); }
  // How many launches were timed, and how long they took.
  uint64_t timed() const noexcept { return time_.launches.load(std::memory_order_relaxed); }
  uint64_t busy_ns() const noexcept { return time_.ns.load(std::memory_order_relaxed); }
  struct Time {
    std::atomic<uint64_t> launches{0}, ns{0};
  };

 private:
  struct Argument {
    Kind kind = Kind::kValue;
    size_t size = 0;
  };
  struct Shape {
    size_t local[3];
    bool small;
    bool operator==(const Shape&) const = default;
  };
  void note(const Range& range);

  const std::string kernel_;
  std::vector<Argument> arguments_;
  std::vector<Shape> known_;
  std::atomic<uint64_t> launches_{0};
  Time time_;
  mutable std::mutex mutex_;  // guards what follows
  std::string noted_;
};

// Launches kernels of the program as noted, with zeros for arguments and as few work-groups as have the same
// machine code. What cannot be launched is left out. Ends the process where a launch does not end.
void repeat_launches(Device& device, cl_program program, const std::string& noted);

}  // namespace dlb::cl
