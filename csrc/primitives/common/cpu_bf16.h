// Code that the solvers by a CPU's instructions for bfloat16 share: see csrc/kernels/common/cpu_bf16.clh.
#pragma once
#include <algorithm>
#include <atomic>

#include "cl/device.h"
#include "cl/kernel.h"
#include "cl/rounding.h"
#include "kernels/common/cpu_bf16.h"
#include "runtime/element.h"
#include "runtime/fetch_kernel.h"
#include "solver/solver.h"

namespace dlb::solver {

constexpr int kBf16Tile = params::BF16_TILE, kBf16Depth = params::BF16_DEPTH;
constexpr int64_t kBf16Bytes = params::BF16_TILE_BYTES;

// Cycles of one tile. Cores slow down on AMX tiles; the figures are measured there.
constexpr double kBf16Copy = 70, kBf16Transpose = 130, kBf16Scatter = 1500;

// Cycles of multiplying two tiles: on AMX tiles, or in vectors (256 instructions).
inline double bf16_multiply(const cl::Device& device) {
  return device.bf16() == cl::Bf16::kTiles ? 30 : 250;
}

// Whether a compiler without the intrinsics has been met: no use in asking it again for every problem.
inline std::atomic<bool>& bf16_fails_to_build() {
  static std::atomic<bool> fails{false};
  return fails;
}

inline cl::Kernel& bf16_kernel(cl::Device& device, std::initializer_list<const char*> files,
                               const char* name) {
  const char* tiles = device.bf16() == cl::Bf16::kTiles ? " -DAMX_TILES" : "";
  try {
    return fetch_kernel(device, files, name, element_option(c10::ScalarType::BFloat16) + tiles);
  } catch (const cl::Error& error) {
    if (error.code == CL_BUILD_PROGRAM_FAILURE) bf16_fails_to_build() = true;
    throw;
  }
}

inline Applicability bf16_applicable(c10::ScalarType dtype, const cl::Device& device) {
  if (device.cls != cl::DeviceClass::kCpu) return Applicability::no("for CPU-like devices");
  if (dtype != c10::ScalarType::BFloat16) return Applicability::no("for bfloat16");
  if (device.bf16() == cl::Bf16::kNone)
    return Applicability::no("needs PoCL on a CPU with AMX or AVX-512 for bfloat16");
  if (bf16_fails_to_build()) return Applicability::no("the driver's compiler lacks the CPU's instructions");
  return Applicability::yes();
}

inline int64_t bf16_tiles(int64_t elements) {
  return ceil_div(elements, kBf16Tile);
}

// Bytes of scratch for blocks of m x n with parts of k of a reduction of `depth`; see Bf16Block.
inline uint64_t bf16_scratch(int64_t m, int64_t n, int64_t k, int64_t depth) {
  const int64_t steps = ceil_div(k, kBf16Depth), quads = depth <= k ? 1 : ceil_div(m, 32) * ceil_div(n, 32);
  return params::BF16_CONFIG_BYTES + (2 + 4 * quads + (bf16_tiles(n) + 2) * steps) * kBf16Bytes;
}

}  // namespace dlb::solver
