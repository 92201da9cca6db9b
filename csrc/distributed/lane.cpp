// Steps of an exchange, and waiting for peers that may be late or gone.
#include "distributed/lane.h"

#include <stdexcept>
#include <thread>
#include <utility>

#include "distributed/threads.h"

namespace dlb::distributed {
namespace {

// Looks so often before it sleeps: some ten microseconds, within which a peer that is as fast comes.
constexpr int kLooks = 300;

// Sleeps so long at most before it sees whether the peer is alive.
constexpr std::chrono::milliseconds kLookAfterPeer{100};

void pause_cpu() {
#ifdef __x86_64__
  __builtin_ia32_pause();
#else
  std::this_thread::yield();
#endif
}

}  // namespace

Lane::Lane(std::shared_ptr<Segment> segment, int lane, int index, std::vector<int> ranks)
    : segment_(std::move(segment)), lane_(lane), index_(index), ranks_(std::move(ranks)) {}

void Lane::post(std::function<void()> task) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (!std::exchange(begun_, true)) std::thread([self = shared_from_this()] { self->serve(); }).detach();
  tasks_.push_back(std::move(task));
  posted_.notify_one();
}

void Lane::stop() {
  std::lock_guard<std::mutex> lock(mutex_);
  stopping_ = true;
  posted_.notify_one();
}

void Lane::serve() {
  for (;;) {
    std::function<void()> task;
    {
      std::unique_lock<std::mutex> lock(mutex_);
      posted_.wait(lock, [this] { return !tasks_.empty() || stopping_; });
      if (tasks_.empty()) return;
      task = std::move(tasks_.front());
      tasks_.pop_front();
    }
    park_when_exiting();
    task();
  }
}

void Lane::run(const Exchange& exchange, std::chrono::milliseconds timeout) {
  const uint64_t base = steps_;
  steps_ += exchange.steps;
  if (exchange.steps > 0) write(exchange, base, 0, timeout);
  for (size_t step = 0; step < exchange.steps; ++step) {
    const uint64_t at = base + step;
    if (step + 1 < exchange.steps) write(exchange, base, step + 1, timeout);
    if (exchange.reduce || exchange.read) {
      await_all(&Progress::written, at + 1, timeout);
      check_signature(at, exchange.signature);
    }
    if (exchange.reduce) {
      exchange.reduce(step, at);
      publish(&Progress::reduced, at + 1);
    }
    if (exchange.read) {
      if (exchange.reduce) await_all(&Progress::reduced, at + 1, timeout);
      exchange.read(step, at);
    }
    publish(&Progress::done, at + 1);
  }
}

// A half is free when all have done the step before the last.
void Lane::write(const Exchange& exchange, uint64_t base, size_t step, std::chrono::milliseconds timeout) {
  const uint64_t at = base + step;
  await_all(&Progress::done, at < 2 ? 0 : at - 1, timeout);
  if (exchange.write) exchange.write(step, at);
  segment_->progress(lane_, index_).signature[at & 1] = exchange.signature;
  publish(&Progress::written, at + 1);
}

void Lane::publish(Counter counter, uint64_t value) const {
  Progress& own = segment_->progress(lane_, index_);
  (own.*counter).store(value, std::memory_order_release);
  Segment::announce(own);
}

void Lane::await_all(Counter counter, uint64_t least, std::chrono::milliseconds timeout) const {
  for (int peer = 0; peer < count(); ++peer)
    if (peer != index_) await(peer, counter, least, timeout);
}

void Lane::await(int peer, Counter counter, uint64_t least, std::chrono::milliseconds timeout) const {
  Progress& theirs = segment_->progress(lane_, peer);
  const auto there = [&] { return (theirs.*counter).load(std::memory_order_acquire) >= least; };
  for (int look = 0; look < kLooks; ++look) {
    if (there()) return;
    pause_cpu();
  }
  const auto end = std::chrono::steady_clock::now() + timeout;
  for (;;) {
    park_when_exiting();
    const uint32_t changes = theirs.changes.load();
    const bool alive = segment_->is_alive(peer);  // before there(): what ended may have been done before
    if (there()) return;
    if (!alive) throw std::runtime_error(name_of(peer) + " has ended");
    if (const int failed = segment_->failed(); failed >= 0) raise_failed(failed);
    if (std::chrono::steady_clock::now() >= end)
      throw std::runtime_error("timed out: " + name_of(peer) + " did not come within " +
                               std::to_string(timeout.count()) + " ms");
    Segment::sleep(theirs, changes, kLookAfterPeer);
  }
}

// A rank that has ended is named before one that failed because of that.
void Lane::raise_failed(int failed) const {
  for (int peer = 0; peer < count(); ++peer)
    if (peer != index_ && !segment_->is_alive(peer)) throw std::runtime_error(name_of(peer) + " has ended");
  throw std::runtime_error(failed == index_ ? "a collective of this group failed before"
                                            : name_of(failed) + " failed in this collective or one before");
}

void Lane::check_signature(uint64_t step, uint64_t signature) const {
  for (int peer = 0; peer < count(); ++peer)
    if (segment_->progress(lane_, peer).signature[step & 1] != signature)
      throw std::runtime_error(name_of(peer) +
                               " called for another collective, or with another size, dtype or "
                               "operation: the calls of all ranks must match");
}

std::string Lane::name_of(int peer) const {
  return "rank " + std::to_string(ranks_[static_cast<size_t>(peer)]) + " (process " +
         std::to_string(segment_->process(peer)) + " of this host)";
}

}  // namespace dlb::distributed
