// Estimates of time for ops bound by arithmetic on a device, from its rates.
#pragma once
#include <algorithm>

#include "solver/device_rates.h"

namespace dlb::solver {

// Microseconds of `launches` kernels that take so many cycles of every core one after the other, on a
// CPU-like device. A cycle is the time in which a core does 16 multiply-adds of float32: one vector of 512
// bits or two of 256. Fractions of a launch stand for the work with which a kernel begins.
inline double cycles_microseconds(double launches, double cycles, const cl::Device& device) {
  constexpr double kOperationsPerCycle = 2 * 16;
  const DeviceRates& rates = rates_of(device);
  return launches * rates.launch_us + cycles * kOperationsPerCycle * device.compute_units / rates.float32;
}

// Microseconds of so many operations in a kernel of which each work-item computes one result in the plainest
// way: most of its time it waits for memory.
inline double reference_microseconds(double operations, c10::ScalarType dtype, const cl::Device& device) {
  const DeviceRates& rates = rates_of(device);
  const bool cpu = device.cls == cl::DeviceClass::kCpu;
  const double times = cpu ? 320 : 1000;  // of what registers allow
  // On a GPU each work-item waits for its elements one after the other, which takes as long as several
  // kernels take to start. Without that, small problems would be left to a kernel that is there to check
  // others.
  const double launches = cpu ? 2 : 7;
  return launches * rates.launch_us + times * operations / rates.plain(dtype);
}

// Microseconds of plain tiles (kernels/common/plain_tile.clh): so many work-groups that each sum over
// `depth`.
inline double plain_tile_microseconds(double operations, double groups, double depth, c10::ScalarType dtype,
                                      const cl::Device& device) {
  // Of what registers allow; and a stage of one work-group alone, which waits for memory.
  constexpr double kShare = 0.1, kStage = 1, kDepthOfStage = 16;
  const DeviceRates& rates = rates_of(device);
  const double alone =
      kStage * depth / kDepthOfStage * std::min(1.0, device.compute_units / std::max(groups, 1.0));
  return 2 * rates.launch_us + std::max(operations / (kShare * rates.plain(dtype)), alone);
}

}  // namespace dlb::solver
