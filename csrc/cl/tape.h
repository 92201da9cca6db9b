// A tape of commands that is replayed: what a captured graph (runtime/graph.h) is made of.
#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_set>
#include <vector>

#include "cl/launch_record.h"

namespace dlb::cl {

// Kernels with their arguments, copies and transfers, in the order in which they were put there. A launch on
// the tape has a kernel object of the driver's for itself, whose arguments are set once, and keeps that, its
// program and all buffers alive; so a replay only enqueues, and no eviction of a program harms it.
// Thread-safe.
class Tape final : public LaunchSink {
 public:
  // `errors` is the buffer that kernels report what they find wrong with their data to: replay() gives them
  // another in its place.
  Tape(Device& device, cl_mem errors);
  ~Tape();
  Tape(const Tape&) = delete;

  // A launch while it is put on the tape; other callers wait. Nothing is put there unless finish() is called.
  class Launch : public LaunchWriter {
   public:
    Launch(Tape& tape, Kernel& kernel, const Range& range)
        : Launch(tape, kernel, range, std::unique_lock(tape.mutex_)) {}
    // Builds the kernel where it is not built. Throws Error.
    void finish();

   private:
    Launch(Tape& tape, Kernel& kernel, const Range& range, std::unique_lock<std::mutex> lock)
        : LaunchWriter(tape.scratch_.data(), kernel, range, &tape.places_),
          tape_(tape),
          lock_(std::move(lock)) {
      tape.places_.clear();
    }
    Tape& tape_;
    const std::unique_lock<std::mutex> lock_;
  };

  // A copy within the device, and transfers from and to page-locked memory of the host, which the caller
  // keeps. Offsets and sizes are in bytes.
  void add_copy(cl_mem from, size_t from_offset, cl_mem to, size_t to_offset, size_t bytes);
  void add_write(const void* from, cl_mem to, size_t offset, size_t bytes);
  void add_read(cl_mem from, size_t offset, void* to, size_t bytes);

  // Device memory that holds these bytes as long as the tape does. Writes them by `queue`, in which nothing
  // else is enqueued meanwhile, and waits for that. Offsets are multiples of 64.
  struct Place {
    cl_mem mem;
    size_t offset;
  };
  Place hold(const void* data, size_t bytes, cl_command_queue queue);

  // Enqueues all of it. The caller has drained the queue's submitter, and no other thread replays the tape.
  // Throws Error.
  void replay(Queue& queue, cl_mem errors);

  // Whether a launch may report errors.
  bool reports_errors() const { return !error_arguments_.empty(); }
  // A line for each command, for people.
  std::string describe() const;

 private:
  enum class Kind : uint8_t { kLaunch, kCopy, kWrite, kRead };
  // A command. Copies and transfers use the second half.
  struct Node {
    Kind kind;
    cl_kernel kernel = nullptr;
    const std::string* name = nullptr;  // lives as long as the process
    Range range{};
    cl_mem from = nullptr, to = nullptr;
    size_t from_offset = 0, to_offset = 0, bytes = 0;
    void* host = nullptr;
  };
  // An argument with words that are read anew in each replay.
  struct LiveArgument {
    cl_kernel kernel;
    uint32_t argument;
    std::vector<std::byte> value;
    std::vector<std::pair<LivePlace, uint64_t>> words;  // and what is added to the source
  };
  // An argument that is the error buffer.
  struct ErrorArgument {
    cl_kernel kernel;
    uint32_t argument;
  };

  void put(const LaunchRecord& record);
  void set_arguments(cl_kernel kernel, const LaunchRecord& record);
  void keep(cl_mem buffer);
  void note_live(cl_kernel kernel, uint32_t argument, const void* value, size_t size);
  void set_errors(cl_mem errors);
  void set_live();
  void enqueue(Queue& queue, const Node& node);

  Device& device_;
  const cl_mem errors_;
  cl_mem errors_set_;
  std::mutex mutex_;
  std::vector<Node> nodes_;
  size_t launches_ = 0;  // of the nodes
  std::vector<LiveArgument> live_;
  std::vector<ErrorArgument> error_arguments_;
  std::unordered_set<cl_mem> kept_;
  // The memory of hold(), and how much of the last piece is used.
  std::vector<cl_mem> held_;
  size_t held_size_ = 0, held_used_ = 0;
  // Of the launch that is being written.
  alignas(kRecordAlign) std::array<std::byte, LaunchWriter::kMostBytes> scratch_;
  std::vector<LivePlace> places_;
};

}  // namespace dlb::cl
