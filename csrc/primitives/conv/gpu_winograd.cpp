// Convolution solver "gpu_winograd": minimal filtering for 3x3 filters of stride 1 on GPU-class devices:
// forward, input gradient (the forward algorithm with rotated, transposed weights) and weight gradient. The
// operands are transformed to matrices in memory, a chunk of tiles at a time, and multiplied by "gpu_tiled";
// see conv/gpu_winograd.cl, and docs/numerics.md for the error.
#include <algorithm>

#include "cl/rounding.h"
#include "primitives/common/factor.h"
#include "primitives/common/gpu_tile.h"
#include "primitives/conv/gather.h"
#include "primitives/conv/solvers.h"
#include "primitives/conv/winograd.h"
#include "primitives/gemm/solvers.h"
#include "runtime/fetch_kernel.h"

namespace dlb::solver {
namespace {

constexpr int kOutputs[] = {4, 2};  // m of F(m x m, 3x3)
// Bytes of a chunk's transformed tiles: few launches, or such that they stay in a second-level cache.
constexpr int kChunkMegabytes[] = {192, 16};
// Tiles that the weight gradient adds up one after the other; more would add up their rounding too.
constexpr int64_t kMostSummed = 4096;
constexpr uint64_t kMostWeightBytes = uint64_t(512) << 20;
constexpr int kItems = 128;
// Times a copy's rate, and times the estimate of a deep product; fitted to 3x3 convolutions of 64 to 512
// channels on an H200. The data that the transformations read is often still in the second-level cache; the
// products are shallow.
constexpr double kFromCache = 1.2, kShallow = 1.1;

using Tiles = params::WinogradTiles;

// Everything that a config means for a problem.
struct GpuWinogradPlan {
  Gather gather;
  int64_t weight_offset = 0;
  bool weight_grad = false;
  int64_t elements = 0, chunks = 0;  // of a tile; of the tiles
  Tiles tiles{};
  GemmProblem gemm;
  // Floats of the transformed image, the other operand (weights, or the output's gradient) and their product.
  int64_t image = 0, other = 0, product = 0;

