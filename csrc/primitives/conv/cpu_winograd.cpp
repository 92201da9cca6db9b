// Convolution solver "cpu_winograd": minimal filtering for 3x3 filters of stride 1 on CPU-like devices,
// forward and input gradient (the forward algorithm with rotated, transposed weights); see
// conv/cpu_winograd.cl for the algorithm's source, docs/numerics.md for its error.
#include <array>
#include <cmath>
#include <optional>

#include "cl/rounding.h"
#include "primitives/common/compute_estimates.h"
#include "primitives/common/cpu_tile.h"
#include "primitives/conv/gather.h"
#include "primitives/conv/solvers.h"
#include "primitives/conv/winograd.h"
#include "runtime/fetch_kernel.h"

namespace dlb::solver {
namespace {

constexpr int64_t kScratchFloats = 160 * 1024;         // at most; most of a usual second-level cache
constexpr int kMostTiles = 96;                         // of a work-item
constexpr int64_t kPartialBytes = int64_t(128) << 20;  // of the weight gradient's slices
constexpr int kOutputs[] = {2, 4};                     // m of F(m x m, 3x3)

// A gather with its blocking chosen, and what it costs.
struct CpuWinogradPlan {
  Gather gather;
  int m = 0;            // outputs of a tile along each dimension
  int64_t scratch = 0;  // floats
  int64_t blocks = 0, col_blocks = 0;
  int slices = 1;            // of the blocks, in the weight gradient
  double cycles = INFINITY;  // expected, of the slowest core
};

int64_t odd_lines(int64_t floats) {
  return floats / 16 % 2 ? floats : floats + 16;
}
int64_t tile_elements(int m) {
  return int64_t(m + 2) * (m + 2);
}

int64_t blocks_of(const Gather& g) {
  return ceil_div(g.n, g.block[0]) * g.q[0] * ceil_div(g.q[1], g.block[2]) * ceil_div(g.q[2], g.block[3]);
}

// Cycles for one element of transformed weights: a tile of vectors of 16 floats fits wide registers only.
double transform_cycles(const cl::Device& device) {
  return tile_columns(device) < kTileColumns ? 0.9 : 0.35;
}

// Estimates what one work-item and all of them take, with the blocking in `plan`.
void assess(CpuWinogradPlan& plan, const cl::Device& device) {
  Gather& g = plan.gather;
  const int64_t m = plan.m, elements = tile_elements(plan.m);
  const int64_t th = ceil_div(g.block[2], m), tw = ceil_div(g.block[3], m), tiles = g.block[0] * th * tw;
  const int64_t pitch = round_up(g.block_cols, 16), rows = round_up(tiles, kTileRows);
  const int64_t pixels = (th * m + 2) * (tw * m + 2);  // of an image
  const int64_t positions = int64_t(g.block[0]) * g.block[2] * g.block[3];
  const int64_t panel = elements * odd_lines(g.channels * std::min<int64_t>(kTileColumns, pitch));
  plan.scratch =
      16 * 16 + elements * odd_lines(rows * pitch) + 64 +
      std::max(panel + pixels * g.pitch + elements * odd_lines(tiles * g.pitch), positions * pitch);
  plan.blocks = blocks_of(g);
  plan.col_blocks = ceil_div(g.cols, g.block_cols);
  const double channels = round_up(g.red, 16), chunks = ceil_div(g.red, g.channels);
  const double load = g.block[0] * pixels * channels * 0.9, transform = tiles * channels / 16 * elements * 6;
  const double product = elements * (double(rows) * pitch / 16 * g.red * 1.3 +
                                     chunks * rows / kTileRows * ceil_div(pitch, kTileColumns) * 100);
  const double store = tiles * pitch / 16 * elements * 6 +
                       double(positions) * pitch * (g.os[4] == 1 || g.os[1] == 1 ? 0.6 : 2.0);
  const double weights = elements * double(g.red) * pitch * transform_cycles(device);
  const double tasks = double(plan.blocks) * plan.col_blocks * g.groups;
  plan.cycles =
      std::ceil(tasks / device.compute_units) * (load + transform + weights + product + store + 2000);
}

// The same for the weight gradient, where a work-item takes a block of channels and a slice of the positions.
void assess_weight_grad(CpuWinogradPlan& plan, const cl::Device& device) {
  Gather& g = plan.gather;
  const int64_t m = plan.m, elements = tile_elements(plan.m);
  const int64_t th = ceil_div(g.block[2], m), tw = ceil_div(g.block[3], m), tiles = g.block[0] * th * tw;
  const int64_t pitch = round_up(g.block_cols, 16), rows = round_up(g.channels, kTileRows);
  const int64_t pixels = (th * m + 2) * (tw * m + 2), outputs = th * tw * m * m;
  plan.scratch = 16 * 16 + elements * odd_lines(rows * pitch) +
                 std::max(elements * (odd_lines(tiles * g.pitch) + odd_lines(tiles * pitch)) +
                              std::max(pixels * g.pitch, outputs * pitch),
                          9 * g.channels * pitch);
  plan.blocks = blocks_of(g), plan.col_blocks = ceil_div(g.cols, g.block_cols);
  const double channels = round_up(g.channels, 16);
  const double load = g.block[0] * (pixels * channels + outputs * pitch) * 0.9;
  const double transform = tiles * (channels + pitch) / 16 * elements * 6;
  const double product =
      elements * (double(rows) * pitch / 16 * tiles * 1.2 + double(rows) / kTileRows * 100);
  const double finish = double(g.channels) * pitch / 16 * elements * 6 + 9.0 * g.channels * pitch + 2000;
  const double parts = double(g.groups) * plan.col_blocks * ceil_div(g.red, g.channels);
  const double weights = 9.0 * g.groups * g.cols * g.red;
  plan.cycles = INFINITY;
  for (int slices = 1; slices <= plan.blocks && slices <= 4 * int(device.compute_units); slices++) {
    if (slices > 1 && slices * weights * sizeof(float) > kPartialBytes) break;
    const double per_task = ceil_div(plan.blocks, slices) * (load + transform + product) + finish;
    const double cycles = std::ceil(parts * slices / device.compute_units) * per_task +
                          slices * weights / 8 / device.compute_units;
    if (cycles < plan.cycles) plan.cycles = cycles, plan.slices = slices;
  }
}

// The sizes that divide `extent` evenly into blocks of at most `most`.
template <class Visit>
void even_blocks(int64_t extent, int64_t most, Visit&& visit) {
  int64_t last = 0;
  for (int64_t parts = ceil_div(extent, std::min(extent, most)); parts <= extent; parts++) {
    const int64_t size = ceil_div(extent, parts);
    if (size != last) visit(last = size);
  }
}

void consider(CpuWinogradPlan& best, bool weight_grad, const Gather& gather, int m, int64_t images,
              int64_t th, int64_t tw, const cl::Device& device) {
  CpuWinogradPlan plan{gather, m};
  Gather& g = plan.gather;
  g.block[0] = static_cast<int>(images), g.block[1] = 1;
  g.block[2] = static_cast<int>(std::min<int64_t>(th * m, g.q[1]));
  g.block[3] = static_cast<int>(std::min<int64_t>(tw * m, g.q[2]));
  const int most_cols = weight_grad ? kTileColumns : 512;
  for (int channels : {128, 64, 48, 32, 16}) {
    if (says_nothing(channels, 128, g.red)) continue;
    g.channels = std::min(g.red, channels);
    g.pitch = static_cast<int>(odd_lines(round_up(g.channels, 16)));
    for (int cols : {512, 256, 128, 64, 32}) {
      if (weight_grad ? cols > kTileColumns : cols < kTileColumns) continue;
      if (says_nothing(cols, most_cols, g.cols)) continue;
      g.block_cols = std::min(g.cols, cols);
      weight_grad ? assess_weight_grad(plan, device) : assess(plan, device);
      if (plan.scratch > kScratchFloats || plan.scratch * 4 > int64_t(device.local_mem)) continue;
      if (plan.cycles < best.cycles) best = plan;
    }
  }
}

// The best blocking for m outputs; cycles stays infinite when scratch does not suffice.
CpuWinogradPlan make_plan(const ConvProblem& p, int m, const cl::Device& device) {
  const bool weight_grad = p.direction == ConvDirection::kWeightGrad;
  const Gather g = phases_of(p).front().gather;
  CpuWinogradPlan best;
  const int64_t height = ceil_div(g.q[1], m), width = ceil_div(g.q[2], m);
  even_blocks(width, kMostTiles, [&](int64_t tw) {
    even_blocks(height, kMostTiles / tw, [&](int64_t th) {
      const bool whole = th == height && tw == width;
      even_blocks(g.n, whole ? std::max<int64_t>(kMostTiles / (th * tw), 1) : 1, [&](int64_t images) {
        if (whole || images == 1) consider(best, weight_grad, g, m, images, th, tw, device);
      });
    });
  });
  return best;
}

// The best blocking; m = 0 chooses m as well. A solver is asked many things about one problem in a row, and
// planning takes longer than all else that choosing does: a thread remembers its last problem's plans.
const CpuWinogradPlan& plan_of(const ConvProblem& p, int m, const cl::Device& device) {
  struct Last {
    std::optional<ConvProblem> problem;
    std::array<CpuWinogradPlan, std::size(kOutputs)> plans;
  };
  thread_local Last last;
  if (!last.problem || !same(*last.problem, p)) {
    last.problem.reset();
    for (size_t i = 0; i < last.plans.size(); i++) last.plans[i] = make_plan(p, kOutputs[i], device);
    last.problem = p;
  }
  const CpuWinogradPlan& first = last.plans[0];
  const CpuWinogradPlan& second = last.plans[1];
  return m ? (m == kOutputs[0] ? first : second) : (second.cycles < first.cycles ? second : first);
}

cl::Kernel& kernel_of(cl::Device& device, const ConvProblem& p, const char* name) {
  return fetch_with(p.epilogue, device,
                    {"common/cpu_tile.clh", "conv/gather.clh", "conv/pixels.clh", "conv/winograd.clh",
                     "conv/cpu_winograd.cl"},
                    name, cpu_tile_options(device, p.dtype) + " -DWINOGRAD_TYPE=float16");
}

struct WinogradConfig {
  int32_t m = 0;  // of F(m x m, 3x3); 0: the better by estimate
  static constexpr const char* kNames[] = {"m"};
};

class WinogradInvoker final : public ConvInvoker {
 public:
  WinogradInvoker(const ConvProblem& p, cl::Device& device, int m)
      : input_grad_(p.direction == ConvDirection::kInputGrad),
        epilogue_(p.epilogue),
        plan_(plan_of(p, m, device)),
        weight_offset_(phases_of(p).front().weight_offset),
        kernel_(kernel_of(device, p, "conv_cpu_winograd")) {
    const Gather& g = plan_.gather;
    range_ = cl::Range::grid(plan_.blocks, plan_.col_blocks, g.groups);
  }

