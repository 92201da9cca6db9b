// Work shared by several threads of the host.
#pragma once
#include <signal.h>

#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "cl/build_mode.h"
#include "cl/log.h"

namespace dlb::cl {

// While it lives, threads that the calling one starts take no signals: those are for threads that know
// what to do with them.
class WithoutSignals {
 public:
  WithoutSignals() noexcept {
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before_);
  }
  ~WithoutSignals() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  WithoutSignals(const WithoutSignals&) = delete;

 private:
  sigset_t before_;
};

// Has a thread of its own run work(), which must not throw, and does not wait for it. False where the system
// gives no more, of which the log says `what` it was for.
template <class Work>
bool start_detached(Work work, const char* what) {
  const WithoutSignals blocked;
  try {
    std::thread(std::move(work)).detach();
    return true;
  } catch (const std::system_error&) {
    log_dropped(what);
    return false;
  }
}

// Runs `work` on the calling thread and at the same time on `threads` - 1 others, or fewer where the system
// gives no more. Returns when all have ended. On the other threads `work` must not throw.
template <class Work>
void run_on_threads(size_t threads, Work& work) {
  std::vector<std::jthread> others;  // joined too when work() throws here
  try {
    for (size_t i = 1; i < threads; ++i)
      others.emplace_back([&work, mode = build_mode()] {
        const WithBuildMode same(mode);
        work();
      });
  } catch (const std::system_error&) {
    log_dropped("starting another thread");  // those that there are do all the work
  }
  work();
}

}  // namespace dlb::cl