  int64_t weights() const { return int64_t(gather.groups) * gather.cols * gather.red; }
};

void set(int64_t (&strides)[3], int64_t batch, int64_t row, int64_t column) {
  strides[0] = batch, strides[1] = row, strides[2] = column;
}

// The product of one chunk: forward [col][red] x [red][tile], weight gradient [col][tile] x [tile][red].
GemmProblem product_of(const GpuWinogradPlan& plan, int device) {
  const Gather& g = plan.gather;
  const int64_t tiles = plan.tiles.tiles, red = g.red, cols = g.cols;
  const bool in_fast = plan.tiles.in_channels_fast, out_fast = plan.tiles.out_channels_fast;
  GemmProblem p;
  p.device = static_cast<int8_t>(device);
  p.batch = plan.elements * g.groups, p.m = cols;
  if (plan.weight_grad) {
    p.n = red, p.k = tiles;
    set(p.a, cols * tiles, out_fast ? 1 : tiles, out_fast ? cols : 1);
    set(p.b, red * tiles, in_fast ? red : 1, in_fast ? 1 : tiles);
    set(p.c, cols * red, red, 1);
    p.has_d = plan.chunks > 1;  // the chunks add up
    if (p.has_d) std::copy_n(p.c, 3, p.d);
  } else {
    p.n = tiles, p.k = red;
    set(p.a, cols * red, red, 1);
    set(p.b, red * tiles, in_fast ? 1 : tiles, in_fast ? red : 1);
    set(p.c, cols * tiles, out_fast ? 1 : tiles, out_fast ? cols : 1);
  }
  p.normalize();
  return p;
}

GpuWinogradPlan plan_of(const ConvProblem& p, int m, int megabytes) {
  const Phase phase = phases_of(p).front();
  GpuWinogradPlan plan;
  plan.gather = phase.gather, plan.weight_offset = phase.weight_offset;
  plan.weight_grad = p.direction == ConvDirection::kWeightGrad;
  plan.elements = int64_t(m + 2) * (m + 2);
  const Gather& g = plan.gather;
  Tiles& t = plan.tiles;
  t.rows = static_cast<int>(ceil_div(g.q[1], m)), t.columns = static_cast<int>(ceil_div(g.q[2], m));
  const int64_t all = int64_t(g.n) * g.q[0] * t.rows * t.columns;
  const int64_t floats = plan.elements * g.groups * (int64_t(g.red) + g.cols);  // of a tile
  const int64_t most = std::clamp<int64_t>((int64_t(megabytes) << 20) / 4 / floats, 64,
                                           plan.weight_grad ? kMostSummed : INT32_MAX);
  plan.chunks = ceil_div(all, most);
  t.all = static_cast<int>(all);
  t.tiles = static_cast<int>(round_up(ceil_div(all, plan.chunks), 4));
  t.in_channels_fast = g.is[1] == 1 && g.red > 1, t.out_channels_fast = g.os[1] == 1 && g.cols > 1;
  const int64_t image = plan.elements * g.groups * g.red * t.tiles;
  const int64_t output = plan.elements * g.groups * g.cols * t.tiles;
  const int64_t weights = plan.elements * plan.weights();
  plan.image = round_up(image, 64);
  plan.other = round_up(plan.weight_grad ? output : weights, 64);
  plan.product = round_up(plan.weight_grad ? weights : output, 64);
  plan.gemm = product_of(plan, p.device);
  return plan;
}

// Derived rates decide: a solution's config does not name this one, so that it must come out alike whenever
// it is asked for, also in a process that chooses by other rates.
Config gemm_config(const GpuWinogradPlan& plan, const cl::Device& device) {
  return gemm_gpu_tiled_config(plan.gemm, device, derived_rates(device));
}

double time_of(const ConvProblem& p, const GpuWinogradPlan& plan, const cl::Device& device) {
  const double element = c10::elementSize(p.dtype);
  const double matrices = 8.0 * (plan.image + (plan.weight_grad ? plan.other : plan.product)) * plan.chunks;
  const double weights = (4.0 * plan.elements + 9 * element) * plan.weights();
  const double images = element * (2.0 * p.n * p.c * p.in_pixels() + double(p.n) * p.k * p.out_pixels());
  const DeviceRates& rates = rates_of(device);
  return kGpuTileLaunches * rates.launch_us * (1 + 2 * plan.chunks) +
         (matrices + weights + images) / (kFromCache * rates.bytes) +
         kShallow * plan.chunks * gemm_gpu_tiled()->estimate(plan.gemm, device);
}

// m with the lower estimate.
int best_outputs(const ConvProblem& p, const cl::Device& device) {
  const auto time = [&](int m) { return time_of(p, plan_of(p, m, kChunkMegabytes[0]), device); };
  return time(kOutputs[0]) <= time(kOutputs[1]) ? kOutputs[0] : kOutputs[1];
}

struct WinogradConfig {
  int32_t m = 0, megabytes = 0;  // of F(m x m, 3x3); mebibytes of a chunk
  static constexpr const char* kNames[] = {"m", "megabytes"};
};

class WinogradInvoker final : public ConvInvoker {
 public:
  WinogradInvoker(const ConvProblem& p, cl::Device& device, const Config& config)
      : input_grad_(p.direction == ConvDirection::kInputGrad),
        epilogue_(p.epilogue),
        plan_(plan_of(p, config.as<WinogradConfig>().m, config.as<WinogradConfig>().megabytes)),
        gemm_(gemm_gpu_tiled()->invoker(plan_.gemm, device, gemm_config(plan_, device))),
        input_(kernel(p, device, config.as<WinogradConfig>().m, "conv_gpu_winograd_input")),
        other_(kernel(p, device, config.as<WinogradConfig>().m,
                      plan_.weight_grad ? "conv_gpu_winograd_grads" : "conv_gpu_winograd_weights")),
        result_(kernel(p, device, config.as<WinogradConfig>().m,
                       plan_.weight_grad ? "conv_gpu_winograd_taps" : "conv_gpu_winograd_output",
                       p.epilogue)) {}

  void run(Stream& stream, const ConvProblem::Operands& o, MemRef workspace) override {
    const GpuWinogradPlan& plan = plan_;
    const Gather& g = plan.gather;
    const int64_t offset = static_cast<int64_t>(workspace.offset / sizeof(float));
    const Buffer image{workspace.mem, offset}, other{workspace.mem, offset + plan.image},
        product{workspace.mem, offset + plan.image + plan.other};
    MemRef rest = workspace;
    rest.offset += (plan.image + plan.other + plan.product) * sizeof(float);
    const Buffer &in = input_grad_ ? o.y : o.x, &out = input_grad_ ? o.x : o.y;
    const Buffer& bias = g.has_bias ? o.bias : o.w;
    const int64_t weights = o.w.offset + plan.weight_offset;
    cl::Queue& queue = stream.queue();

    if (!plan.weight_grad)
      other_.launch(queue, range(plan.weights()), o.w.mem, weights, other.mem, other.offset, g);
    for (Tiles tiles = plan.tiles; tiles.first < tiles.all; tiles.first += tiles.tiles) {
      const cl::Range by_output = range(int64_t(g.groups) * g.cols * tiles.tiles);
      input_.launch(queue, range(int64_t(g.groups) * g.red * tiles.tiles), in.mem, in.offset, image.mem,
                    image.offset, g, tiles);
      if (plan.weight_grad)
        other_.launch(queue, by_output, out.mem, out.offset, other.mem, other.offset, g, tiles);
      const Factor beta = tiles.first > 0 ? Factor{} : Factor{0, 0, 0};
      gemm_->run(stream, {other, image, product, product, Factor{}, beta}, rest);
      if (!plan.weight_grad)
        result_.launch_with(queue, by_output, [&](auto& arguments) {
          arguments.add(product.mem), arguments.add(product.offset);
          arguments.add(in.mem), arguments.add(in.offset);
          arguments.add(o.w.mem), arguments.add(weights);
          arguments.add(out.mem), arguments.add(out.offset);
          arguments.add(bias.mem), arguments.add(bias.offset);
          arguments.add(within(g, o.bounds)), arguments.add(tiles);
          add_epilogue(arguments, epilogue_, o);
        });
    }
    if (plan.weight_grad)
      result_.launch(queue, range(plan.weights()), product.mem, product.offset, in.mem, in.offset, out.mem,
                     out.offset, o.w.mem, weights, g);
  }