  void run(Stream& stream, const ConvProblem::Operands& o, MemRef) override {
    const Buffer &in = input_grad_ ? o.y : o.x, &out = input_grad_ ? o.x : o.y;
    const Buffer& bias = plan_.gather.has_bias ? o.bias : o.w;
    kernel_.launch_with(stream.queue(), range_, [&](auto& arguments) {
      arguments.add(in.mem), arguments.add(in.offset);
      arguments.add(o.w.mem), arguments.add(o.w.offset + weight_offset_);
      arguments.add(out.mem), arguments.add(out.offset);
      arguments.add(bias.mem), arguments.add(bias.offset);
      arguments.add(within(plan_.gather, o.bounds));
      arguments.add(static_cast<cl_int>(plan_.m));
      arguments.add(cl::Local{static_cast<size_t>(plan_.scratch) * sizeof(float)});
      add_epilogue(arguments, epilogue_, o);
    });
  }

 private:
  const bool input_grad_;
  const Epilogue epilogue_;
  const CpuWinogradPlan plan_;
  const int64_t weight_offset_;
  cl::Kernel& kernel_;
  cl::Range range_;
};

// Bytes of the slices' partial sums; none where one slice is written in place.
uint64_t partial_bytes(const ConvProblem& p, const CpuWinogradPlan& plan) {
  if (plan.slices == 1 && p.dtype == c10::ScalarType::Float && dense_weights(p)) return 0;
  return sizeof(float) * plan.slices * int64_t(p.k) * (p.c / p.groups) * 9;
}

class WeightGradInvoker final : public ConvInvoker {
 public:
  WeightGradInvoker(const ConvProblem& p, cl::Device& device, int m)
      : plan_(plan_of(p, m, device)),
        compute_(kernel_of(device, p, "conv_cpu_winograd_weight_grad")),
        reduce_(conv_cpu_kernel(device, p, "conv_cpu_implicit_reduce")) {
    const Gather& g = plan_.gather;
    range_ = cl::Range::grid(plan_.slices, plan_.col_blocks, g.groups * ceil_div(g.red, g.channels));
    reduce_range_.global[0] = p.k;
  }

