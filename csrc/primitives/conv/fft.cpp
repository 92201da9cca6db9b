// Convolution solver "fft": forward passes and input gradients of stride 1 with large filters, as products of
// spectra. A result costs as much whatever the filter's size. Images are padded to a length that transforms
// are fast for, so that what wraps around meets zeros; see conv/fft.cl, and docs/numerics.md for the error.
#include <algorithm>
#include <cmath>

#include "cl/rounding.h"
#include "primitives/common/compute_estimates.h"
#include "primitives/common/split.h"
#include "primitives/conv/gather.h"
#include "primitives/conv/solvers.h"
#include "primitives/fft/tiles.h"
#include "runtime/fetch_kernel.h"

namespace dlb::solver {
namespace {

using fft::TileLaunch;
using fft::TileTask;
using params::FftChunk;

constexpr uint64_t kMostBytes = uint64_t{512} << 20, kAlign = 64;
constexpr int64_t kChunkBytes = int64_t{64} << 20;

// A length for an axis of a gather. Even ones for the width: its numbers are transformed in pairs.
int64_t length_of(const Gather& g, int axis, bool even) {
  const int64_t reached = g.first[axis] + g.q[axis] + int64_t{g.taps[axis] - 1} * g.dilation[axis];
  const int64_t length = std::max<int64_t>(g.in[axis], reached) - std::min(0, g.first[axis]);
  return even ? 2 * fft::padded_length(ceil_div(length, int64_t{2})) : fft::padded_length(length);
}

struct FftPlan {
  Gather gather{};
  int64_t weight_offset = 0, output_offset = 0;
  int64_t rows = 1, columns = 2, half = 2;  // of a transform; numbers of a spectrum's row
  int64_t plane = 0;                        // floats
  int64_t in_channels = 0, out_channels = 0, filters = 0;
  int64_t chunk = 1;  // images
  // Floats of lines of real numbers, of their transforms, and of spectra of images, filters and results.
  int64_t lines = 0, halves = 0, images = 0, weights = 0, results = 0;
  uint64_t bytes() const {
    return static_cast<uint64_t>(lines + halves + images + weights + results) * sizeof(float);
  }
};

FftPlan plan_of(const ConvProblem& p, const cl::Device& device) {
  const Phase phase = phases_of(p).front();
  FftPlan plan;
  plan.gather = phase.gather;
  plan.weight_offset = phase.weight_offset, plan.output_offset = phase.output_offset;
  const Gather& g = plan.gather;
  plan.rows = length_of(g, 1, false), plan.columns = length_of(g, 2, true), plan.half = plan.columns / 2 + 1;
  plan.plane = round_up(plan.rows * plan.half, int64_t{16});
  plan.in_channels = int64_t{g.groups} * g.red, plan.out_channels = int64_t{g.groups} * g.cols;
  plan.filters = plan.out_channels * g.red;
  const int64_t image = 2 * plan.plane * (plan.in_channels + plan.out_channels);
  plan.chunk = std::clamp<int64_t>(kChunkBytes / 4 / image, 1, g.n);
  const int64_t in_lines = plan.chunk * plan.in_channels * g.in[1],
                out_lines = plan.chunk * plan.out_channels * g.q[1], filter_lines = plan.filters * plan.rows;
  const int64_t lines = std::max({in_lines, out_lines, filter_lines});
  plan.lines = round_up(lines * plan.columns, int64_t{16}),
  plan.halves = round_up(lines * plan.half * 2, int64_t{16});
  plan.images = plan.chunk * plan.in_channels * 2 * plan.plane;
  plan.results = plan.chunk * plan.out_channels * 2 * plan.plane;
  plan.weights = plan.filters * 2 * plan.plane;
  return plan;
}

// Lines of real numbers and their spectra, or back; `lines` of each of `batch`.
TileTask lines_task(const FftPlan& plan, int64_t lines, int64_t batch, bool back) {
  TileTask t;
  t.n = t.points = plan.columns / 2, t.lanes = lines, t.sizes[0] = batch, t.capacity = plan.half;
  params::FftView real{}, spectrum{};
  real.step = spectrum.step = 2, real.im = spectrum.im = 1;
  real.lane = plan.columns, spectrum.lane = 2 * plan.half;
  real.batch[0] = lines * real.lane, spectrum.batch[0] = lines * spectrum.lane;
  t.in = back ? spectrum : real, t.out = back ? real : spectrum;
  t.in_count = back ? plan.half : t.n, t.out_count = back ? t.n : plan.half;
  t.flags = back ? params::FFT_PACK | params::FFT_SWAP_OUT : params::FFT_UNPACK;
  return t;
}

// Columns of so many lines to planes, or back.
TileTask columns_task(const FftPlan& plan, int64_t lines, int64_t batch, bool back) {
  TileTask t;
  t.n = t.points = t.capacity = plan.rows, t.lanes = plan.half, t.sizes[0] = batch;
  params::FftView line{}, planes{};
  line.step = 2 * plan.half, line.im = 1, line.lane = 2, line.batch[0] = lines * line.step;
  planes.step = plan.half, planes.im = plan.plane, planes.lane = 1, planes.batch[0] = 2 * plan.plane;
  t.in = back ? planes : line, t.out = back ? line : planes;
  t.in_count = back ? plan.rows : lines, t.out_count = back ? lines : plan.rows;
  t.flags = back ? params::FFT_SWAP_IN | params::FFT_SWAP_OUT : lines < plan.rows ? params::FFT_FILL : 0;
  return t;
}

// The six kinds of transforms.
struct Tasks {
  TileTask filter_lines, filter_columns, image_lines, image_columns, back_columns, back_lines;
  explicit Tasks(const FftPlan& plan)
      : filter_lines(lines_task(plan, plan.rows, plan.filters, false)),
        filter_columns(columns_task(plan, plan.rows, plan.filters, false)),
        image_lines(lines_task(plan, plan.in_channels * plan.gather.in[1], plan.chunk, false)),
        image_columns(columns_task(plan, plan.gather.in[1], plan.chunk * plan.in_channels, false)),
        back_columns(columns_task(plan, plan.gather.q[1], plan.chunk * plan.out_channels, true)),
        back_lines(lines_task(plan, plan.out_channels * plan.gather.q[1], plan.chunk, true)) {}
};

class FftInvoker final : public ConvInvoker {
 public:
  FftInvoker(const ConvProblem& p, cl::Device& device)
      : input_grad_(p.direction == ConvDirection::kInputGrad),
        device_(device),
        plan_(plan_of(p, device)),
        filter_lines_(Tasks(plan_).filter_lines, device, false),
        filter_columns_(Tasks(plan_).filter_columns, device, false),
        image_lines_(Tasks(plan_).image_lines, device, false),
        image_columns_(Tasks(plan_).image_columns, device, false),
        back_columns_(Tasks(plan_).back_columns, device, false),
        back_lines_(Tasks(plan_).back_lines, device, false),
        image_(kernel("conv_fft_image")),
        filter_(kernel("conv_fft_filter")),
        multiply_(kernel("conv_fft_multiply")),
        output_(kernel("conv_fft_output")) {}

