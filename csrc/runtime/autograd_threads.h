// The threads in which PyTorch's autograd engine runs the backward functions of a device.
#pragma once
#include <chrono>

namespace dlb {

// To be called where a thread says which device it works for, as the engine's threads do when they start.
void note_autograd_thread() noexcept;

// Returns when the engine's thread of every device that was used has let go of the backward passes that it
// ran, or after `limit`. To be called before Python ends, without its lock. backward() returns as soon as the
// gradients are there; the thread then still drops what it knows of the pass, which can hold Python objects.
// A thread that asks for Python's lock while Python ends is ended by it, through C++ functions that may not
// be left so, and the process aborts.
void wait_for_autograd_threads(std::chrono::milliseconds limit) noexcept;

}  // namespace dlb
