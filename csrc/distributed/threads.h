// Threads of the backend that belong to no group, and how they end with the process.
#pragma once
#include <chrono>
#include <functional>

namespace dlb::distributed {

// Runs what may call programs' callbacks, on one of as many threads as are needed for none to wait for
// another: a callback may wait for a collective whose own callbacks come later.
void run_callbacks(std::function<void()> callbacks);

// True once the process is about to exit with work pending. Threads then call neither the driver nor Python.
bool is_exiting() noexcept;

// Never returns when is_exiting(): the process's end ends the thread.
void park_when_exiting() noexcept;

// Ends the threads of all groups and waits for what they have to do, but not longer than `limit`: what is
// pending then (a collective without its peers) is left behind. To be called at exit, without Python's lock.
void stop_all(std::chrono::milliseconds limit) noexcept;

}  // namespace dlb::distributed
