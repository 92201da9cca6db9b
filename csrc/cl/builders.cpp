#include "cl/builders.h"

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <mutex>
#include <set>
#include <utility>

#include "cl/build_mode.h"
#include "cl/compile_process.h"
#include "cl/library.h"
#include "cl/log.h"
#include "cl/program_entry.h"
#include "cl/submitter.h"
#include "cl/threads.h"

namespace dlb::cl {
namespace {

// Threads that build what is queued. A thread lives as long as there is something to build.
class Builders {
 public:
  // Whether launches wait for what is built, or nobody does.
  explicit Builders(bool urgent) : urgent_(urgent) {}

  // False where there is no thread.
  bool add(ProgramEntry& entry, bool first = false) {
    std::lock_guard<std::mutex> lock(mutex_);
    if (stopping_) return false;
    // Where there is no thread more, those that there are do all the work.
    if (threads_ < compile_processes(entry.device))
      threads_ += start_detached([this] { work(); }, "starting a thread that builds programs");
    if (threads_ == 0) return false;
    if (!first) {
      waiting_.push_back({&entry, asked_++});
    } else {
      waiting_.insert(waiting_.begin() + static_cast<ptrdiff_t>(first_), {&entry, asked_++});
      first_++;
    }
    return true;
  }

  // Waits for what was asked for before.
  void wait() {
    std::unique_lock<std::mutex> lock(mutex_);
    done_.wait(lock, [this, before = asked_] {
      return (waiting_.empty() || waiting_.front().number >= before) &&
             (building_.empty() || *building_.begin() >= before);
    });
  }

  void stop() {
    std::unique_lock<std::mutex> lock(mutex_);
    stopping_ = true;
    for (const Asked& asked : waiting_) end(*asked.entry);
    waiting_.clear();
    first_ = 0;
    done_.notify_all();
    at_rest_.wait(lock, [this] { return threads_ == 0; });
  }

 private:
  void work() {
    std::unique_lock<std::mutex> lock(mutex_);
    while (!waiting_.empty()) {
      const Asked asked = waiting_.front();
      waiting_.pop_front();
      first_ -= first_ > 0;
      building_.insert(asked.number);
      lock.unlock();
      if (urgent_)
        build_for_launches(*asked.entry);
      else
        build_for_nobody(*asked.entry);
      end(*asked.entry);
      lock.lock();
      building_.erase(asked.number);
      done_.notify_all();
    }
    threads_--;
    std::notify_all_at_thread_exit(at_rest_, std::move(lock));
  }

  static void build_for_launches(ProgramEntry& entry) {
    const WithBuildMode mode({.waited_by = WaitedBy::kLaunches, .elsewhere = true});
    const UrgentBuild urgent;  // also while another thread builds the entry
    try {
      {
        std::lock_guard<std::mutex> lock(entry.mutex);
        entry.make();
        entry.make_kernels();
      }
      make_room(entry);
    } catch (...) {
      log_dropped("building a program behind its caller");  // its launch throws the error again
    }
  }

  static void build_for_nobody(ProgramEntry& entry) {
    if (entry.under_way) return;  // launches wait for it, and others build it
    const WithBuildMode mode({.waited_by = WaitedBy::kNobody, .elsewhere = true});
    try {
      {
        std::lock_guard<std::mutex> lock(entry.mutex);
        entry.make();
      }
      make_room(entry);
    } catch (...) {
      log_dropped("building a program ahead");  // its first use throws the error again
    }
  }

  void end(ProgramEntry& entry) const { (urgent_ ? entry.under_way : entry.ahead) = false; }

  const bool urgent_;
  std::mutex mutex_;
  std::condition_variable at_rest_, done_;
  struct Asked {
    ProgramEntry* entry;
    uint64_t number;
  };
  std::deque<Asked> waiting_;
  size_t first_ = 0;             // so many of them were added as the first ones
  std::set<uint64_t> building_;  // their numbers
  uint64_t asked_ = 0;
  unsigned threads_ = 0;
  bool stopping_ = false;
};

Builders& builders() {
  static auto* instance = new Builders(true);
  return *instance;
}
Builders& builders_ahead() {
  static auto* instance = new Builders(false);
  return *instance;
}

}  // namespace

bool can_defer_builds(const Device& device) {
  return has_enqueue_thread(device) && compile_processes(device) > 0;
}

bool build_behind(ProgramEntry& entry) noexcept {
  if (in_bad_fork()) return false;
  if (entry.under_way.exchange(true)) return true;
  try {
    if (builders().add(entry)) return true;
  } catch (...) {
    log_dropped("having a program built behind its caller");  // who needs it builds it
  }
  entry.under_way = false;
  return false;
}

void build_ahead(ProgramEntry& entry, AheadFor what) noexcept {
  if (in_bad_fork() || entry.held || entry.failed || entry.ahead.exchange(true)) return;
  try {
    if (builders_ahead().add(entry, what == AheadFor::kProblem)) return;
  } catch (...) {
    log_dropped("having a program built ahead");  // who needs it builds it
  }
  entry.ahead = false;
}

void wait_for_builders() noexcept {
  if (!in_bad_fork()) builders().wait();
}

void stop_builders() noexcept {
  if (in_bad_fork()) return;
  builders().stop();
  builders_ahead().stop();
}

}  // namespace dlb::cl