  void run(Stream& stream, const ConvProblem::Operands& o, MemRef workspace) override {
    const FftPlan& plan = plan_;
    const Gather& g = plan.gather;
    int64_t at = static_cast<int64_t>(round_up(workspace.offset, kAlign) / sizeof(float));
    const auto take = [&](int64_t floats) {
      const Buffer buffer{workspace.mem, at};
      at += floats;
      return buffer;
    };
    const Buffer lines = take(plan.lines), halves = take(plan.halves), images = take(plan.images),
                 weights = take(plan.weights), results = take(plan.results);
    const MemRef rest{workspace.mem, static_cast<uint64_t>(at) * sizeof(float)};
    const Buffer &in = input_grad_ ? o.y : o.x, &out = input_grad_ ? o.x : o.y;
    const Buffer& bias = g.has_bias ? o.bias : o.w;
    const double scale = 1.0 / static_cast<double>(plan.rows * plan.columns);
    cl::Queue& queue = stream.queue();
    FftChunk t{plan.plane, static_cast<int32_t>(plan.rows), static_cast<int32_t>(plan.columns), 0, 0, 0, 0};

    filter_.launch(queue, split(t, plan.filters * plan.rows, plan.columns), o.w.mem,
                   o.w.offset + plan.weight_offset, lines.mem, lines.offset, g, t);
    filter_lines_.run(stream, lines, halves, 0, plan.filters, 1, rest);
    filter_columns_.run(stream, halves, weights, 0, plan.filters, 1, rest);
    for (int64_t first = 0; first < g.n; first += plan.chunk) {
      const int64_t count = std::min<int64_t>(plan.chunk, g.n - first);
      t.image = static_cast<int32_t>(first), t.images = static_cast<int32_t>(count);
      image_.launch(queue, split(t, count * plan.in_channels * g.in[1], plan.columns), in.mem, in.offset,
                    lines.mem, lines.offset, g, t);
      image_lines_.run(stream, lines, halves, 0, count, 1, rest);
      image_columns_.run(stream, halves, images, 0, count * plan.in_channels, 1, rest);
      multiply_.launch(queue, split(t, products(count), 8 * g.red), images.mem, images.offset, weights.mem,
                       weights.offset, results.mem, results.offset, g, t);
      back_columns_.run(stream, results, halves, 0, count * plan.out_channels, 1, rest);
      back_lines_.run(stream, halves, lines, 0, count, scale, rest);
      output_.launch(queue, split(t, count * plan.out_channels * g.q[1], plan.columns), lines.mem,
                     lines.offset, in.mem, in.offset, o.w.mem, o.w.offset + plan.weight_offset, bias.mem,
                     bias.offset, out.mem, out.offset + plan.output_offset, within(g, o.bounds), t);
    }
  }

