// Launches that are noted in one process and repeated in another, for drivers that compile a kernel's machine
// code when it is first launched with a work-group size: the other process then has it compiled and kept in
// the driver's cache. What is repeated computes nothing: all values are zero, sizes too, and the buffers
// small.
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

  // What was noted up to now, for repeat_launches(). Thread-safe, as is the count of launches.
  std::string noted() const;
  const std::string& kernel() const { return kernel_; }
  uint64_t launches() const noexcept { return launches_.load(std::memory_order_relaxed); }

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
  mutable std::mutex mutex_;  // guards what follows
  std::string noted_;
};

// Launches kernels of the program as noted, with zeros for arguments and as few work-groups as have the same
// machine code. What cannot be launched is left out. Ends the process where a launch does not end.
void repeat_launches(Device& device, cl_program program, const std::string& noted);

}  // namespace dlb::cl
