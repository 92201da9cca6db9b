// Attention solvers "cpu_decode" and "gpu_decode": few queries, whose keys are divided into parts that
// work-groups have at once; a second kernel puts the parts together in their order.
#include <bit>
#include <string>

#include "cl/rounding.h"
#include "primitives/attention/attention.h"
#include "primitives/common/compute_estimates.h"
#include "primitives/common/cpu_tile.h"
#include "runtime/element.h"
#include "runtime/fetch_kernel.h"

namespace dlb::attention {
namespace {

constexpr int64_t kMostQueries = 8, kMostRows = 8, kLeastPart = 128;
constexpr int64_t kLeastDim = 32;
constexpr int kItems = params::ATTENTION_DECODE_ITEMS;

// Keys of a part; 0: by the sizes.
struct DecodeConfig {
  int32_t part = 0;
  static constexpr const char* kNames[] = {"part"};
};

int64_t rows_of(const AttentionProblem& p) {
  return p.heads / p.kv_heads * p.queries;
}
// Rows that a work-group of a GPU has at once: a power of two.
int64_t rows_at_once(const AttentionProblem& p) {
  return std::min<int64_t>(kMostRows, std::bit_ceil(static_cast<uint64_t>(rows_of(p))));
}
int64_t heads_of(const AttentionProblem& p, const cl::Device& device) {
  return p.batch * p.kv_heads * (is_cpu(device) ? 1 : ceil_div(rows_of(p), rows_at_once(p)));
}

// Parts as long as they may be, but enough of them for every compute unit.
int part_of(const AttentionProblem& p, const cl::Device& device, const Config& config) {
  const int64_t given = config.as<DecodeConfig>().part;
  const int64_t longest = is_cpu(device) ? 4096 : int64_t{params::ATTENTION_PART};
  int part = balanced(p.keys, given ? given : longest, 16);
  const int64_t wanted = (is_cpu(device) ? 2 : 4) * int64_t{device.compute_units};
  while (!given && heads_of(p, device) * ceil_div(p.keys, part) < wanted && part > kLeastPart)
    part = balanced(p.keys, part / 2, 16);
  return part;
}

uint64_t workspace(const AttentionProblem& p, const cl::Device& device, const Config& config) {
  const int64_t parts = ceil_div(p.keys, part_of(p, device, config));
  return static_cast<uint64_t>(4 * p.batch * p.heads * p.queries * parts * (p.dim + 2));
}

Applicability applicable(const AttentionProblem& p) {
  if (p.dropout) return Applicability::no("without dropout");
  if (p.queries > kMostQueries) return Applicability::no("for at most 8 queries");
  return common_applicable(p);
}
Applicability cpu_applicable(const AttentionProblem& p, const cl::Device& device) {
  return is_cpu(device) ? applicable(p) : Applicability::no("for CPU-like devices");
}
Applicability gpu_applicable(const AttentionProblem& p, const cl::Device& device) {
  if (is_cpu(device)) return Applicability::no("for GPU-class devices");
  const uint64_t floats =
      kMostRows * (int{params::ATTENTION_MOST_DIM} + int{params::ATTENTION_PART} + 4 * kItems);
  if (4 * floats > device.local_mem) return Applicability::no("too little local memory");
  return applicable(p);
}

// Bound by memory, in as many passes over the keys as there are groups of rows; on CPUs also by a few cycles
// for each key of each row.
double estimate(const AttentionProblem& p, const cl::Device& device) {
  const DeviceRates& rates = rates_of(device);
  const double keys = double(p.batch) * p.kv_heads * p.keys;
  const double bytes = 2 * keys * p.dim * c10::elementSize(p.dtype);
  if (is_cpu(device)) {
    const double cycles = keys * rows_of(p) * (24 + 2 * p.dim / 16.0) / device.compute_units;
    return std::max(2 * rates.launch_us + bytes / rates.bytes, cycles_microseconds(2, cycles, device));
  }
  const double passes = ceil_div(rows_of(p), rows_at_once(p));
  const double flops = 2 * keys * 2 * p.dim * rows_of(p);
  return 3 * rates.launch_us + passes * bytes / (0.6 * rates.bytes) + flops / (0.2 * rates.float32);
}

std::vector<Config> configs(const AttentionProblem& p, const cl::Device& device) {
  std::vector<Config> list(1);
  for (const int32_t part : {128, 256, 512, 2048})
    if (part < p.keys && (is_cpu(device) || part <= int32_t{params::ATTENTION_PART}))
      list.push_back(Config::of(DecodeConfig{part}));
  return list;
}

cl::Kernel& combine_kernel(const AttentionProblem& p, cl::Device& device) {
  return fetch_kernel(device, {"common/gpu_tile.clh", "attention/combine.cl"}, "attention_combine",
                      element_option(p.dtype));
}

// Launches the kernel of the parts with what else it takes, then the one that combines them.
template <class... More>
std::unique_ptr<Invoker<AttentionProblem>> invoker(const AttentionProblem& p, cl::Device& device, int part,
                                                   cl::Kernel& kernel, cl::Range range, More... more) {
  constexpr size_t kCombiners = 64;
  const int64_t parts = ceil_div(p.keys, part);
  range.global[0] *= static_cast<size_t>(parts);
  const size_t combiners = is_cpu(device) ? 1 : kCombiners;
  cl::Range combined = cl::Range::grid(p.queries * static_cast<int64_t>(combiners), p.heads, p.batch);
  combined.local[0] = combiners;
  cl::Kernel& combine = combine_kernel(p, device);
  return make_invoker<AttentionProblem>(
      [=, &kernel, &combine](Stream& stream, const AttentionOperands& o, MemRef workspace) {
        Params params = params_of(p, o);
        params.parts = static_cast<int32_t>(parts), params.part = part;
        const auto offset = static_cast<int64_t>(workspace.offset / sizeof(float));
        kernel.launch(stream.queue(), range, o.q.mem, o.k.mem, o.v.mem, bias_of(o), workspace.mem, offset,
                      params, more...);
        combine.launch(stream.queue(), combined, workspace.mem, offset, o.out.mem, o.lse.mem, params);
      });
}

std::unique_ptr<Invoker<AttentionProblem>> cpu_invoker(const AttentionProblem& p, cl::Device& device,
                                                       const Config& config) {
  const int part = part_of(p, device, config);
  const cl::Local scratch{static_cast<size_t>(4 * (round_up(p.dim, 16) + round_up(part, 16)))};
  cl::Kernel& kernel = fetch_kernel(device, {"common/cpu_tile.clh", "attention/cpu_decode.cl"},
                                    "attention_cpu_decode", cpu_tile_options(device, p.dtype));
  return invoker(p, device, part, kernel, cl::Range::grid(1, p.kv_heads, p.batch), scratch);
}

std::unique_ptr<Invoker<AttentionProblem>> gpu_invoker(const AttentionProblem& p, cl::Device& device,
                                                       const Config& config) {
  const int64_t rows = rows_at_once(p);
  const auto dim = std::bit_ceil(static_cast<uint64_t>(std::max<int64_t>(p.dim, kLeastDim)));
  cl::Kernel& kernel = fetch_kernel(
      device, {"common/gpu_tile.clh", "attention/gpu_decode.cl"}, "attention_gpu_decode",
      element_option(p.dtype) + " -DDIM=" + std::to_string(dim) + " -DROWS=" + std::to_string(rows));
  cl::Range range = cl::Range::grid(kItems, p.kv_heads * ceil_div(rows_of(p), rows), p.batch);
  range.local[0] = kItems;
  return invoker(p, device, part_of(p, device, config), kernel, range);
}

}  // namespace

const Solver<AttentionProblem>* cpu_decode() {
  static const RowSolver<AttentionProblem> solver({.name = "cpu_decode",
                                                   .applicable = cpu_applicable,
                                                   .estimate = estimate,
                                                   .configs = configs,
                                                   .invoker = cpu_invoker,
                                                   .workspace = workspace,
                                                   .config_names = ConfigNames::of<DecodeConfig>()});
  return &solver;
}

const Solver<AttentionProblem>* gpu_decode() {
  static const RowSolver<AttentionProblem> solver({.name = "gpu_decode",
                                                   .applicable = gpu_applicable,
                                                   .estimate = estimate,
                                                   .configs = configs,
                                                   .invoker = gpu_invoker,
                                                   .workspace = workspace,
                                                   .config_names = ConfigNames::of<DecodeConfig>()});
  return &solver;
}

}  // namespace dlb::attention
