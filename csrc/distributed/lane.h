// A lane of a segment: a thread of this rank, and the steps in which it exchanges data with the other ranks'.
#pragma once
#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <vector>

#include "distributed/segment.h"

namespace dlb::distributed {

// One collective of the ranks of a host, in steps of what fits into a half. In each step every rank puts data
// into its own half; reduces, when all have; and takes data from the others' halves, when all have reduced. A
// rank writes a step while others reduce or read the one before. What is empty is not waited for.
struct Exchange {
  using Action = std::function<void(size_t step, uint64_t half)>;
  uint64_t signature = 0;  // of what the collective is: all ranks must have the same
  size_t steps = 0;
  Action write, reduce, read;
};

class Lane : public std::enable_shared_from_this<Lane> {
 public:
  // `ranks`: those of this host in the group, by their index in the segment; `index`: this rank's.
  Lane(std::shared_ptr<Segment> segment, int lane, int index, std::vector<int> ranks);

  // Runs tasks one after the other, on a thread that the first begins.
  void post(std::function<void()> task);
  // Ends the thread after what was posted.
  void stop();

  // Called by tasks. Throws std::runtime_error that names the rank: as soon as its process ends, when it
  // keeps this one waiting for `timeout`, when it is at another collective, and when one failed before.
  void run(const Exchange& exchange, std::chrono::milliseconds timeout);
  // Tells the other ranks that this one is out of step.
  void fail() { segment_->fail(index_); }

  int index() const { return index_; }
  int count() const { return static_cast<int>(ranks_.size()); }
  char* memory(int index, uint64_t half) const { return segment_->half(lane_, index, half); }

 private:
  using Counter = std::atomic<uint64_t> Progress::*;
  void serve();
  void write(const Exchange& exchange, uint64_t base, size_t step, std::chrono::milliseconds timeout);
  void await_all(Counter counter, uint64_t least, std::chrono::milliseconds timeout) const;
  void await(int peer, Counter counter, uint64_t least, std::chrono::milliseconds timeout) const;
  [[noreturn]] void raise_failed(int failed) const;
  void check_signature(uint64_t step, uint64_t signature) const;
  void publish(Counter counter, uint64_t value) const;
  std::string name_of(int peer) const;

  const std::shared_ptr<Segment> segment_;
  const int lane_, index_;
  const std::vector<int> ranks_;
  uint64_t steps_ = 0;  // of all collectives so far

  std::mutex mutex_;
  std::condition_variable posted_;
  std::deque<std::function<void()>> tasks_;
  bool begun_ = false, stopping_ = false;
};

}  // namespace dlb::distributed
