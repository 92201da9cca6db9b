// What the solvers on the AMX tiles of CPUs share: see csrc/kernels/amx.clh.
#pragma once
#include <algorithm>
#include <atomic>

#include "cl/program.h"
#include "solver/kernel_source.h"
#include "solver/solver.h"

namespace dlb::solver {

constexpr int kAmxTile = 16;         // rows and columns of a tile of sums
constexpr int kAmxDepth = 32;        // elements of the reduction in a tile of A or B
constexpr int64_t kAmxBytes = 1024;  // of a tile

// Cycles of one tile. Cores slow down under these instructions; the figures are measured there.
constexpr double kAmxMultiply = 30, kAmxCopy = 70, kAmxTranspose = 130, kAmxScatter = 1500;

// Whether a compiler without the intrinsics has been met: no use in asking it again for every problem.
inline std::atomic<bool>& amx_fails_to_build() {
  static std::atomic<bool> fails{false};
  return fails;
}

inline cl::Kernel& amx_kernel(cl::Device& device, std::initializer_list<const char*> files,
                              const char* name) {
  try {
    return embedded_kernel(device, files, element_option(c10::ScalarType::BFloat16), name);
  } catch (const cl::Error& error) {
    if (error.code == CL_BUILD_PROGRAM_FAILURE) amx_fails_to_build() = true;
    throw;
  }
}

inline Applicability amx_applicable(c10::ScalarType dtype, const cl::Device& device) {
  if (device.cls != cl::DeviceClass::kCpu) return Applicability::no("for CPU-like devices");
  if (dtype != c10::ScalarType::BFloat16) return Applicability::no("for bfloat16");
  if (!device.amx_bf16()) return Applicability::no("needs PoCL on a CPU with AMX for bfloat16");
  if (amx_fails_to_build()) return Applicability::no("the driver's compiler has no AMX");
  return Applicability::yes();
}

inline int64_t amx_tiles(int64_t elements) {
  return ceil_div(elements, kAmxTile);
}

// Bytes of scratch for blocks of m x n with parts of k of a reduction of `depth`; see AmxBlock.
inline uint64_t amx_scratch(int64_t m, int64_t n, int64_t k, int64_t depth) {
  const int64_t steps = ceil_div(k, kAmxDepth), quads = depth <= k ? 1 : ceil_div(m, 32) * ceil_div(n, 32);
  return 64 + (2 + 4 * quads + (amx_tiles(n) + 2) * steps) * kAmxBytes;
}

}  // namespace dlb::solver
