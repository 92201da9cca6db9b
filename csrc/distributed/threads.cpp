// Threads for callbacks, and the end of all threads.
#include "distributed/threads.h"

#include <atomic>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <thread>

#include "distributed/pipeline.h"

namespace dlb::distributed {
namespace {

std::atomic<bool> g_exiting{false};

// As many threads as there were callbacks at once. They live as long as the process.
class CallbackThreads {
 public:
  static CallbackThreads& instance() {
    static auto* threads = new CallbackThreads;
    return *threads;
  }

  void run(std::function<void()> callbacks) {
    std::lock_guard<std::mutex> lock(mutex_);
    waiting_.push_back(std::move(callbacks));
    if (idle_ < waiting_.size())
      std::thread([this] { serve(); }).detach();
    else
      ready_.notify_one();
  }

  // Whether nothing is running or waiting to.
  bool is_idle() {
    std::lock_guard<std::mutex> lock(mutex_);
    return waiting_.empty() && busy_ == 0;
  }

 private:
  void serve() {
    std::unique_lock<std::mutex> lock(mutex_);
    for (;;) {
      ++idle_;
      ready_.wait(lock, [this] { return !waiting_.empty(); });
      --idle_;
      std::function<void()> callbacks = std::move(waiting_.front());
      waiting_.pop_front();
      ++busy_;
      lock.unlock();
      park_when_exiting();
      callbacks();
      callbacks = nullptr;
      lock.lock();
      --busy_;
    }
  }

  std::mutex mutex_;
  std::condition_variable ready_;
  std::deque<std::function<void()>> waiting_;
  size_t idle_ = 0, busy_ = 0;
};

}  // namespace

void run_callbacks(std::function<void()> callbacks) {
  CallbackThreads::instance().run(std::move(callbacks));
}

bool is_exiting() noexcept {
  return g_exiting.load(std::memory_order_acquire);
}

void park_when_exiting() noexcept {
  while (is_exiting()) std::this_thread::sleep_for(std::chrono::hours(1));
}

void stop_all(std::chrono::milliseconds limit) noexcept {
  const auto end = std::chrono::steady_clock::now() + limit;
  bool stopped = stop_all_pipelines(end);
  while (!CallbackThreads::instance().is_idle() && stopped) {
    stopped = std::chrono::steady_clock::now() < end;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  g_exiting.store(true, std::memory_order_release);
}

}  // namespace dlb::distributed
