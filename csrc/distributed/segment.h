// Memory that the ranks of one host share, with what keeps them in step.
#pragma once
#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <string>

namespace dlb::distributed {

// The same on processes that can share memory with each other, and nowhere else; empty where none can.
// DLBACKEND_EMULATE=host=NAME gives it another value, so that one host may stand for several.
std::string host_identity();

// How far a rank is in one lane. Counters never go back; each is written by its rank alone.
struct alignas(128) Progress {
  std::atomic<uint64_t> written{0}, reduced{0}, done{0};  // steps
  uint64_t signature[2]{};                                // of what the steps in each half belong to
  std::atomic<uint32_t> changes{0};                       // a futex
  std::atomic<uint32_t> waiting{0};                       // ranks that sleep on it
};

// The memory has no name: it is a memfd, which ends with the last process that has it, however that ends.
// Other processes open it through /proc, which takes the same user. Each rank holds a lock on a byte of it,
// by which the others see that the rank is alive: the kernel drops the lock when the process ends.
//
// A segment has lanes, which are independent. Each has for every rank a Progress and two halves of kHalf
// bytes.
class Segment {
 public:
  static constexpr size_t kHalf = 256 << 10;

  // Makes one for `ranks` ranks, of which this process is the first. Throws std::runtime_error.
  explicit Segment(int ranks);
  // Joins, as the rank of that index, the one of another process's address(). Throws std::runtime_error.
  Segment(const std::string& address, int index);
  ~Segment();
  Segment(const Segment&) = delete;
  Segment& operator=(const Segment&) = delete;

  std::string address() const;
  int ranks() const;
  int lanes() const;
  Progress& progress(int lane, int index) const;
  char* half(int lane, int index, uint64_t step) const;

  // Whether the process of that rank runs. Says false of a zombie, too.
  bool is_alive(int index) const;
  int process(int index) const;

  // A collective that failed leaves the ranks out of step. The others raise as soon as they see it, and so
  // does every later collective. `failed` is the index of the first rank to say so, or -1.
  void fail(int index);
  int failed() const;

  // Sleeps until `progress` has changed since `changes` was read, or for the given time.
  static void sleep(Progress& progress, uint32_t changes, std::chrono::milliseconds time);
  // Tells those who sleep that `progress` has changed.
  static void announce(Progress& progress);

 private:
  struct Header;
  Header& header() const { return *static_cast<Header*>(memory_); }
  void map(int index);
  int fd_ = -1;
  void* memory_ = nullptr;
  size_t bytes_ = 0;
};

}  // namespace dlb::distributed
