// Tiles of GPU-class solvers and their cost model.
#include "primitives/common/gpu_tile.h"

#include "cl/rounding.h"
#include "kernels/common/plain_tile.h"
#include "primitives/common/factor.h"
#include "primitives/common/specialised.h"
#include "runtime/element.h"
#include "runtime/fetch_kernel.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <cmath>

namespace dlb::solver {
namespace {

// Speeds fitted to 2100 measurements of convolutions and 190 of products on an H100, where together with
// kSetup and the time of a launch they tell times to 10 % and 20 % (mean deviation).
constexpr GpuTile kTiles[] = {
    // much reuse per element loaded, and three work-groups on a compute unit
    {"-DTM=64 -DTN=128 -DWM=8 -DWN=8 -DLANES_M=4", 64, 128, 16, 8, 8, 3, {.64, .78, .87}},
    // the one that fits float64, and small products
    {"-DTM=64 -DTN=64 -DWM=4 -DWN=8 -DLANES_M=4", 64, 64, 16, 4, 8, 3, {.5, .6, .7}},
    // few rows: grouped convolutions, small batches of a linear layer
    {"-DTM=16 -DTN=128 -DWM=8 -DWN=4 -DLANES_M=2", 16, 128, 16, 8, 4, 6, {.16, .28, .36, .42, .46, .52}},
    // a third less to load than the wide tile; two of its work-groups fill a unit
    {"-DTM=128 -DTN=128 -DWM=8 -DWN=8 -DLANES_M=4", 128, 128, 16, 8, 8, 2, {.75, .95}},
    // the square one with the wide one's blocks: fewer reads of local memory, more registers. Its work-groups
    // are
    // small, and a unit with one of them mostly waits
    {"-DTM=64 -DTN=64 -DWM=8 -DWN=8 -DLANES_M=4", 64, 64, 16, 8, 8, 6, {.27, .52, .61, .72, .74, .79}},
    // Those on tensor cores: speeds measured on an H200, where two of eight warps with 128 registers in place
    // of one with 200 were no faster. In 16 bits the eight warps of the first keep the tensor cores busier,
    // for TF32 the four of the second, which read less of local memory.
    {"-DTM=128 -DTN=128 -DWTM=64 -DWTN=32", 128, 128, 16, 8, 8, 1, {3.3}, .54},
    {"-DTM=128 -DTN=128 -DWTM=64 -DWTN=64", 128, 128, 16, 8, 16, 2, {1.5, 2.45}, 1},
    // convolutions in 16 bits, whose gathered loads take more work-items
    {"-DTM=64 -DTN=128 -DWTM=32 -DWTN=32", 64, 128, 16, 8, 4, 1, {2.1}, .58},
    {"-DTM=64 -DTN=64 -DWTM=32 -DWTN=32", 64, 64, 16, 8, 4, 2, {1.3, 1.85}, .7},
};
static_assert(std::size(kTiles) == kGpuTiles);

constexpr int64_t kSetup = 32;         // a tile's start and end cost as much as this depth
constexpr int64_t kShortestPart = 64;  // of the reduction; shorter ones only add partial results
constexpr size_t kMostConfigs = 6;
// A config that is expected to take so many times the first's time is left out. For float32 and 16 bits,
// whose speeds were fitted, 1.3 lost nothing; of float64 less is known.
constexpr double kHopeless = 1.5, kHopelessOfDouble = 3;

// Microseconds of a compute unit that runs so many work-groups of so much arithmetic each.
double unit_time(const GpuTile& tile, c10::ScalarType type, int64_t groups, double flops,
                 const cl::Device& device, const DeviceRates& rates) {
  const double units = device.compute_units;
  const bool int8 = type == c10::ScalarType::Char;
  double rate = kGpuTileShare * (tile.mma() || int8 ? rates.float32 : rates.plain(type)) / units,
         most = INFINITY;
  // Words of local memory have four integers of 8 bits for two numbers of 16, and tensor cores multiply twice
  // as many; instructions for four products, where there are such, are as fast as one of float32.
  if (int8) rate *= 2;
  if (tile.mma()) {
    const bool tf32 = type == c10::ScalarType::Float;
    rate *= tf32 ? tile.tf32 : 1;
    most = kMmaShare * (tf32 ? rates.matrix_tf32 : rates.matrix16) * (int8 ? 2 : 1) / units;
  }
  const auto at = [&](int64_t count) {
    return count ? count * flops / std::min(tile.speed[count - 1] * rate, most) : 0;
  };
  return groups / tile.together * at(tile.together) + at(groups % tile.together);
}

uint64_t local_bytes(const GpuTile& tile, c10::ScalarType type, const cl::Device& device) {
  // the convolution's tables: at most 20 bytes for each column and for two k of each work-item
  const uint64_t tables = 20 * (tile.n + 2 * tile.items()) + 256;
  // what emulation exchanges: at most 32 words of each work-item
  const uint64_t exchanged =
      device.tensor_cores == cl::TensorCores::kEmulated ? 32 * sizeof(uint32_t) * tile.items() : 0;
  if (tile.mma()) return 2 * sizeof(uint32_t) * tile.k * (tile.m + tile.n) + exchanged + tables;
  // two tiles of each operand
  return 2 * partial_bytes(type) * tile.k * (tile.m + 4 + tile.n + 4) + tables;
}

}  // namespace

const GpuTile& gpu_tile(int index) {
  return kTiles[index];
}

std::string gpu_options(const cl::Device& device, c10::ScalarType type) {
  // On CPUs only tests run these kernels. PoCL takes seconds to optimise a tile there, and optimises the
  // loops that fill a convolution's tables wrongly.
  return element_option(type) + (device.clang_on_host ? " -cl-opt-disable" : "");
}

std::string gpu_tile_options(int tile, const cl::Device& device, c10::ScalarType type) {
  const bool int8 = type == c10::ScalarType::Char;
  std::string options = gpu_options(device, int8 ? c10::ScalarType::Int : type) + " " + kTiles[tile].options +
                        " -DTK=" + std::to_string(kTiles[tile].depth(type));
  if (kTiles[tile].mma())
    options += device.tensor_cores == cl::TensorCores::kEmulated ? " -DMMA=2" : " -DMMA=1";
  else if (int8 && device.tensor_cores == cl::TensorCores::kMma)
    options += " -DNVIDIA_DOT";
  return options;
}

bool gpu_tile_fits(int tile, const cl::Device& device, c10::ScalarType type) {
  return local_bytes(kTiles[tile], type, device) <= device.local_mem &&
         kTiles[tile].items() <= int64_t(device.max_work_group);
}

const char* gpu_tiles_refuse(const cl::Device& device, c10::ScalarType type) {
  if (device.cls != cl::DeviceClass::kGpu) return "for GPU-class devices";
  if (!is_float_storage(type) && type != c10::ScalarType::Double && type != c10::ScalarType::Char)
    return "computes in float and double: float32, float16, bfloat16 and float64, and with int8";
  if (type == c10::ScalarType::Double && !device.fp64) return "the device has no double precision";
  if (device.max_work_group < 128) return "work-groups of 128 are too large for the device";
  if (!gpu_tile_fits(kSquareTile, device, type)) return "too little local memory";
  return nullptr;
}

const char* plain_tiles_refuse(const cl::Device& device, c10::ScalarType type) {
  if (const char* reason = gpu_tiles_refuse(device, type)) return reason;
  if (type == c10::ScalarType::Char) return "for floating point";
  if (device.max_work_group < params::PLAIN_ITEMS) return "its work-groups are too large for the device";
  const uint64_t bytes = uint64_t{params::PLAIN} * params::PLAIN * partial_bytes(type);
  return bytes > device.local_mem ? "too little local memory" : nullptr;
}

const char* gpu_mma_refuses(const cl::Device& device, c10::ScalarType type, bool tf32) {
  if (device.tensor_cores == cl::TensorCores::kNone)
    return "needs tensor cores: an NVIDIA GPU of compute capability 8.0 or later";
  if (type == c10::ScalarType::Float) {
    if (!tf32) return "would round float32 to TF32, which is not allowed (torch.backends.ocl.fp32_precision)";
  } else if (!is_float_storage(type) && type != c10::ScalarType::Char) {
    return "for float16, bfloat16 and int8, and float32 as TF32";
  }
  if (!gpu_tile_fits(kMmaSquareTile, device, type)) return "too little local memory";
  return nullptr;
}

void add_gpu_plans(std::vector<GpuPlan>& plans, int index, double tiles, int64_t k, double outputs,
                   bool may_split, c10::ScalarType type, const cl::Device& device, const DeviceRates& rates) {
  const GpuTile& tile = kTiles[index];
  const int step = tile.depth(type);
  const double units = device.compute_units;
  int64_t previous = 0;
  // The slowest compute unit decides, so only part counts that fill a whole number of work-groups on each
  // matter.
  for (double load : {0., 1., 2., 3., 4., 5., 6., 8., 10., 12.}) {
    const int64_t most = std::max<int64_t>(k / kShortestPart, 1);
    const int64_t splits = std::clamp<int64_t>(static_cast<int64_t>(load * units / tiles), 1, most);
    if (splits == previous) continue;
    previous = splits;
    if (splits > 1 && (!may_split || splits * outputs * sizeof(float) > kGpuPartialBytes)) break;
    const double flops = 2.0 * tile.m * tile.n * (round_up(ceil_div(k, splits), step) + kSetup);
    const auto groups = static_cast<int64_t>(std::ceil(tiles * splits / units));
    double time = kGpuTileLaunches * rates.launch_us + unit_time(tile, type, groups, flops, device, rates);
    if (splits > 1) time += rates.launch_us + (2 * splits + 1) * outputs * sizeof(float) / rates.bytes;
    plans.push_back({index, static_cast<int>(splits), time});
  }
}

const GpuPlan& fastest(const std::vector<GpuPlan>& plans) {
  TORCH_INTERNAL_ASSERT(!plans.empty());
  return *std::min_element(plans.begin(), plans.end(),
                           [](const auto& a, const auto& b) { return a.time < b.time; });
}

std::vector<Config> gpu_configs(const GpuPlan& first, std::vector<GpuPlan> plans, c10::ScalarType type) {
  const double hopeless = type == c10::ScalarType::Double ? kHopelessOfDouble : kHopeless;
  std::stable_sort(plans.begin(), plans.end(), [](const auto& a, const auto& b) { return a.time < b.time; });
  std::vector<GpuPlan> chosen = {first};
  const auto add = [&](auto&& differs) {
    for (const GpuPlan& plan : plans)
      if (chosen.size() < kMostConfigs && plan.time < hopeless * first.time &&
          std::all_of(chosen.begin(), chosen.end(), [&](const auto& other) { return differs(plan, other); }))
        chosen.push_back(plan);
  };
  add([](const auto& a, const auto& b) { return a.tile != b.tile; });
  add([](const auto& a, const auto& b) {
    return a.tile != b.tile || a.splits >= 2 * b.splits || b.splits >= 2 * a.splits;
  });
  std::vector<Config> configs;
  for (const GpuPlan& plan : chosen) configs.push_back(config_of(plan));
  return configs;
}

bool has_gpu_config(const Config& config, bool mma, int64_t k, double outputs, bool may_split,
                    c10::ScalarType type, const cl::Device& device) {
  const auto [tile, splits] = config.as<GpuTileConfig>();
  if (config != Config::of(GpuTileConfig{tile, splits}) || tile < 0 || tile >= kGpuTiles) return false;
  if (kTiles[tile].mma() != mma || !gpu_tile_fits(tile, device, type)) return false;
  if (splits == 1) return true;
  return may_split && splits > 1 && splits <= k / kShortestPart &&
         splits * outputs * sizeof(float) <= kGpuPartialBytes;
}

cl::Kernel& gpu_gemm_kernel(cl::Device& device, c10::ScalarType type, int tile, const char* name,
                            const Epilogue& epilogue, const std::string& options) {
  return fetch_with(
      epilogue, device,
      {"common/gpu_tile.clh", "common/gpu_mma.clh", "gemm/gpu_tiled.cl", "common/split_reduce.cl"}, name,
      gpu_tile_options(tile, device, type) + options);
}

std::shared_ptr<cl::Kernel> own_gpu_gemm_kernel(cl::Device& device, c10::ScalarType type, int tile,
                                                const Constants& constants, const Epilogue& epilogue,
                                                const std::string& options) {
  return specialised_kernel(
      device,
      epilogue_source(epilogue, device) + constants.text() +
          kernel_text({"common/gpu_tile.clh", "common/gpu_mma.clh", "gemm/gpu_tiled.cl"}),
      gpu_tile_options(tile, device, type) + options, "gemm_gpu_tiled");
}

void launch_split_reduce(cl::Kernel& kernel, cl::Queue& queue, SplitReduce arguments, c10::ScalarType type,
                         MemRef partial, const Buffer& c, const Buffer& d, const Factor& alpha,
                         const Factor& beta, const Bounds& bounds, const Epilogue& epilogue,
                         const EpilogueOperands& operands) {
  constexpr int kItems = 128;
  set_bounds(arguments, bounds);
  arguments.partial_offset = static_cast<int64_t>(partial.offset / partial_bytes(type));
  arguments.c_offset = c.offset, arguments.d_offset = d.offset;
  const int64_t outputs = arguments.batch * arguments.m * arguments.n;
  kernel.launch_with(queue, cl::Range::linear(ceil_div(outputs, kItems), kItems), [&](auto& list) {
    list.add(partial.mem), list.add(c.mem), list.add(d.mem);
    add_factor(list, type, alpha), add_factor(list, type, beta);
    list.add(arguments);
    add_epilogue(list, epilogue, operands);
  });
}

}  // namespace dlb::solver
