// One thread of lowest priority that builds and checks kernels while the process works.
#pragma once
#include <functional>

#include "cl/device.h"

namespace dlb::solver {

// Queues a task; starts the thread with the first. A task that throws is dropped. Never waits.
void in_background(std::function<void()> task);

// For such tasks, before they build: waits while the program's own threads build kernels that they wait for,
// as in its first iteration. Drivers compile one program at a time.
void wait_while_program_starts(const cl::Device& device);

// True once stop_background() was called: a long task ends early then.
bool background_stopping() noexcept;

}  // namespace dlb::solver
