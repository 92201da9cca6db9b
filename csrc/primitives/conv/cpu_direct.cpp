// Convolution solver "cpu_direct": vectors along the image, for groups with few output channels (depthwise
// above all) on CPU-like devices; see conv/cpu_direct.cl.
#include <cmath>
#include <numeric>

#include "cl/queue.h"
#include "cl/rounding.h"
#include "primitives/common/compute_estimates.h"
#include "primitives/common/cpu_tile.h"
#include "primitives/conv/gather.h"
#include "primitives/conv/solvers.h"
#include "runtime/element.h"
#include "runtime/fetch_kernel.h"

namespace dlb::solver {
namespace {

constexpr int kRows = params::DIRECT_ROWS;
constexpr int kSlack = 32;                      // floats behind the planes that vectors may touch
constexpr int kMostColumns = 16;                // output channels of a group; beyond, a GEMM is better
constexpr int64_t kScratchFloats = 128 * 1024;  // at most
constexpr int64_t kMostBytes = 512;             // products of integers of 8 bits whose sum a float holds
constexpr int kTaskCycles = 60000;              // of a work-item: enough to hide what starting it costs

struct DirectPlan {
  Gather gather;
  int64_t scratch = 0;  // floats
  int64_t blocks = 0, group_blocks = 0;
  double cycles = INFINITY;  // expected, of the slowest core
};

int64_t padded16(int64_t n) {
  return round_up(n, 16);
}

// Sizes of conv/cpu_direct.cl's struct Planes.
struct Planes {
  int64_t channel = 1, flat = 0, row = 0;
  explicit Planes(const Gather& g) {
    int64_t size[3];
    for (int i = 0; i < 3; i++) {
      const int64_t reach = int64_t(std::max(g.taps[i] - 1, 0)) * g.dilation[i];
      size[i] = g.block[i + 1] + reach / g.step[i];
      channel *= size[i] * std::min<int64_t>(g.step[i], reach + 1);
    }
    row = size[2];
    flat = ((g.block[1] - 1) * size[1] + g.block[2] - 1) * size[2] + g.block[3];
  }
};

// Those of its struct Sums, of a block.
struct Sums {
  int64_t rows, floats;
  explicit Sums(const Gather& g) {
    const int64_t residues = g.dilation[1] / std::gcd(g.dilation[1], g.step[1]);
    rows = round_up(ceil_div(g.block[2], residues), kRows) * residues;
    floats = g.block[1] * rows * padded16(g.block[3]);
  }
};

int64_t scratch_of(const Gather& g, const Planes& planes, bool weight_grad) {
  const int64_t taps = int64_t(g.taps[0]) * g.taps[1] * g.taps[2], table = padded16(taps);
  if (weight_grad)
    return table + padded16(g.cols * g.red * taps) + padded16(planes.flat) + g.red * planes.channel + kSlack;
  // Rows that only fill up a multiple of kRows read behind the planes as well.
  const Sums sums(g);
  return table + padded16(g.channels * taps) + g.cols * sums.floats + g.channels * planes.channel +
         (sums.rows - g.block[2]) * planes.row + kSlack;
}

// Whole images where they fit, else fewer depths, rows, columns, in this order.
DirectPlan plan_of(Gather g, bool weight_grad, const cl::Device& device) {
  DirectPlan plan{g};
  if (g.cols > kMostColumns) return plan;
  const int64_t most = std::min<int64_t>(kScratchFloats, device.local_mem / 4);
  g.block[0] = 1;
  std::copy_n(g.q, 3, g.block + 1);
  g.channels = std::max(g.red, 1);
  // the weight gradient has no work to gain from small blocks; the others want a block for every core
  const int64_t wanted = weight_grad ? 1 : ceil_div(2 * device.compute_units, int64_t(g.n) * g.groups);
  const auto blocks = [&] {
    return ceil_div(g.q[0], g.block[1]) * ceil_div(g.q[1], g.block[2]) * ceil_div(g.q[2], g.block[3]);
  };
  while (scratch_of(g, Planes(g), weight_grad) > most || (blocks() < wanted && g.block[2] > 8)) {
    if (g.block[1] > 1)
      g.block[1] = (g.block[1] + 1) / 2;
    else if (g.block[2] > 8)
      g.block[2] = (g.block[2] + 1) / 2;
    else if (!weight_grad && g.channels > 1)
      g.channels = (g.channels + 1) / 2;
    else if (g.block[2] > 1)
      g.block[2] = (g.block[2] + 1) / 2;
    else if (g.block[3] > 16)
      g.block[3] = (g.block[3] + 1) / 2;
    else
      return plan;
  }
  const Planes planes(g);
  const Sums sums(g);
  const double taps = double(g.taps[0]) * g.taps[1] * g.taps[2];
  const double per_group =
      g.red * planes.channel * (g.step[2] <= 2 && g.is[4] == 1 ? 0.3 : 1.5) +
      g.cols * g.red * taps * (weight_grad ? planes.flat / 16.0 * 2.2 + 20 : sums.floats / 16.0 * 1.3 + 2) +
      double(g.cols) * g.block[1] * g.block[2] * (g.block[3] * (g.os[4] == 1 ? 0.2 : 1.5) + 8);
  plan.blocks = int64_t(g.n) * blocks();
  const double blocks_in_task = weight_grad ? double(plan.blocks) : 1.0,
               parallel = weight_grad ? 1.0 : double(plan.blocks);
  const double spare = g.groups * parallel / (4.0 * device.compute_units);
  g.block_groups = static_cast<int>(
      std::clamp(std::min(kTaskCycles / (per_group * blocks_in_task), spare), 1.0, double(g.groups)));
  plan.group_blocks = ceil_div(g.groups, g.block_groups);
  plan.gather = g;
  plan.scratch = scratch_of(g, planes, weight_grad);
  const double tasks = plan.group_blocks * parallel;
  plan.cycles =
      std::ceil(tasks / device.compute_units) * (per_group * g.block_groups + 1000) * blocks_in_task;
  return plan;
}

class GatherInvoker final : public ConvInvoker {
 public:
  GatherInvoker(const ConvProblem& p, cl::Device& device, cl::Kernel& kernel)
      : input_grad_(p.direction == ConvDirection::kInputGrad), epilogue_(p.epilogue), kernel_(kernel) {
    for (const Phase& phase : phases_of(p)) {
      Step step{plan_of(phase.gather, false, device), phase.weight_offset, phase.output_offset, {}};
      step.range.dims = 2;
      step.range.global[0] = step.plan.blocks, step.range.global[1] = step.plan.group_blocks;
      steps_.push_back(step);
    }
  }

