// Code that the tiled solvers for GPU-class devices share: tile shapes, the time a launch takes, the parts in
// which a long reduction is divided, and the launch that adds the parts.
#pragma once
#include <vector>

#include "cl/kernel.h"
#include "cl/queue.h"
#include "kernels/common/split_reduce.h"
#include "primitives/common/epilogue.h"
#include "primitives/common/factor.h"
#include "primitives/common/specialised.h"
#include "runtime/allocator.h"
#include "solver/device_rates.h"
#include "solver/solver.h"

namespace dlb::solver {

// A work-group's tile of m x n results, its step along the reduction, and a work-item's block; see
// common/gpu_tile.clh.
struct GpuTile {
  const char* options;
  int m, n, k, block_m, block_n;
  int together;     // work-groups that a compute unit runs at once
  double speed[6];  // of a unit that runs 1, 2, ... of them; see kGpuTileShare
  // For tiles on tensor cores (common/gpu_mma.clh): the share of `speed`, which is that of 16 bits, that TF32
  // reaches. There k counts words, and block_m x block_n are a work-item's results.
  double tf32 = 0;
  bool mma() const { return tf32 > 0; }
  int items() const { return m / block_m * (n / block_n); }
  // Elements: words of four of Char, which stands for sums of integers of 8 bits.
  int depth(c10::ScalarType type) const {
    return mma() || type == c10::ScalarType::Char ? k * 4 / int(c10::elementSize(type)) : k;
  }
};

// A first guess chooses between few of them, so that a process builds few programs; the others are for
// measuring.
enum GpuTileIndex {
  kWideTile,
  kSquareTile,
  kThinTile,
  kLargeTile,
  kBlockTile,
  kMmaHalfTile,
  kMmaTf32Tile,
  kMmaWideTile,
  kMmaSquareTile,
  kGpuTiles
};
const GpuTile& gpu_tile(int index);
inline int mma_large_tile(c10::ScalarType type) {
  return type == c10::ScalarType::Float ? kMmaTf32Tile : kMmaHalfTile;
}

// Build options of a solver's kernels for GPU-class devices, without and with a tile.
std::string gpu_options(const cl::Device& device, c10::ScalarType type);
std::string gpu_tile_options(int tile, const cl::Device& device, c10::ScalarType type);

// Speeds of tiles are shares of this share of a unit's rate of multiply-adds in registers: what a unit
// reaches whose operands come from local memory. The speeds of those on tensor cores too, which local memory
// feeds as well; they also reach no more than kMmaShare of the tensor cores' own rate.
constexpr double kGpuTileShare = 0.65, kMmaShare = 0.8;
// A tiled kernel takes longer to start than one that does nothing: so many times as long.
constexpr double kGpuTileLaunches = 1.6;
constexpr uint64_t kGpuPartialBytes = uint64_t(256) << 20;  // of partial results, at most

// False with the reason for devices and dtypes that the tiled kernels are not for.
const char* gpu_tiles_refuse(const cl::Device& device, c10::ScalarType type);
// The same of plain tiles (kernels/common/plain_tile.clh).
const char* plain_tiles_refuse(const cl::Device& device, c10::ScalarType type);
// The same of those on tensor cores.
const char* gpu_mma_refuses(const cl::Device& device, c10::ScalarType type, bool tf32);
bool gpu_tile_fits(int tile, const cl::Device& device, c10::ScalarType type);

// A choice of tile and parts of the reduction, and its expected time in microseconds.
struct GpuPlan {
  int tile = -1, splits = 1;
  double time = 0;
};

// Adds the plans worth a thought for `tiles` independent tiles with a reduction of depth k and `outputs`
// results. Divides the reduction only where may_split and the partial results stay within a bound.
void add_gpu_plans(std::vector<GpuPlan>& plans, int tile, double tiles, int64_t k, double outputs,
                   bool may_split, c10::ScalarType type, const cl::Device& device, const DeviceRates& rates);
const GpuPlan& fastest(const std::vector<GpuPlan>& plans);

struct GpuTileConfig {
  int32_t tile = 0, splits = 0;  // a GpuTileIndex; parts of the reduction
  static constexpr const char* kNames[] = {"tile", "splits"};
};
inline Config config_of(const GpuPlan& plan) {
  return Config::of(GpuTileConfig{plan.tile, plan.splits});
}

// Configs of tiles: `first`, then the best of each other tile and unlike divisions of the reduction,
// leaving out what cannot win.
std::vector<Config> gpu_configs(const GpuPlan& first, std::vector<GpuPlan> plans, c10::ScalarType type);

// Whether a config, perhaps one that gpu_configs() leaves out, can run a reduction of depth k with so many
// results.
bool has_gpu_config(const Config& config, bool mma, int64_t k, double outputs, bool may_split,
                    c10::ScalarType type, const cl::Device& device);

// Elements of a partial result: float, or double for float64.
inline uint64_t partial_bytes(c10::ScalarType type) {
  return type == c10::ScalarType::Double ? sizeof(double) : sizeof(float);
}

// True when all values are multiples of four: what a vector access needs of strides and sizes.
inline bool in_fours(std::initializer_list<int64_t> values) {
  for (int64_t v : values)
    if (v % 4) return false;
  return true;
}

// The kernels of gemm/gpu_tiled.cl and common/split_reduce.cl, which share a program, with or without tensor
// cores. `options` besides the tile's.
cl::Kernel& gpu_gemm_kernel(cl::Device& device, c10::ScalarType type, int tile, const char* name,
                            const Epilogue& epilogue = {}, const std::string& options = "");
// gemm_gpu_tiled of a program for one problem, whose CONSTANTS are given.
std::shared_ptr<cl::Kernel> own_gpu_gemm_kernel(cl::Device& device, c10::ScalarType type, int tile,
                                                const Constants& constants, const Epilogue& epilogue,
                                                const std::string& options);

using params::SplitReduce;

// Second pass over partial results [splits, batch, m, n], by a kernel that has the epilogue.
void launch_split_reduce(cl::Kernel& kernel, cl::Queue& queue, SplitReduce arguments, c10::ScalarType type,
                         MemRef partial, const Buffer& c, const Buffer& d, const Factor& alpha,
                         const Factor& beta, const Bounds& bounds, const Epilogue& epilogue = {},
                         const EpilogueOperands& operands = {});

}  // namespace dlb::solver
