// One thread of lowest priority that builds and checks kernels while the process works.
#pragma once
#include <functional>

namespace dlb::solver {

// Queues a task; starts the thread with the first. A task that throws is dropped. Never waits.
void in_background(std::function<void()> task);

// True once stop_background() was called: a long task ends early then.
bool background_stopping() noexcept;

}  // namespace dlb::solver
