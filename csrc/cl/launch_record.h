// The record of a kernel's launch, which one thread writes and another reads: in the ring of a stream's
// thread (cl/submitter.h), or on a tape that is replayed (cl/tape.h).
#pragma once
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <new>
#include <vector>

#include "cl/queue.h"

namespace dlb::cl {

class Kernel;

// A number that a kernel is given. Where it has a source, each replay of a tape gives the kernel
// value + *source, as that is when the replay begins.
struct LiveWord {
  uint64_t value = 0;
  const uint64_t* source = nullptr;
  LiveWord operator+(uint64_t more) const { return {value + more, source}; }
};

// The place of a LiveWord that has a source, among a launch's arguments.
struct LivePlace {
  uint32_t argument;
  uint32_t offset;  // bytes into the argument
  const uint64_t* source;
};

constexpr size_t kRecordAlign = 16;

constexpr size_t record_aligned(size_t bytes) {
  return (bytes + kRecordAlign - 1) / kRecordAlign * kRecordAlign;
}

// The head of a record; its arguments follow. Without a kernel it fills the ring's end, where no launch had
// room.
struct LaunchRecord {
  Kernel* kernel;
  uint32_t bytes;  // with the arguments
  uint32_t arguments;
  Range range;
};

// The head of an argument; its value follows, unless it is local memory.
struct RecordedArgument {
  uint32_t size;
  uint8_t has_value, is_buffer;
};

// Calls f(value, size, is_buffer) for each argument of a record; a null value stands for local memory.
template <class F>
void for_each_argument(const LaunchRecord& record, F&& f) {
  const std::byte* at = reinterpret_cast<const std::byte*>(&record) + record_aligned(sizeof(LaunchRecord));
  for (uint32_t i = 0; i < record.arguments; i++) {
    const auto& argument = *reinterpret_cast<const RecordedArgument*>(at);
    at += record_aligned(sizeof(RecordedArgument));
    f(argument.has_value ? at : nullptr, argument.size, argument.is_buffer != 0);
    if (argument.has_value) at += record_aligned(argument.size);
  }
}

// Writes one record.
class LaunchWriter {
 public:
  static constexpr size_t kMostBytes = 8 * 1024;  // drivers take 4 KiB of arguments

  // `start` has room for kMostBytes, or is null: then nothing fits. `live` collects the places of words that
  // have a source; where it is null they are given once, as they are.
  LaunchWriter(std::byte* start, Kernel& kernel, const Range& range, std::vector<LivePlace>* live = nullptr)
      : start_(start), live_(live), bytes_(record_aligned(sizeof(LaunchRecord))), fits_(start_ != nullptr) {
    if (fits_) new (start_) LaunchRecord{&kernel, 0, 0, range};
  }
  LaunchWriter(const LaunchWriter&) = delete;

  // The next argument; a null value stands for that many bytes of local memory.
  void add(const void* value, size_t size, bool is_buffer);
  // The next argument has, at that offset, a word with a source.
  void note_source(size_t offset, const uint64_t* source) {
    if (live_) live_->push_back({arguments_, static_cast<uint32_t>(offset), source});
  }

 protected:
  // The record; null where its arguments had no room.
  const LaunchRecord* written();

 private:
  std::byte* const start_;
  std::vector<LivePlace>* const live_;
  size_t bytes_;
  uint32_t arguments_ = 0;
  bool fits_;
};

}  // namespace dlb::cl
