// Attention solvers "gpu_mma": NVIDIA's tensor cores, float32 as three products or one as TF32; see
// attention/gpu_mma.clh.
#include <bit>
#include <string>

#include "cl/rounding.h"
#include "primitives/attention/attention.h"
#include "runtime/element.h"
#include "runtime/fetch_kernel.h"
#include "solver/device_rates.h"

namespace dlb::attention {
namespace {

constexpr int64_t kLeastDim = 32, kMostDim = 128, kWarps = 4, kItems = 32 * kWarps;

// Rows that a warp keeps, and those of a step.
struct MmaConfig {
  int32_t rows = 0, step = 0;
  static constexpr const char* kNames[] = {"rows", "step"};
};

int64_t dim_of(const AttentionProblem& p) {
  return static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(std::max(p.dim, kLeastDim))));
}
bool is_float(const AttentionProblem& p) {
  return p.dtype == c10::ScalarType::Float;
}
// Whether an element of float32 is two words, what TF32 holds of it and a rest.
bool is_split(const AttentionProblem& p) {
  return is_float(p) && !p.tf32;
}

// The first is for callers that ask for none: it compiles in a third of the time. As many rows of a step as
// fit 48 KiB; with 32 rows to a warp what lies in local memory is read half as often, if the registers hold
// them.
std::vector<MmaConfig> mma_configs(const AttentionProblem& p) {
  const bool wide = dim_of(p) > 64;
  if (!is_float(p)) return {{16, wide ? 32 : 64}};
  if (wide || p.is_backward()) return {{16, 16}};
  return {{16, 32}, {32, 32}};
}
MmaConfig config_of(const AttentionProblem& p, const Config& config) {
  const auto chosen = config.as<MmaConfig>();
  return chosen.rows ? chosen : mma_configs(p).front();
}

std::vector<Config> configs(const AttentionProblem& p, const cl::Device&) {
  std::vector<Config> list;
  for (const MmaConfig& config : mma_configs(p)) list.push_back(Config::of(config));
  return list;
}

// Bytes of local memory: the tiles of a step, of 16 bits as rows and as pairs, and what the emulation takes.
uint64_t local_bytes(const AttentionProblem& p, const cl::Device& device) {
  const int64_t dim = dim_of(p), step = mma_configs(p).front().step;
  const bool emulated = device.tensor_cores == cl::TensorCores::kEmulated;
  const int64_t scratch = (emulated ? 13 * kItems : 8) + 3 * step;
  if (is_float(p)) return static_cast<uint64_t>(4 * (2 * (is_split(p) ? 2 : 1) * step * (dim + 4) + scratch));
  const int64_t rows = step * (dim / 2 + 4), pairs = dim * (step / 2 + 4);
  return static_cast<uint64_t>(4 * ((p.is_backward() ? 2 : 1) * (rows + pairs) + scratch));
}

Applicability applicable(const AttentionProblem& p, const cl::Device& device) {
  if (device.tensor_cores == cl::TensorCores::kNone || is_cpu(device))
    return Applicability::no("the device has no tensor cores that OpenCL reaches");
  if (!is_float(p) && p.dtype != c10::ScalarType::Half && p.dtype != c10::ScalarType::BFloat16)
    return Applicability::no("for float32, float16 and bfloat16");
  if (p.dim > kMostDim) return Applicability::no("heads of more than 128 elements");
  if (local_bytes(p, device) > device.local_mem) return Applicability::no("too little local memory");
  return common_applicable(p);
}

double estimate(const AttentionProblem& p, const cl::Device& device) {
  constexpr double kReached = 0.2, kReachedSplit = 0.4, kGroupsPerUnit = 2;
  const DeviceRates& rates = rates_of(device);
  const int64_t kept = kWarps * mma_configs(p).front().rows;
  const double groups = double(p.batch) * p.heads * ceil_div(p.queries, kept);
  const double filled = std::min(1.0, groups / (kGroupsPerUnit * device.compute_units));
  const double rows = double(round_up(p.queries, kept)) / p.queries * dim_of(p) / p.dim;
  const double products = p.is_backward() ? 7 : 2, launches = p.is_backward() ? 2 : 1;
  const double rate = is_split(p)   ? kReachedSplit * rates.matrix_tf32 / 3
                      : is_float(p) ? kReached * rates.matrix_tf32
                                    : kReached * rates.matrix16;
  return launches * rates.launch_us + products * p.product_flops() * rows / (filled * rate);
}

cl::Kernel& kernel_of(const AttentionProblem& p, cl::Device& device, const MmaConfig& config,
                      const char* name) {
  std::string options = element_option(p.dtype) + " -DDIM=" + std::to_string(dim_of(p)) +
                        " -DSTEP=" + std::to_string(config.step) + " -DROWS=" + std::to_string(config.rows) +
                        " -DBIAS=" + (p.bias ? "1" : "0") + " -DDROPOUT=" + (p.dropout ? "1" : "0") +
                        (device.tensor_cores == cl::TensorCores::kEmulated ? " -DMMA=2" : " -DMMA=1");
  if (is_float(p)) options += is_split(p) ? " -DSPLIT=1" : " -DSPLIT=0";
  const char* file = p.is_backward() ? "attention/gpu_mma_backward.cl" : "attention/gpu_mma.cl";
  return fetch_kernel(device, {"common/gpu_tile.clh", file}, name, options);
}

cl::Range range_of(const MmaConfig& config, int64_t length, int64_t heads, int64_t batch) {
  cl::Range range = cl::Range::grid(ceil_div(length, kWarps * config.rows) * kItems, heads, batch);
  range.local[0] = kItems;
  return range;
}

std::unique_ptr<Invoker<AttentionProblem>> forward(const AttentionProblem& p, cl::Device& device,
                                                   const Config& chosen) {
  const MmaConfig config = config_of(p, chosen);
  cl::Kernel& kernel = kernel_of(p, device, config, "attention_gpu_mma");
  return invoker_of(p, kernel, range_of(config, p.queries, p.heads, p.batch));
}

std::unique_ptr<Invoker<AttentionProblem>> backward(const AttentionProblem& p, cl::Device& device,
                                                    const Config& chosen) {
  const MmaConfig config = config_of(p, chosen);
  return invoker_of(
      p, {kernel_of(p, device, config, "attention_gpu_mma_dq"),
          kernel_of(p, device, config, "attention_gpu_mma_dkv"),
          range_of(config, p.queries, p.heads, p.batch), range_of(config, p.keys, p.kv_heads, p.batch)});
}

}  // namespace

const Solver<AttentionProblem>* gpu_mma() {
  static const RowSolver<AttentionProblem> solver({.name = "gpu_mma",
                                                   .applicable = applicable,
                                                   .estimate = estimate,
                                                   .configs = configs,
                                                   .invoker = forward,
                                                   .config_names = ConfigNames::of<MmaConfig>()});
  return &solver;
}

const Solver<AttentionProblem>* gpu_mma_backward() {
  static const RowSolver<AttentionProblem> solver({.name = "gpu_mma",
                                                   .applicable = applicable,
                                                   .estimate = estimate,
                                                   .configs = configs,
                                                   .invoker = backward,
                                                   .config_names = ConfigNames::of<MmaConfig>()});
  return &solver;
}

}  // namespace dlb::attention
