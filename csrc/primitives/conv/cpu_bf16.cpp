// Convolution solver "cpu_bf16": implicit GEMM in bfloat16 by the instructions that CPUs have for it, all
// directions; see conv/cpu_bf16.cl.
#include <cmath>

#include "cl/rounding.h"
#include "primitives/common/compute_estimates.h"
#include "primitives/common/cpu_bf16.h"
#include "primitives/conv/gather.h"
#include "primitives/conv/solvers.h"
#include "primitives/conv/strides.h"

namespace dlb::solver {
namespace {

constexpr std::initializer_list<const char*> kFiles = {"common/cpu_tile.clh", "common/cpu_bf16.clh",
                                                       "conv/gather.clh", "conv/positions.clh",
                                                       "conv/cpu_bf16.cl"};
constexpr int64_t kScratchBytes = int64_t(1280)
                                  << 10;  // at most; most of the second-level cache of such CPUs
constexpr int64_t kMostTaps = 1024;

// A gather with its blocking chosen, and what it costs.
struct Bf16Plan {
  Gather gather;
  int64_t scratch = 0, blocks = 0, col_blocks = 0;
  bool packed = false;  // weights are copied to [group][column][k] first
  double cycles = INFINITY;
};

int64_t taps_of(const Gather& g) {
  return int64_t(g.taps[0]) * g.taps[1] * g.taps[2];
}
int64_t positions_of(const Gather& g) {
  return int64_t(g.n) * g.q[0] * g.q[1] * g.q[2];
}

// Whether a column's weights lie in memory as (channel, tap), or as (tap, channel).
bool dense(const Gather& g, bool channels_inner) {
  int64_t expected = channels_inner ? g.red : 1;
  if (channels_inner && g.red > 1 && g.wred != 1) return false;
  for (int i = 2; i >= 0; i--) {
    if (g.taps[i] > 1 && g.wtap[i] != expected) return false;
    expected *= g.taps[i];
  }
  return channels_inner || g.red == 1 || g.wred == expected;
}

Bf16Plan plan_with(Gather g, const cl::Device& device, int64_t positions, int64_t columns, int64_t depth) {
  const int64_t all = positions_of(g), taps = taps_of(g), k = taps * g.red;
  g.block[0] = static_cast<int>(positions), g.block_cols = static_cast<int>(columns);
  g.channels = static_cast<int>(depth), g.split[1] = positions > 64;
  Bf16Plan plan{g};
  const int64_t tiles = bf16_tiles(positions);
  plan.scratch = bf16_scratch(columns, positions, depth, k) + 4 * (33 * tiles + 1 + taps) +
                 2 * tiles * (taps + g.taps[0] + g.taps[1] + g.taps[2]) + 64;
  if (plan.scratch > std::min<int64_t>(kScratchBytes, device.local_mem)) return plan;
  plan.blocks = ceil_div(all, positions), plan.col_blocks = ceil_div(g.cols, columns);
  const double steps = ceil_div(k, kBf16Depth), parts = ceil_div(k, depth), m = bf16_tiles(columns);
  const bool across = g.split[0] && g.is[1] == 1 && g.red % kBf16Depth == 0;
  const bool near = g.is[4] == 1 && g.step[2] == 1;
  const double gather = across ? kBf16Transpose : near ? 150 : 400;
  const double store = g.os[4] == 1 || g.q[2] == 1 ? kBf16Copy : g.os[1] == 1 ? kBf16Transpose : kBf16Scatter;
  const double per_task = m * tiles * (steps * bf16_multiply(device) + 2 * store + (parts - 1) * 60) +
                          m * steps * (g.split[1] ? kBf16Copy : 40) + tiles * (steps * gather + 600) + 4000;
  plan.cycles = std::ceil(double(plan.blocks) * plan.col_blocks * g.groups / device.compute_units) * per_task;
  return plan;
}

// Most rows (positions of the result), columns and depth of a block; zeros are the best guess.
struct Bf16Config {
  int32_t rows = 0, columns = 0, depth = 0;
  static constexpr const char* kNames[] = {"rows", "columns", "depth"};
};

// The plan with the fewest cycles; infinite where none fits.
Bf16Plan best_plan(Gather g, const cl::Device& device, const Config& config = {}) {
  const auto given = config.as<Bf16Config>();
  const bool channels_last = g.is[1] == 1 && g.red > 1;
  const bool outer = dense(g, false), inner = dense(g, true);
  g.split[0] = inner && (channels_last || !outer) ? 1 : outer ? 0 : channels_last;
  if (channels_last && g.red % kBf16Depth == 0) g.split[0] = 1;
  Bf16Plan best{g};
  const int64_t all = positions_of(g), k = std::max<int64_t>(taps_of(g) * g.red, 1);
  int64_t before = 0;
  for (int64_t most : {768, 512, 384, 256, 192, 128, 96, 64, 32}) {
    if (given.rows && most != given.rows) continue;
    const int64_t positions = balanced(all, most, kBf16Tile);
    if (positions == before) continue;
    before = positions;
    for (int64_t columns : {512, 256, 128, 64, 32}) {
      if (given.columns && columns != given.columns) continue;
      for (int64_t depth : {8192, 2048, 1024, 512, 128}) {
        if (given.depth && depth != given.depth) continue;
        Bf16Plan plan =
            plan_with(g, device, positions, std::min<int64_t>(balanced(g.cols, columns, 32), g.cols),
                      std::min(balanced(k, depth, kBf16Depth), static_cast<int>(round_up(k, kBf16Depth))));
        if (plan.cycles < best.cycles) best = plan;
      }
    }
  }
  best.packed = !dense(g, g.split[0]);
  return best;
}

Bf16Plan weight_grad_plan_with(Gather g, const cl::Device& device, int64_t rows, int64_t columns,
                               int64_t depth) {
  const int64_t taps = taps_of(g), k = positions_of(g), edges = g.taps[0] + g.taps[1] + g.taps[2];
  g.block_cols = static_cast<int>(rows), g.block[0] = static_cast<int>(columns);
  g.channels = static_cast<int>(depth);
  Bf16Plan plan{g};
  const int64_t most = depth / kBf16Depth, tables = columns + most * (2 * 32 + 2) + 1 + taps;
  plan.scratch = bf16_scratch(rows, columns, depth, k) + round_up(rows, kBf16Tile) * (2 * depth + 64) +
                 4 * tables + 64 + 2 * (taps + edges) * most * 2;
  if (plan.scratch > std::min<int64_t>(kScratchBytes, device.local_mem)) return plan;
  plan.blocks = ceil_div(g.red * taps, columns), plan.col_blocks = ceil_div(g.cols, rows);
  const double steps = ceil_div(k, kBf16Depth), parts = ceil_div(k, depth), m = bf16_tiles(rows),
               n = bf16_tiles(columns);
  const bool across = g.split[0] && g.is[1] == 1 && g.red % kBf16Tile == 0;
  const bool near = g.is[4] == 1 && g.step[2] == 1;
  const double b = across ? 100
                   : near ? 300
                          : 800,
               a = g.os[1] == 1 || g.os[4] == 1 ? kBf16Transpose : kBf16Scatter;
  const double per_task = m * n * (steps * bf16_multiply(device) + 2 * kBf16Copy + (parts - 1) * 60) +
                          steps * (m * a + n * b) + steps * (taps + edges) * 40 + 4000;
  plan.cycles = std::ceil(double(plan.blocks) * plan.col_blocks * g.groups / device.compute_units) * per_task;
  return plan;
}

Bf16Plan best_weight_grad_plan(Gather g, const cl::Device& device, const Config& config = {}) {
  const auto given = config.as<Bf16Config>();
  g.split[0] = dense(g, true) && (g.is[1] == 1 || !dense(g, false));
  Bf16Plan best{g};
  const int64_t columns = g.red * taps_of(g), k = round_up(std::max<int64_t>(positions_of(g), 1), kBf16Depth);
  for (int64_t m : {256, 128, 64, 32}) {
    if (given.rows && m != given.rows) continue;
    for (int64_t n : {512, 256, 128, 64, 32}) {
      if (given.columns && n != given.columns) continue;
      for (int64_t depth : {1024, 512, 256, 64}) {
        if (given.depth && depth != given.depth) continue;
        const Bf16Plan plan =
            weight_grad_plan_with(g, device, std::min<int64_t>(balanced(g.cols, m, 32), g.cols),
                                  balanced(columns, n, kBf16Tile), std::min(depth, k));
        if (plan.cycles < best.cycles) best = plan;
      }
    }
  }
  return best;
}

int64_t packed_elements(const Bf16Plan& plan) {
  const Gather& g = plan.gather;
  return plan.packed ? int64_t(g.groups) * g.cols * g.red * taps_of(g) : 0;
}

// Cycles of packing an element: whether the kernel can copy runs of taps, as they lie or backwards.
double pack_cycles(const Gather& g) {
  if (g.split[0] || taps_of(g) > 16) return 2.5;
  bool forwards = true, backwards = true;
  for (int i = 2, dense = 1; i >= 0; dense *= g.taps[i--]) {
    if (g.taps[i] <= 1) continue;
    forwards &= g.wtap[i] == dense;
    backwards &= g.wtap[i] == -dense;
  }
  return forwards || backwards ? 6.0 / taps_of(g) : 2.5;
}

class Bf16Invoker final : public ConvInvoker {
 public:
  Bf16Invoker(const ConvProblem& p, cl::Device& device, const Config& config)
      : input_grad_(p.direction == ConvDirection::kInputGrad),
        pack_(bf16_kernel(device, kFiles, "conv_cpu_bf16_pack")),
        compute_(bf16_kernel(device, kFiles, "conv_cpu_bf16")) {
    for (const Phase& phase : phases_of(p)) {
      Step step{best_plan(phase.gather, device, config), phase.weight_offset, phase.output_offset, {}, {}};
      const Gather& g = step.plan.gather;
      step.pack = cl::Range::grid(packed_elements(step.plan) ? bf16_tiles(g.cols) : 0, g.groups, 1);
      step.compute = cl::Range::grid(step.plan.blocks, step.plan.col_blocks, g.groups);
      steps_.push_back(step);
    }
  }