  void run(Stream& stream, const ConvProblem::Operands& o, MemRef workspace) override {
    const Buffer partial =
        workspace.mem ? Buffer{workspace.mem, static_cast<int64_t>(workspace.offset / sizeof(float))} : o.w;
    const auto slices = static_cast<cl_int>(plan_.slices);
    compute_.launch(stream.queue(), range_, o.x.mem, o.x.offset, o.y.mem, o.y.offset, partial.mem,
                    partial.offset, plan_.gather, static_cast<cl_int>(plan_.m), slices,
                    static_cast<cl_int>(plan_.blocks),
                    cl::Local{static_cast<size_t>(plan_.scratch) * sizeof(float)});
    if (workspace.mem)
      reduce_.launch(stream.queue(), reduce_range_, partial.mem, partial.offset, o.w.mem, o.w.offset,
                     plan_.gather, slices);
  }

 private:
  const CpuWinogradPlan plan_;
  cl::Kernel &compute_, &reduce_;
  cl::Range range_, reduce_range_;
};

class Winograd final : public ConvSolver {
 public:
  const char* name() const override { return "cpu_winograd"; }
  bool takes_epilogue() const override { return true; }
  ConfigNames config_names() const override { return ConfigNames::of<WinogradConfig>(); }

  Applicability applicable(const ConvProblem& p, const cl::Device& device) const override {
    if (device.cls != cl::DeviceClass::kCpu) return Applicability::no("for CPU-like devices");
    if (const Applicability can = winograd_applicable(p); !can) return can;
    if (std::isinf(plan_of(p, 0, device).cycles)) return Applicability::no("too little local memory");
    return Applicability::yes();
  }
  std::vector<Config> configs(const ConvProblem& p, const cl::Device& device) const override {
    const int best = plan_of(p, 0, device).m;
    std::vector<Config> list = {Config::of(WinogradConfig{best})};
    for (int m : kOutputs)
      if (m != best && !std::isinf(plan_of(p, m, device).cycles))
        list.push_back(Config::of(WinogradConfig{m}));
    return list;
  }
  uint64_t workspace(const ConvProblem& p, const cl::Device& device, const Config& config) const override {
    if (p.direction != ConvDirection::kWeightGrad) return 0;
    return partial_bytes(p, plan_of(p, config.as<WinogradConfig>().m, device));
  }
  double estimate(const ConvProblem& p, const cl::Device& device) const override {
    const double excess = p.direction == ConvDirection::kWeightGrad ? weight_grad_excess(device) : 1;
    return cycles_microseconds(4, plan_of(p, 0, device).cycles * excess, device);
  }
  std::unique_ptr<ConvInvoker> invoker(const ConvProblem& p, cl::Device& device,
                                       const Config& config) const override {
    if (p.direction == ConvDirection::kWeightGrad)
      return std::make_unique<WeightGradInvoker>(p, device, config.as<WinogradConfig>().m);
    return std::make_unique<WinogradInvoker>(p, device, config.as<WinogradConfig>().m);
  }
};

}  // namespace

const ConvSolver* conv_cpu_winograd() {
  static const Winograd solver;
  return &solver;
}

}  // namespace dlb::solver
