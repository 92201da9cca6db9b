// Work shared by several threads of the host.
#pragma once
#include <system_error>
#include <thread>
#include <vector>

#include "cl/build_mode.h"

namespace dlb::cl {

// Runs `work` on the calling thread and on `threads` - 1 more at the same time, fewer where the system gives
// no more; returns when all have ended. On the other threads `work` must not throw.
template <class Work>
void run_on_threads(size_t threads, Work& work) {
  std::vector<std::jthread> others;  // joined too when work() throws here
  try {
    for (size_t i = 1; i < threads; ++i)
      others.emplace_back([&work, mode = build_mode()] {
        const WithBuildMode same(mode);
        work();
      });
  } catch (const std::system_error&) {  // a limit of threads: those there are do it all
  }
  work();
}

}  // namespace dlb::cl
