// The thread of a stream that hands launches to the driver, so that the caller of an op does not pay for
// that.
#pragma once
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <mutex>

#include "cl/launch_record.h"

namespace dlb::cl {

struct Device;

// Whether the device's streams have a thread that launches (DLBACKEND_ENQUEUE_THREAD). A device that
// computes on the host's cores needs these itself.
bool has_enqueue_thread(const Device& device);

// Callers record launches, and a thread gives them to a queue's driver in their order. Other commands for the
// queue must come after drain(), and so must the release of buffers and kernels that launches may still name.
// Lives as long as the process. Thread-safe.
//
// A launch that the driver refuses is reported late: raise_late_error(), which synchronising calls call,
// throws what the launch would have thrown. Later launches do not throw it: their callers would take the
// error for their own.
class Submitter final : public LaunchSink {
 public:
  // The first launch starts the thread.
  explicit Submitter(Queue& queue);
  Submitter(const Submitter&) = delete;

  // Whether the next launch shall be written down. It shall not while the queue is profiled, whose commands
  // know the thread that they come from, nor shortly after the host has waited for the device: then a caller
  // has probably few launches before it waits again, and another thread would only make the way longer; but
  // behind launches that are still on their way it would have to wait for those.
  bool takes_next() noexcept {
    const uint32_t since = since_wait_.load(std::memory_order_relaxed);
    if (since < kLaunchesByCaller && is_drained()) {
      since_wait_.store(since + 1, std::memory_order_relaxed);
      return false;
    }
    return takes_unmade();
  }
  // Whether a launch whose kernel is still being built shall be: always, so that no caller waits for the
  // build.
  bool takes_unmade() const { return !stopped_.load(std::memory_order_relaxed) && !is_profiled(); }

  // A launch while it is written down; other callers wait. Nothing is launched unless finish() is called.
  class Launch : public LaunchWriter {
   public:
    // Waits while the ring is full.
    Launch(Submitter& submitter, Kernel& kernel, const Range& range)
        : Launch(submitter, kernel, range, std::unique_lock(submitter.writers_)) {}
    // Submits. False, and nothing is submitted, where the arguments had no room or there is no thread.
    bool finish();

   private:
    Launch(Submitter& submitter, Kernel& kernel, const Range& range, std::unique_lock<std::mutex> lock)
        : LaunchWriter(submitter.reserve(), kernel, range), submitter_(submitter), lock_(std::move(lock)) {}
    Submitter& submitter_;
    const std::unique_lock<std::mutex> lock_;
  };

  // Returns when the driver has all launches that were written down before.
  void drain() noexcept {
    if (!is_drained()) [[unlikely]]
      wait_until_drained();
  }
  bool is_drained() const noexcept {
    return done_.load(std::memory_order_acquire) == written_.load(std::memory_order_acquire);
  }

  // Throws what the first launch since the last call that failed would have thrown, if any did.
  void raise_late_error();

  // To be called when the host has waited for the device.
  void note_wait() noexcept { since_wait_.store(0, std::memory_order_relaxed); }

  // Drains the launches of all queues: before a buffer or a kernel is released.
  static void drain_all() noexcept;

 private:
  static constexpr uint32_t kLaunchesByCaller = 8;   // after a wait
  static constexpr size_t kRingBytes = 1024 * 1024;  // some 3,000 launches, an iteration of most networks
  static constexpr size_t kMostBytes = LaunchWriter::kMostBytes;
  static constexpr uint32_t kMostAtOnce = 64;  // launches for which the lock of those who submit is held

  bool is_profiled() const noexcept;
  bool start() noexcept;  // the thread; false where the system gives none
  std::byte* reserve();
  void publish(size_t bytes) noexcept;
  void wait_until_drained() noexcept;
  bool submit_some();  // under submitters_; false when there was nothing
  void submit(const std::byte* record) noexcept;
  void work();  // of the thread
  bool spin() const noexcept;

  Queue& queue_;
  std::unique_ptr<std::byte[]> ring_;
  std::mutex error_mutex_;
  std::exception_ptr error_;
  std::atomic<bool> failed_{false}, stopped_{false};

  // Members that callers write.
  alignas(64) std::mutex writers_;
  std::atomic<uint32_t> since_wait_{0};
  std::atomic<uint64_t> written_{0};  // bytes since the beginning
  // Members that submitting threads write: the submitter's own, and callers that cannot wait until it awakes.
  alignas(64) std::mutex submitters_;
  std::atomic<uint64_t> done_{0};
  alignas(64) std::atomic<uint32_t> asleep_{0};
};

}  // namespace dlb::cl