 private:
  cl::Kernel& kernel(const char* name) const {
    return fetch_kernel(device_, {"conv/fft.cl"}, name, fft::options_of(device_, false));
  }
  int64_t products(int64_t images) const {
    const int64_t width = is_cpu_device() ? fft::tile_width(device_, false) : 1;
    return plan_.plane / width * ceil_div(int64_t{plan_.gather.cols}, int64_t{params::FFT_COLUMNS}) *
           plan_.gather.groups * ceil_div(images, int64_t{params::FFT_IMAGES});
  }
  bool is_cpu_device() const { return device_.cls == cl::DeviceClass::kCpu; }
  // The range of a kernel whose items are so much work each.
  cl::Range split(FftChunk& t, int64_t items, int64_t work) const {
    const Split by =
        split_work(device_, static_cast<uint64_t>(items),
                   static_cast<uint32_t>(std::max<int64_t>(1, 8192 / std::max<int64_t>(1, work))));
    t.items = static_cast<int32_t>(items), t.per_item = static_cast<int32_t>(by.per_item);
    return by.range;
  }

  const bool input_grad_;
  cl::Device& device_;
  const FftPlan plan_;
  const TileLaunch filter_lines_, filter_columns_, image_lines_, image_columns_, back_columns_, back_lines_;
  cl::Kernel &image_, &filter_, &multiply_, &output_;
};

class FftConv final : public ConvSolver {
 public:
  const char* name() const override { return "fft"; }
  Applicability applicable(const ConvProblem& p, const cl::Device& device) const override {
    constexpr int kLeastTaps = 25;  // fewer are faster as a direct sum
    if (p.dtype != c10::ScalarType::Float) return Applicability::no("float32 only");
    if (p.direction == ConvDirection::kWeightGrad) return Applicability::no("no weight gradient");
    if (p.taps() < kLeastTaps) return Applicability::no("a small filter");
    if (p.in[0] != 1 || p.out[0] != 1 || p.filter[0] != 1) return Applicability::no("three dimensions");
    for (int i = 0; i < 3; i++)
      if (p.stride[i] != 1 || (i == 0 && p.padding[i] != 0)) return Applicability::no("stride");
    if (p.c == 0 || p.k == 0) return Applicability::no("no channels to sum over");
    const FftPlan plan = plan_of(p, device);
    const int64_t most = fft::most_in_tile(device, false);
    if (plan.rows > most || plan.half > most) return Applicability::no("images too large");
    if (plan.bytes() > kMostBytes) return Applicability::no("spectra take more than 512 MiB");
    if (plan.bytes() / sizeof(float) > INT32_MAX) return Applicability::no("2^31 elements");
    return Applicability::yes();
  }
  uint64_t workspace(const ConvProblem& p, const cl::Device& device, const Config&) const override {
    const FftPlan plan = plan_of(p, device);
    const Tasks tasks(plan);
    uint64_t work = 0;
    for (const TileTask* task : {&tasks.filter_lines, &tasks.filter_columns, &tasks.image_lines,
                                 &tasks.image_columns, &tasks.back_columns, &tasks.back_lines})
      work = std::max(work, TileLaunch::workspace(*task, device, false));
    return plan.bytes() + work + 2 * kAlign;
  }
  double estimate(const ConvProblem& p, const cl::Device& device) const override {
    const FftPlan plan = plan_of(p, device);
    const Gather& g = plan.gather;
    const double channels = double(g.n) * double(plan.in_channels + plan.out_channels) + double(plan.filters);
    const double points = double(plan.rows) * double(plan.columns);
    const double transforms = 2.5 * channels * points * std::log2(std::max(2.0, points));
    const double products = 8.0 * g.n * double(plan.filters) * double(plan.plane);
    const DeviceRates& rates = rates_of(device);
    const double launches = 3 + 6.0 * double(ceil_div(int64_t{g.n}, plan.chunk));
    // shares of the rate of multiply-adds
    constexpr double kTransforms = 0.12, kProducts = 0.3;
    return launches * rates.launch_us + transforms / (kTransforms * rates.float32) +
           products / (kProducts * rates.float32) + 24 * channels * points / rates.bytes;
  }
  std::unique_ptr<ConvInvoker> invoker(const ConvProblem& p, cl::Device& device,
                                       const Config&) const override {
    return std::make_unique<FftInvoker>(p, device);
  }
};

}  // namespace

const ConvSolver* conv_fft() {
  static const FftConv solver;
  return &solver;
}

}  // namespace dlb::solver
