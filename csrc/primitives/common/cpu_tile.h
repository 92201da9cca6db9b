// The register tile that GEMM and convolution kernels for CPU-like devices share:
// csrc/kernels/common/cpu_tile.clh.
#pragma once
#include <c10/core/ScalarType.h>

#include <string>

#include "cl/device.h"
#include "kernels/common/cpu_tile.h"
#include "runtime/element.h"

namespace dlb::solver {

constexpr int kTileRows = params::TILE_ROWS;
constexpr int kTileColumns = params::TILE_COLUMNS;  // blocks of columns are multiples of it on every device

// Those of the device: narrow ones where vectors have fewer than 512 bits, and there are fewer than 32 of
// them.
inline int tile_columns(const cl::Device& device) {
  constexpr uint32_t kWideVector = 16;  // floats
  return device.vector_floats < kWideVector ? params::NARROW_TILE_COLUMNS : params::TILE_COLUMNS;
}

// The factor by which weight gradients in narrow tiles take longer than their plans' cycles say, beside other
// directions and products of matrices: measured on a Zen 3, in turns with them.
inline double weight_grad_excess(const cl::Device& device) {
  return tile_columns(device) < kTileColumns ? 1.15 : 1;
}

// Build options of a program with common/cpu_tile.clh. Throws as element_option().
inline std::string cpu_tile_options(const cl::Device& device, c10::ScalarType type) {
  return element_option(type) + (tile_columns(device) < kTileColumns ? " -DNARROW_TILE" : "");
}

}  // namespace dlb::solver