  void run(Stream& stream, const ConvProblem::Operands& o, MemRef workspace) override {
    const Buffer& in = input_grad_ ? o.y : o.x;
    const Buffer& out = input_grad_ ? o.x : o.y;
    int64_t packed = workspace.offset / sizeof(uint16_t);
    for (const Step& s : steps_) {
      const Gather& g = s.plan.gather;
      const int64_t elements = packed_elements(s.plan), depth = g.red * taps_of(g);
      const Buffer& bias = g.has_bias ? o.bias : o.w;
      Buffer weights{o.w.mem, o.w.offset + s.weight_offset};
      if (elements) {
        pack_.launch(stream.queue(), s.pack, weights.mem, weights.offset, workspace.mem, packed, g);
        weights = {workspace.mem, packed};
      }
      const int64_t group = elements ? g.cols * depth : g.wgroup, row = elements ? depth : g.wcol;
      compute_.launch(stream.queue(), s.compute, in.mem, in.offset, weights.mem, weights.offset, group, row,
                      out.mem, out.offset + s.output_offset, bias.mem, bias.offset, within(g, o.bounds),
                      cl::Local{static_cast<size_t>(s.plan.scratch)});
      packed += elements;
    }
  }

 private:
  struct Step {
    Bf16Plan plan;
    int64_t weight_offset, output_offset;
    cl::Range pack, compute;
  };
  const bool input_grad_;
  cl::Kernel& pack_;
  cl::Kernel& compute_;
  std::vector<Step> steps_;
};

class WeightGradInvoker final : public ConvInvoker {
 public:
  WeightGradInvoker(const ConvProblem& p, cl::Device& device, const Config& config)
      : plan_(best_weight_grad_plan(forward_phase(p).gather, device, config)),
        kernel_(bf16_kernel(device, kFiles, "conv_cpu_bf16_weight_grad")) {
    range_ = cl::Range::grid(plan_.col_blocks, plan_.blocks, plan_.gather.groups);
  }