  void run(Stream& stream, const ConvProblem::Operands& o, MemRef) override {
    const Buffer& in = input_grad_ ? o.y : o.x;
    const Buffer& out = input_grad_ ? o.x : o.y;
    for (const Step& s : steps_) {
      const Buffer& bias = s.plan.gather.has_bias ? o.bias : o.w;
      kernel_.launch_with(stream.queue(), s.range, [&](auto& arguments) {
        arguments.add(in.mem), arguments.add(in.offset);
        arguments.add(o.w.mem), arguments.add(o.w.offset + s.weight_offset);
        arguments.add(out.mem), arguments.add(out.offset + s.output_offset);
        arguments.add(bias.mem), arguments.add(bias.offset);
        arguments.add(within(s.plan.gather, o.bounds));
        arguments.add(cl::Local{static_cast<size_t>(s.plan.scratch) * sizeof(float)});
        add_epilogue(arguments, epilogue_, o);
      });
    }
  }

 private:
  struct Step {
    DirectPlan plan;
    int64_t weight_offset, output_offset;
    cl::Range range;
  };
  const bool input_grad_;
  const Epilogue epilogue_;
  cl::Kernel& kernel_;
  std::vector<Step> steps_;
};

class WeightGradInvoker final : public ConvInvoker {
 public:
  WeightGradInvoker(const ConvProblem& p, cl::Device& device, cl::Kernel& kernel)
      : plan_(plan_of(forward_phase(p).gather, true, device)), kernel_(kernel) {
    range_.global[0] = plan_.group_blocks;
  }
  void run(Stream& stream, const ConvProblem::Operands& o, MemRef) override {
    kernel_.launch(stream.queue(), range_, o.x.mem, o.x.offset, o.y.mem, o.y.offset, o.w.mem, o.w.offset,
                   plan_.gather, static_cast<cl_int>(plan_.blocks),
                   cl::Local{static_cast<size_t>(plan_.scratch) * sizeof(float)});
  }

 private:
  const DirectPlan plan_;
  cl::Kernel& kernel_;
  cl::Range range_;
};

class Direct final : public ConvSolver {
 public:
  const char* name() const override { return "cpu_direct"; }
  bool takes_epilogue() const override { return true; }
  bool takes_mixed() const override { return true; }
  int revision() const override { return 2; }

  Applicability applicable(const ConvProblem& p, const cl::Device& device) const override {
    if (device.cls != cl::DeviceClass::kCpu) return Applicability::no("for CPU-like devices");
    if (!is_float_storage(p.dtype) && !p.x_dtype)
      return Applicability::no("computes in float: float32, float16, bfloat16 and integers of 8 bits");
    if (p.x_dtype && p.c / p.groups * p.taps() > kMostBytes)
      return Applicability::no(
          "sums of more than 512 products of 8 bits, for which floats have too few digits");
    if (p.is_mixed() && !p.x_dtype)
      return Applicability::no("takes operands of other dtypes with integers alone");
    const int columns = (p.direction == ConvDirection::kInputGrad ? p.c : p.k) / p.groups;
    if (columns > kMostColumns) return Applicability::no("more than 16 output channels in a group");
    if (std::isinf(cycles(p, device)))
      return Applicability::no("one output's part of the image does not fit in local memory");
    return Applicability::yes();
  }
  double estimate(const ConvProblem& p, const cl::Device& device) const override {
    return cycles_microseconds(2, cycles(p, device), device);
  }
  std::unique_ptr<ConvInvoker> invoker(const ConvProblem& p, cl::Device& device,
                                       const Config&) const override {
    const bool weight_grad = p.direction == ConvDirection::kWeightGrad;
    cl::Kernel& kernel =
        fetch_with(p.epilogue, device, {"common/cpu_tile.clh", "conv/gather.clh", "conv/cpu_direct.cl"},
                   weight_grad ? "conv_cpu_direct_weight_grad" : "conv_cpu_direct",
                   cpu_tile_options(device, p.dtype) + operand_options(p.x_dtype, p.w_dtype));
    if (weight_grad) return std::make_unique<WeightGradInvoker>(p, device, kernel);
    return std::make_unique<GatherInvoker>(p, device, kernel);
  }

 private:
  static double cycles(const ConvProblem& p, const cl::Device& device) {
    if (p.direction == ConvDirection::kWeightGrad)
      return plan_of(forward_phase(p).gather, true, device).cycles;
    double sum = 0;
    for (const Phase& phase : phases_of(p)) sum += plan_of(phase.gather, false, device).cycles + 30000;
    return sum;
  }
};

}  // namespace

const ConvSolver* conv_cpu_direct() {
  static const Direct solver;
  return &solver;
}

}  // namespace dlb::solver
