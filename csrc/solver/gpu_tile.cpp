// Tiles of GPU-class solvers and their cost model.
#include "solver/gpu_tile.h"

#include <algorithm>
#include <cmath>

namespace dlb::solver {
namespace {

// Speeds measured on an H200 with 3x3 and 1x1 convolutions and products of 512 to 4096.
constexpr GpuTile kTiles[] = {
    // most reuse per element loaded that still leaves three work-groups on a compute unit
    {"-DTM=64 -DTN=128 -DTK=16 -DWM=8 -DWN=8 -DLANES_M=4", 64, 128, 16, 8, 8, 1.0},
    // less waste where results are few, as in weight gradients; also the one that fits float64
    {"-DTM=64 -DTN=64 -DTK=16 -DWM=4 -DWN=8 -DLANES_M=4", 64, 64, 16, 4, 8, 0.84},
    // few rows: grouped convolutions, small batches of a linear layer
    {"-DTM=16 -DTN=128 -DTK=16 -DWM=8 -DWN=4 -DLANES_M=2", 16, 128, 16, 8, 4, 0.55},
};

constexpr double kFlopsPerMicrosecond = 0.33e6;  // of one compute unit, float32
constexpr double kBytesPerMicrosecond = 3e6;     // of the device
constexpr double kLaunch = 3;                    // microseconds, of a dependent kernel
constexpr int64_t kSetup = 32;                   // a tile's start and end cost as much as this depth
constexpr int64_t kShortestPart = 64;            // of the reduction; shorter ones only add partial results
constexpr uint64_t kPartialBytes = uint64_t(256) << 20;

// How much of a compute unit's speed so many work-groups reach: one alone waits for its loads.
double occupancy(double groups) {
  return groups <= 1 ? 0.85 : groups <= 2 ? 0.95 : 1.0;
}

uint64_t local_bytes(const GpuTile& tile, c10::ScalarType type) {
  // two tiles of each operand, and up to 11 KiB of the convolution's tables
  return 2 * partial_bytes(type) * tile.k * (tile.m + 4 + tile.n + 4) + (11 << 10);
}

}  // namespace

const GpuTile& gpu_tile(int index) {
  return kTiles[index];
}

bool gpu_tile_fits(int tile, const cl::Device& device, c10::ScalarType type) {
  return local_bytes(kTiles[tile], type) <= device.local_mem;
}

const char* gpu_tiles_refuse(const cl::Device& device, c10::ScalarType type) {
  if (device.cls != cl::DeviceClass::kGpu) return "for GPU-class devices";
  if (!is_float_storage(type) && type != c10::ScalarType::Double)
    return "computes in float and double: float32, float16, bfloat16 and float64";
  if (type == c10::ScalarType::Double && !device.fp64) return "the device has no double precision";
  if (device.max_work_group < 128) return "work-groups of 128 are too large for the device";
  if (!gpu_tile_fits(kSquareTile, device, type)) return "too little local memory";
  return nullptr;
}

void consider_gpu_tile(GpuPlan& best, int index, double tiles, int64_t k, double outputs, bool may_split,
                       const cl::Device& device) {
  const GpuTile& tile = kTiles[index];
  const double units = device.compute_units;
  int64_t previous = 0;
  // The slowest compute unit decides, so only part counts that fill a whole number of work-groups on each
  // matter.
  for (double load : {0., 1., 2., 3., 4., 5., 6., 8., 10., 12.}) {
    const int64_t most = std::max<int64_t>(k / kShortestPart, 1);
    const int64_t splits = std::clamp<int64_t>(static_cast<int64_t>(load * units / tiles), 1, most);
    if (splits == previous) continue;
    previous = splits;
    if (splits > 1 && (!may_split || splits * outputs * sizeof(float) > kPartialBytes)) break;
    const double groups = std::ceil(tiles * splits / units);
    const double flops = 2.0 * tile.m * tile.n * (round_up(ceil_div(k, splits), tile.k) + kSetup);
    double time = kLaunch + groups * flops / (kFlopsPerMicrosecond * tile.speed * occupancy(groups));
    if (splits > 1) time += kLaunch + (2 * splits + 1) * outputs * sizeof(float) / kBytesPerMicrosecond;
    if (best.tile < 0 || time < best.time) best = {index, static_cast<int>(splits), time};
  }
}

cl::Kernel& gpu_gemm_kernel(cl::Device& device, c10::ScalarType type, int tile, const char* name) {
  return cl::get_kernel(device, sources({"gpu_tile.clh", "gemm_gpu.cl", "split_reduce.cl"}),
                        element_option(type) + " " + kTiles[tile].options, name);
}

void launch_split_reduce(cl::Kernel& kernel, cl::Queue& queue, SplitReduce arguments, c10::ScalarType type,
                         MemRef partial, const Buffer& c, const Buffer& d, const Factor& alpha,
                         const Factor& beta) {
  constexpr int kItems = 128;
  arguments.partial_offset = static_cast<int64_t>(partial.offset / partial_bytes(type));
  arguments.c_offset = c.offset, arguments.d_offset = d.offset;
  const int64_t outputs = arguments.batch * arguments.m * arguments.n;
  kernel.launch_with(queue, cl::Range::linear(ceil_div(outputs, kItems), kItems), [&](auto& list) {
    list.add(partial.mem), list.add(c.mem), list.add(d.mem);
    add_factor(list, type, alpha), add_factor(list, type, beta);
    list.add(arguments);
  });
}

}  // namespace dlb::solver
