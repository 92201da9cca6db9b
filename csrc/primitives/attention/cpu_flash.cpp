// Attention solvers "cpu_flash": blocks of queries and keys in scratch that stays in a core's cache, for
// CPU-like devices; see attention/cpu_flash.cl and attention/cpu_flash_backward.cl.
#include <cmath>

#include "cl/rounding.h"
#include "primitives/attention/attention.h"
#include "primitives/common/compute_estimates.h"
#include "primitives/common/cpu_tile.h"
#include "runtime/fetch_kernel.h"

namespace dlb::attention {
namespace {

// Queries and keys of a block; 0: by the sizes.
struct FlashConfig {
  int32_t queries = 0, keys = 0;
  int32_t kernels = 0;  // backward: one for all gradients, or two
  static constexpr const char* kNames[] = {"queries", "keys", "kernels"};
};

struct Blocks {
  int q, k;
};

int64_t wide(const AttentionProblem& p) {
  return round_up(p.dim, 16);
}

// Floats of scratch, as the kernels divide it.
int64_t forward_floats(const AttentionProblem& p, const Blocks& b) {
  const int64_t w = wide(p), rows = b.q + kTileRows;
  return b.q * (w + 16) + rows * w + rows * (b.k + 16) + 2 * b.k * w + 2 * b.q;
}
int64_t dq_floats(const AttentionProblem& p, const Blocks& b) {
  const int64_t w = wide(p), rows = b.q + kTileRows;
  return 2 * b.q * (w + 16) + rows * w + 2 * rows * (b.k + 16) + b.k * w;
}
int64_t dkv_floats(const AttentionProblem& p, const Blocks& b) {
  const int64_t w = wide(p), rows = b.k + kTileRows;
  return 2 * b.k * (w + 16) + 2 * rows * w + 2 * rows * (b.q + 16) + b.q * w + 7 * (b.q + 16);
}
int64_t all_floats(const AttentionProblem& p, const Blocks& b) {
  return dkv_floats(p, b) + (b.k + b.q + kTileRows) * wide(p);
}

using Floats = int64_t (*)(const AttentionProblem&, const Blocks&);

// A side of which each block keeps its results is divided so that every core has some; the other is gone
// through in steps. Both shrink until scratch suffices.
Blocks fitted(const AttentionProblem& p, const cl::Device& device, const Config& config, bool keeps_queries,
              Floats floats) {
  constexpr int kStep = 128;
  // Kept rows, by what is in scratch beside them; smaller blocks lose less beside a causal mask's edge.
  const int most = floats == forward_floats && !p.causal ? 144 : 96;
  const auto given = config.as<FlashConfig>();
  const int64_t length = keeps_queries ? p.queries : p.keys, other = keeps_queries ? p.keys : p.queries;
  const int64_t heads = p.batch * (keeps_queries ? p.heads : p.kv_heads);
  int kept = keeps_queries ? given.queries : given.keys, step = keeps_queries ? given.keys : given.queries;
  kept = balanced(length, kept ? kept : most, kTileRows * 2);
  step = balanced(other, step ? step : kStep, 16);
  while (floats != all_floats && heads * ceil_div(length, kept) < 2 * device.compute_units && kept > 24)
    kept = balanced(length, kept / 2, kTileRows * 2);
  const auto blocks = [&] { return keeps_queries ? Blocks{kept, step} : Blocks{step, kept}; };
  while (4 * floats(p, blocks()) > static_cast<int64_t>(device.local_mem) && (kept > 12 || step > 16))
    if (step > kept || kept <= 12)
      step = static_cast<int>(round_up(step / 2, 16));
    else
      kept = static_cast<int>(round_up(kept / 2, 12));
  return blocks();
}

Blocks forward_blocks(const AttentionProblem& p, const cl::Device& device, const Config& config) {
  return fitted(p, device, config, true, forward_floats);
}

// Whether one kernel makes all gradients: it has heads enough, and nobody wants the scores'.
bool in_one(const AttentionProblem& p, const cl::Device& device, const Config& config) {
  if (!p.is_backward() || p.has_scores) return false;
  const int32_t kernels = config.as<FlashConfig>().kernels;
  return kernels ? kernels == 1 : p.batch * p.kv_heads >= 2 * int64_t{device.compute_units};
}

uint64_t workspace(const AttentionProblem& p, const cl::Device& device, const Config& config) {
  if (!in_one(p, device, config)) return 0;
  return static_cast<uint64_t>(4 * p.batch * p.heads * p.queries * wide(p));
}

Applicability applicable(const AttentionProblem& p, const cl::Device& device) {
  if (!is_cpu(device)) return Applicability::no("for CPU-like devices");
  const Blocks least{12, 16};
  if (4 * std::max({forward_floats(p, least), dq_floats(p, least), all_floats(p, {16, 12})}) >
      static_cast<int64_t>(device.local_mem))
    return Applicability::no("too little local memory");
  return common_applicable(p);
}

// Products at the rate of packed ones, of whole tiles; what each score costs beside them; and keys and
// values, which are read once for each group of heads and packed for each block of queries.
double estimate_of(const AttentionProblem& p, const cl::Device& device, double launches, double products,
                   double passes) {
  constexpr double kBlock = 144;
  const double tiles = double(round_up(p.queries, kTileRows)) / p.queries;
  const double flops = products * p.product_flops() * tiles, scores = p.product_flops() / (2 * p.dim);
  const double elements = double(p.batch) * p.keys * p.dim, blocks = std::ceil(p.queries / kBlock);
  const double cycles = flops / 32 * 1.2 + passes * scores * 2 + 1.5 * elements * p.heads * blocks;
  const double bytes = 2 * elements * p.kv_heads * c10::elementSize(p.dtype);
  return cycles_microseconds(launches, cycles / device.compute_units, device) +
         bytes / rates_of(device).bytes;
}
double forward_estimate(const AttentionProblem& p, const cl::Device& device) {
  return estimate_of(p, device, 1.5, 2, 1);
}
double backward_estimate(const AttentionProblem& p, const cl::Device& device) {
  return estimate_of(p, device, 3, in_one(p, device, {}) ? 5 : 7, 2);
}

std::vector<Config> configs(const AttentionProblem& p, const cl::Device&) {
  std::vector<Config> list(1);
  for (const int32_t queries : {48, 192})
    if (p.queries > queries / 2) list.push_back(Config::of(FlashConfig{queries, 128}));
  for (const int32_t keys : {64, 256})
    if (p.keys > keys) list.push_back(Config::of(FlashConfig{96, keys}));
  if (p.is_backward() && !p.has_scores)
    for (const int32_t kernels : {1, 2}) list.push_back(Config::of(FlashConfig{0, 0, kernels}));
  return list;
}

cl::Kernel& backward_kernel(const AttentionProblem& p, cl::Device& device, const char* name) {
  return fetch_kernel(device, {"common/cpu_tile.clh", "attention/cpu_flash_backward.cl"}, name,
                      cpu_tile_options(device, p.dtype));
}

std::unique_ptr<Invoker<AttentionProblem>> forward(const AttentionProblem& p, cl::Device& device,
                                                   const Config& config) {
  const Blocks b = forward_blocks(p, device, config);
  const cl::Local scratch{static_cast<size_t>(4 * forward_floats(p, b))};
  const cl::Range range = cl::Range::grid(ceil_div(p.queries, b.q), p.heads, p.batch);
  cl::Kernel& kernel = fetch_kernel(device, {"common/cpu_tile.clh", "attention/cpu_flash.cl"},
                                    "attention_cpu_flash", cpu_tile_options(device, p.dtype));
  return make_invoker<AttentionProblem>(
      [p, b, scratch, range, &kernel](Stream& stream, const AttentionOperands& o, MemRef) {
        launch_forward(kernel, range, o, params_of(p, o), stream, b.q, b.k, scratch);
      });
}

std::unique_ptr<Invoker<AttentionProblem>> backward_in_one(const AttentionProblem& p, cl::Device& device,
                                                           const Config& config) {
  const Blocks b = fitted(p, device, config, false, all_floats);
  const cl::Local scratch{static_cast<size_t>(4 * all_floats(p, b))};
  cl::Kernel& kernel = backward_kernel(p, device, "attention_cpu_flash_all");
  return make_invoker<AttentionProblem>(
      [p, b, scratch, &kernel](Stream& stream, const AttentionOperands& o, MemRef sums) {
        kernel.launch(stream.queue(), cl::Range::grid(p.kv_heads, p.batch, 1), o.q.mem, o.k.mem, o.v.mem,
                      bias_of(o), o.grad_out.mem, o.lse.mem, o.delta.mem, o.grad_q.mem, o.grad_k.mem,
                      o.grad_v.mem, sums.mem, static_cast<int64_t>(sums.offset / sizeof(float)),
                      params_of(p, o), b.q, b.k, scratch);
      });
}

std::unique_ptr<Invoker<AttentionProblem>> backward(const AttentionProblem& p, cl::Device& device,
                                                    const Config& config) {
  if (in_one(p, device, config)) return backward_in_one(p, device, config);
  const Blocks dq = fitted(p, device, config, true, dq_floats);
  const Blocks dkv = fitted(p, device, config, false, dkv_floats);
  const BackwardLaunch launch{backward_kernel(p, device, "attention_cpu_flash_dq"),
                              backward_kernel(p, device, "attention_cpu_flash_dkv"),
                              cl::Range::grid(ceil_div(p.queries, dq.q), p.heads, p.batch),
                              cl::Range::grid(ceil_div(p.keys, dkv.k), p.kv_heads, p.batch)};
  const cl::Local dq_scratch{static_cast<size_t>(4 * dq_floats(p, dq))};
  const cl::Local dkv_scratch{static_cast<size_t>(4 * dkv_floats(p, dkv))};
  return make_invoker<AttentionProblem>(
      [p, launch, dq, dkv, dq_scratch, dkv_scratch](Stream& stream, const AttentionOperands& o, MemRef) {
        const Params params = params_of(p, o);
        launch.run_dq(o, params, stream, dq.q, dq.k, dq_scratch);
        launch.run_dkv(o, params, stream, dkv.q, dkv.k, dkv_scratch);
      });
}

}  // namespace

const Solver<AttentionProblem>* cpu_flash() {
  static const RowSolver<AttentionProblem> solver({.name = "cpu_flash",
                                                   .applicable = applicable,
                                                   .estimate = forward_estimate,
                                                   .configs = configs,
                                                   .invoker = forward,
                                                   .config_names = ConfigNames::of<FlashConfig>()});
  return &solver;
}

const Solver<AttentionProblem>* cpu_flash_backward() {
  static const RowSolver<AttentionProblem> solver({.name = "cpu_flash",
                                                   .applicable = applicable,
                                                   .estimate = backward_estimate,
                                                   .configs = configs,
                                                   .invoker = backward,
                                                   .workspace = workspace,
                                                   .config_names = ConfigNames::of<FlashConfig>()});
  return &solver;
}

}  // namespace dlb::attention
