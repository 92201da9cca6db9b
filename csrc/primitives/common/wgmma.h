// Code that the solvers for the warpgroup instructions of NVIDIA's Hopper GPUs share: their tiles and how
// fast they are.
#pragma once
#include <cstdint>

#include "kernels/common/wgmma.h"
#include "solver/device_rates.h"

namespace dlb::solver {

constexpr int64_t kWgmmaUnit = 16;    // bytes: what the copy engine's addresses and strides are multiples of
constexpr int64_t kWgmmaAlign = 512;  // of what lies in a workspace

// Tiles by their columns, and the share of the rate of mma instructions (DeviceRates::matrix16, matrix_tf32)
// that they reach, also in the three products of a float32: seen on an H100, where these instructions are
// faster than mma. Of 8 bits they do twice as much as of 16. Of 256 columns three products would need more
// registers than there are.
struct WgmmaTile {
  int columns;
  double speed, split_speed;
};
constexpr WgmmaTile kWgmmaTiles[] = {{256, 1.1, 0}, {128, 1.0, 0.65}, {64, 0.6, 0.48}};
// Operations per microsecond of mma instructions with operands of so many bytes.
inline double wgmma_rate(const DeviceRates& rates, int64_t bytes) {
  return bytes == 4 ? rates.matrix_tf32 : rates.matrix16 * (bytes == 1 ? 2 : 1);
}
constexpr double kWgmmaTileTime = 2.5;  // microseconds in which a compute unit begins and stores a tile

}  // namespace dlb::solver
