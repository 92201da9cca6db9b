// The ring of launches, and the thread that empties it.
#include "cl/submitter.h"

#include <pthread.h>

#include <chrono>
#include <cstring>
#include <system_error>
#include <thread>
#include <vector>

#include "cl/build_mode.h"
#include "cl/builders.h"
#include "cl/kernel.h"
#include "cl/log.h"
#include "cl/queue.h"
#include "cl/settings.h"
#include "cl/threads.h"

namespace dlb::cl {
namespace {

constexpr auto kSpinTime = std::chrono::microseconds(50);  // longer than a caller takes from launch to launch

struct Submitters {
  std::mutex mutex;
  std::vector<Submitter*> all;
};
Submitters& submitters() {
  static auto* instance = new Submitters;
  return *instance;
}

}  // namespace

bool has_enqueue_thread(const Device& device) {
  static const std::string wanted = settings::enqueue_thread();
  return wanted.empty() ? !device.host_memory : wanted == "1";
}

Submitter::Submitter(Queue& queue) : LaunchSink(Kind::kRing), queue_(queue) {
  std::lock_guard<std::mutex> lock(submitters().mutex);
  submitters().all.push_back(this);
}

bool Submitter::is_profiled() const noexcept {
  return queue_.log.load(std::memory_order_relaxed) != nullptr;
}

// --- Callers
// ----------------------------------------------------------------------------------------------------------

void LaunchWriter::add(const void* value, size_t size, bool is_buffer) {
  const size_t bytes = record_aligned(sizeof(RecordedArgument)) + (value ? record_aligned(size) : 0);
  if (!fits_ || bytes_ + bytes > kMostBytes) [[unlikely]] {
    fits_ = false;
    return;
  }
  std::byte* const at = start_ + bytes_;
  new (at) RecordedArgument{static_cast<uint32_t>(size), value != nullptr, is_buffer};
  if (value) std::memcpy(at + record_aligned(sizeof(RecordedArgument)), value, size);
  bytes_ += bytes;
  arguments_++;
}

const LaunchRecord* LaunchWriter::written() {
  if (!fits_) [[unlikely]]
    return nullptr;
  LaunchRecord& record = *reinterpret_cast<LaunchRecord*>(start_);
  record.bytes = static_cast<uint32_t>(bytes_), record.arguments = arguments_;
  return &record;
}

bool Submitter::Launch::finish() {
  const LaunchRecord* const record = written();
  if (!record) [[unlikely]]
    return false;
  submitter_.publish(record->bytes);
  return true;
}

bool Submitter::start() noexcept {
  const WithoutSignals blocked;
  try {
    ring_ = std::make_unique<std::byte[]>(kRingBytes);
    std::thread([this] { work(); }).detach();
  } catch (const std::exception&) {
    ring_.reset();
    stopped_ = true;
    log_dropped("starting the thread of a stream");  // callers do its work
  }
  return ring_ != nullptr;
}

// Room for one launch in one piece; null where there is no thread.
std::byte* Submitter::reserve() {
  if (!ring_ && (stopped_ || !start())) return nullptr;
  const auto wait_for_room = [&] {
    while (kRingBytes - (written_.load(std::memory_order_relaxed) - done_.load(std::memory_order_acquire)) <
           kMostBytes) {
      std::lock_guard<std::mutex> lock(submitters_);
      submit_some();
    }
  };
  wait_for_room();
  size_t at = written_.load(std::memory_order_relaxed) % kRingBytes;
  if (const size_t rest = kRingBytes - at; rest < kMostBytes) {
    LaunchRecord& end = *reinterpret_cast<LaunchRecord*>(ring_.get() + at);
    end.kernel = nullptr, end.bytes = static_cast<uint32_t>(rest);  // both fit in what is left, kRecordAlign
    publish(rest);
    wait_for_room();
    at = 0;
  }
  return ring_.get() + at;
}

// The order of the store and the load of asleep_, and of the thread's to the contrary, is what lets neither
// miss the other.
void Submitter::publish(size_t bytes) noexcept {
  written_.store(written_.load(std::memory_order_relaxed) + bytes, std::memory_order_seq_cst);
  if (asleep_.load(std::memory_order_seq_cst) && asleep_.exchange(0)) asleep_.notify_one();
}

void Submitter::wait_until_drained() noexcept {
  if (in_bad_fork()) return;
  const uint64_t target = written_.load(std::memory_order_acquire);
  while (done_.load(std::memory_order_acquire) < target) {
    std::lock_guard<std::mutex> lock(submitters_);
    submit_some();
  }
}

void Submitter::drain_all() noexcept {
  if (in_bad_fork()) return;  // where another thread may have held the lock
  std::lock_guard<std::mutex> lock(submitters().mutex);
  for (Submitter* submitter : submitters().all) submitter->drain();
}

void Submitter::raise_late_error() {
  if (!failed_.load(std::memory_order_relaxed)) [[likely]]
    return;
  std::exception_ptr error;
  {
    std::lock_guard<std::mutex> lock(error_mutex_);
    failed_ = false;
    error = std::exchange(error_, nullptr);
  }
  if (error) std::rethrow_exception(error);
}

// --- Those who submit
// -------------------------------------------------------------------------------------------------

void Submitter::submit(const std::byte* at) noexcept {
  const LaunchRecord& record = *reinterpret_cast<const LaunchRecord*>(at);
  // Whoever does this, the program waits for the launches.
  const WithBuildMode mode({.deferred = true});
  try {
    // Drivers load a program when the kernels that run have ended, so that a first iteration's programs would
    // be loaded one by one between its kernels: all that are asked for are loaded first.
    if (!record.kernel->is_made()) [[unlikely]]
      wait_for_builders();
    record.kernel->launch_now(queue_, record.range, [&](Kernel::Arguments& list) {
      for_each_argument(
          record, [&](const void* value, size_t size, bool is_buffer) { list.set(value, size, is_buffer); });
    });
  } catch (...) {
    std::lock_guard<std::mutex> lock(error_mutex_);
    if (!error_) error_ = std::current_exception();
    failed_ = true;
  }
}

bool Submitter::submit_some() {
  const uint64_t first = done_.load(std::memory_order_relaxed);
  uint64_t done = first;
  for (uint32_t i = 0; i < kMostAtOnce && done != written_.load(std::memory_order_acquire); i++) {
    const std::byte* const at = ring_.get() + done % kRingBytes;
    const LaunchRecord& record = *reinterpret_cast<const LaunchRecord*>(at);
    if (record.kernel) submit(at);
    done += record.bytes;
    done_.store(done, std::memory_order_release);
  }
  return done != first;
}

// True when there is something to submit, false when there was not for a while.
bool Submitter::spin() const noexcept {
  const auto end = std::chrono::steady_clock::now() + kSpinTime;
  do
    for (int i = 0; i < 32; i++) {
      if (!is_drained()) return true;
#if defined(__x86_64__)
      __builtin_ia32_pause();
#endif
    }
  while (std::chrono::steady_clock::now() < end);
  return false;
}

void Submitter::work() {
  pthread_setname_np(pthread_self(), "ocl submits");
  for (;;) {
    bool some;
    do {
      std::lock_guard<std::mutex> lock(submitters_);
      some = submit_some();
    } while (some);
    if (spin()) continue;
    // Commands that are enqueued must begin, though they are fewer than usually flushed.
    if (queue_.device->flush_needed) api().clFlush(queue_.handle.load(std::memory_order_acquire));
    asleep_.store(1, std::memory_order_seq_cst);
    if (written_.load(std::memory_order_seq_cst) == done_.load(std::memory_order_relaxed)) asleep_.wait(1);
    asleep_.store(0, std::memory_order_relaxed);
  }
}

}  // namespace dlb::cl
