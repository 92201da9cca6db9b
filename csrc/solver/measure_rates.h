// Measures a device's rates with small kernels, once per device and driver.
#pragma once
#include "solver/device_rates.h"

namespace dlb::solver {

// Measures all rates, which takes a few tenths of a second of the device's time and a moment of its
// compiler's, and stores them for later processes. A type that the device does not have, or whose kernel its
// compiler does not build, keeps its derived rate or ratio to float32's. Holds the device's measuring queue
// for a few milliseconds at a time. Throws cl::Error.
DeviceRates measure_rates(cl::Device& device);

// To be called when a problem is chosen for by estimate: where nothing was measured yet, queues that in the
// background, once per process, for the processes that follow. Never waits. Does nothing in find mode `fast`,
// which measures nothing, while choices are to be deterministic, and where results cannot be stored.
void note_first_choice(cl::Device& device);

}  // namespace dlb::solver