 private:
  static cl::Kernel& kernel(const ConvProblem& p, cl::Device& device, int m, const char* name,
                            const Epilogue& epilogue = {}) {
    return fetch_with(epilogue, device,
                      {"common/gpu_tile.clh", "conv/gather.clh", "conv/winograd.clh", "conv/gpu_winograd.cl"},
                      name,
                      gpu_options(device, p.dtype) + " -DWINOGRAD_TYPE=float -DOUT=" + std::to_string(m));
  }
  static cl::Range range(int64_t items) { return cl::Range::linear(ceil_div(items, kItems), kItems); }

  const bool input_grad_;
  const Epilogue epilogue_;
  const GpuWinogradPlan plan_;
  const std::unique_ptr<GemmInvoker> gemm_;
  cl::Kernel &input_, &other_, &result_;
};

class Winograd final : public ConvSolver {
 public:
  const char* name() const override { return "gpu_winograd"; }
  bool takes_epilogue() const override { return true; }
  ConfigNames config_names() const override { return ConfigNames::of<WinogradConfig>(); }

  Applicability applicable(const ConvProblem& p, const cl::Device& device) const override {
    if (const char* reason = gpu_tiles_refuse(device, p.dtype)) return Applicability::no(reason);
    if (const Applicability can = winograd_applicable(p); !can) return can;
    if (36 * sizeof(float) * p.k * (p.c / p.groups) > kMostWeightBytes)
      return Applicability::no("the transformed weights take more than 512 MiB");
    // with two outputs to a tile, and never fewer than 64 tiles in a chunk
    const double tiles = double(p.n) * p.in_pixels() + double(p.n) * p.out_pixels();
    if (tiles > INT32_MAX || 36 * 64 * (double(p.c) + p.k) > INT32_MAX)
      return Applicability::no("2^31 pixels or transformed elements");
    return Applicability::yes();
  }
  uint64_t workspace(const ConvProblem& p, const cl::Device& device, const Config& config) const override {
    const GpuWinogradPlan plan =
        plan_of(p, config.as<WinogradConfig>().m, config.as<WinogradConfig>().megabytes);
    return (plan.image + plan.other + plan.product) * sizeof(float) +
           gemm_gpu_tiled()->workspace(plan.gemm, device, gemm_config(plan, device));
  }
  std::vector<Config> configs(const ConvProblem& p, const cl::Device& device) const override {
    const int best = best_outputs(p, device);
    std::vector<Config> list;
    for (int megabytes : kChunkMegabytes)
      for (int m : {best, kOutputs[0] + kOutputs[1] - best})
        if (megabytes == kChunkMegabytes[0] || plan_of(p, m, megabytes).chunks > 1)
          list.push_back(Config::of(WinogradConfig{m, megabytes}));
    return list;
  }
  Config first_config(const ConvProblem& p, const cl::Device& device) const override {
    return {{best_outputs(p, device), kChunkMegabytes[0]}};
  }
  double estimate(const ConvProblem& p, const cl::Device& device) const override {
    return time_of(p, plan_of(p, best_outputs(p, device), kChunkMegabytes[0]), device);
  }
  std::unique_ptr<ConvInvoker> invoker(const ConvProblem& p, cl::Device& device,
                                       const Config& config) const override {
    return std::make_unique<WinogradInvoker>(p, device, config);
  }
};

}  // namespace

const ConvSolver* conv_gpu_winograd() {
  static const Winograd solver;
  return &solver;
}

}  // namespace dlb::solver
