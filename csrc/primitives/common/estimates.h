// Estimates of time on a device, from its rates.
#pragma once
#include "cl/device.h"
#include "primitives/common/memory_problem.h"
#include "solver/device_rates.h"

namespace dlb::solver {

// Bytes of all operands, each moved once.
inline double bytes_moved(const MemoryProblem& problem) {
  double bytes = 0;
  for (size_t i = 0; i < MemoryProblem::kOperands; i++)
    bytes +=
        static_cast<double>(problem.extents[i]) * static_cast<double>(c10::elementSize(problem.types[i]));
  return bytes;
}

// Microseconds of a kernel that moves each operand once, as fast as the device can, and of its launch.
inline double streaming_microseconds(const MemoryProblem& problem, const cl::Device& device) {
  const DeviceRates& rates = rates_of(device);
  return rates.launch_us + bytes_moved(problem) / rates.bytes;
}

// SolverRow::estimate of a solver that is expected to take `percent` of that time.
template <class P, int percent>
double streaming_estimate(const P& problem, const cl::Device& device) {
  return streaming_microseconds(problem, device) * percent / 100;
}

}  // namespace dlb::solver
