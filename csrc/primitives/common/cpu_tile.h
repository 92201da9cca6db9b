// The register tile that GEMM and convolution kernels for CPU-like devices share:
// csrc/kernels/common/cpu_tile.clh.
#pragma once
#include <string>

#include "primitives/common/kernel_source.h"

namespace dlb::solver {

constexpr int kTileRows = 6;      // MR
constexpr int kTileColumns = 64;  // NR at most; blocks of columns are multiples of it on every device

// NR: 64 where vectors have 512 bits and there are 32 of them, else 16.
inline int tile_columns(const cl::Device& device) {
  constexpr uint32_t kWideVector = 16;  // floats
  return device.vector_floats < kWideVector ? 16 : kTileColumns;
}

// What weight gradients take in narrow tiles of more than their plans' cycles say, beside other directions
// and products of matrices: measured on a Zen 3, in turns with them.
inline double weight_grad_excess(const cl::Device& device) {
  return tile_columns(device) < kTileColumns ? 1.15 : 1;
}

// Build options of a program with common/cpu_tile.clh. Throws as element_option().
inline std::string cpu_tile_options(const cl::Device& device, c10::ScalarType type) {
  return element_option(type) + (tile_columns(device) < kTileColumns ? " -DNR=16" : "");
}

}  // namespace dlb::solver