  void run(Stream& stream, const ConvProblem::Operands& o, MemRef) override {
    kernel_.launch(stream.queue(), range_, o.x.mem, o.x.offset, o.y.mem, o.y.offset, o.w.mem, o.w.offset,
                   plan_.gather, cl::Local{static_cast<size_t>(plan_.scratch)});
  }

 private:
  const Bf16Plan plan_;
  cl::Kernel& kernel_;
  cl::Range range_;
};

class Bf16 final : public ConvSolver {
 public:
  const char* name() const override { return "cpu_bf16"; }
  ConfigNames config_names() const override { return ConfigNames::of<Bf16Config>(); }
  Applicability applicable(const ConvProblem& p, const cl::Device& device) const override {
    if (const Applicability can = bf16_applicable(p.dtype, device); !can) return can;
    if (p.n == 0 || p.out_pixels() == 0) return Applicability::no("nothing to sum over");
    if (p.taps() > kMostTaps) return Applicability::no("more than 1024 taps");
    const int64_t x = span(p.xs, {p.n, p.c, p.in[0], p.in[1], p.in[2]}),
                  y = span(p.ys, {p.n, p.k, p.out[0], p.out[1], p.out[2]});
    const int64_t w = span(p.ws, {p.k, p.c / p.groups, p.filter[0], p.filter[1], p.filter[2]});
    if (std::max({x, y, w}) > INT32_MAX / 2 || p.c / p.groups * p.taps() > INT32_MAX / 2)
      return Applicability::no("a tensor of 2^30 elements or more");
    if (std::isinf(cycles(p, device))) return Applicability::no("too little local memory");
    return Applicability::yes();
  }
  uint64_t workspace(const ConvProblem& p, const cl::Device& device, const Config& config) const override {
    if (p.direction == ConvDirection::kWeightGrad) return 0;
    uint64_t elements = 0;
    for (const Phase& phase : phases_of(p))
      elements += packed_elements(best_plan(phase.gather, device, config));
    return elements * sizeof(uint16_t);
  }
  double estimate(const ConvProblem& p, const cl::Device& device) const override {
    return std::max(cycles_microseconds(2, cycles(p, device), device), p.flops() / rates_of(device).matrix16);
  }
  std::unique_ptr<ConvInvoker> invoker(const ConvProblem& p, cl::Device& device,
                                       const Config& config) const override {
    if (p.direction == ConvDirection::kWeightGrad)
      return std::make_unique<WeightGradInvoker>(p, device, config);
    return std::make_unique<Bf16Invoker>(p, device, config);
  }

 private:
  static double cycles(const ConvProblem& p, const cl::Device& device) {
    if (p.direction == ConvDirection::kWeightGrad)
      return best_weight_grad_plan(forward_phase(p).gather, device).cycles;
    double sum = 0;
    for (const Phase& phase : phases_of(p)) {
      const Bf16Plan plan = best_plan(phase.gather, device);
      sum += plan.cycles + pack_cycles(plan.gather) * packed_elements(plan) / device.compute_units + 45000;
    }
    return sum;
  }
};

}  // namespace

const ConvSolver* conv_cpu_bf16() {
  static const Bf16 solver;
  return &solver;
}

}  // namespace dlb::solver
