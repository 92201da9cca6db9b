// One thread of lowest priority that builds and checks kernels while the process works.
#pragma once
#include <functional>

#include "cl/device.h"

namespace dlb::solver {

// Queues a task; starts the thread with the first. One that is for `when_idle` runs when there was none for a
// second, or somebody waits for all. An exception of a task is logged and dropped. Never waits.
void in_background(std::function<void()> task, bool when_idle = false);

// As in_background(), as soon as ready() holds, which the thread asks again and again: so that it does other
// tasks while programs are built for this one.
void in_background_when(std::function<bool()> ready, std::function<void()> task);

// For such tasks, before they build: waits while the program's own threads build kernels that they wait for,
// as in its first iteration, and until programs are optimised of which a first tier runs. Drivers compile one
// program at a time.
void wait_while_program_starts(const cl::Device& device);

// True once stop_background() was called: a long task ends early then.
bool background_stopping() noexcept;

// Waits until no kernel is being built, optimised or checked in the background.
void wait_for_background();
// Stops the background thread; at process exit.
void stop_background() noexcept;

}  // namespace dlb::solver
