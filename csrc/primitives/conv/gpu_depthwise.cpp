// Convolution solver "gpu_depthwise": one input channel per group, on GPU-class devices; see
// conv/gpu_depthwise.cl, and conv/depthwise_windows.cl for weight gradients of usual filters.
#include <algorithm>

#include "cl/rounding.h"
#include "kernels/conv/params.h"
#include "primitives/common/factor.h"
#include "primitives/common/gpu_tile.h"
#include "primitives/conv/solvers.h"
#include "primitives/conv/strides.h"
#include "runtime/fetch_kernel.h"

namespace dlb::solver {
namespace {

using Arguments = params::ConvDepthwise;

constexpr int kItems = params::DEPTHWISE_ITEMS, kRun = params::DEPTHWISE_RUN,
              kLanes = params::DEPTHWISE_CHANNELS;
constexpr int64_t kShortestPart = 512;  // pixels of a part of the weight gradient
constexpr double kGroupsPerUnit = 20;   // of the weight gradient, measured on an H200

bool channels_fast(const ConvProblem& p) {
  return p.xs[1] == 1 && p.c > 1;
}

// A stride-1 input gradient is a forward pass with the filter walked backwards.
bool runs_forward(const ConvProblem& p) {
  return p.direction == ConvDirection::kForward || (p.direction == ConvDirection::kInputGrad && p.k == p.c &&
                                                    p.stride[0] == 1 && p.stride[1] == 1 && p.stride[2] == 1);
}

// By sliding windows, which are in registers.
constexpr int64_t kMostTaps = 7 * 7, kMostTapsOfDoubles = 5 * 5, kWindowStride = 3;
constexpr double kWindowGroupsPerUnit = 8;  // four run at once

bool has_windows(const ConvProblem& p) {
  const int64_t taps = p.filter[1] * p.filter[2];
  return (p.direction == ConvDirection::kWeightGrad || (runs_forward(p) && p.filter[0] == 1)) &&
         (p.dilation[1] == 1 || p.filter[1] == 1) && p.stride[1] <= kWindowStride &&
         std::max(p.filter[1], p.filter[2]) <= 7 &&
         taps <= (p.dtype == c10::ScalarType::Double ? kMostTapsOfDoubles : kMostTaps);
}

int64_t lanes_of(const ConvProblem& p) {
  return channels_fast(p) ? kLanes : 1;
}

// Rows of y of a column: as many as leave work for all compute units, which saves loading a window's first
// rows.
int32_t segment_of(const Arguments& a, const cl::Device& device) {
  const double wanted = kWindowGroupsPerUnit / 2 * device.compute_units * kItems;
  const double whole = double(a.batch) * a.channels * a.y_size[0] * a.y_size[2];
  const int32_t most = std::max(ceil_div(a.y_size[1], 2 * a.taps[1]), 1);
  const auto segments = static_cast<int32_t>(std::clamp<double>(wanted / std::max(whole, 1.0), 1, most));
  return round_up(std::max(ceil_div(a.y_size[1], segments), 1), a.taps[1]);
}

int64_t columns_of(const Arguments& a) {
  return int64_t(a.batch) * a.y_size[0] * a.y_size[2] * ceil_div(a.y_size[1], a.segment);
}

int splits_of(const ConvProblem& p, const cl::Device& device) {
  int64_t tap;
  if (p.direction != ConvDirection::kWeightGrad || !evenly_spaced(p.filter, p.ws, tap)) return 1;
  const double groups = channels_fast(p) ? ceil_div(p.k, kLanes) : p.k;
  const int64_t longest = std::max<int64_t>(p.n * p.out_pixels() / kShortestPart, 1);
  return std::clamp<int64_t>(static_cast<int64_t>(kGroupsPerUnit * device.compute_units / groups), 1,
                             longest);
}

Arguments arguments_of(const ConvProblem& p, int splits) {
  Arguments a{};
  a.batch = p.n, a.channels = p.k, a.multiplier = p.k / p.c, a.splits = splits;
  a.x_n = p.xs[0], a.x_c = p.xs[1], a.y_n = p.ys[0], a.y_c = p.ys[1], a.w_c = p.ws[0];
  a.has_bias = p.has_bias, a.channels_fast = channels_fast(p);
  for (int d = 0; d < 3; d++) {
    a.x_size[d] = p.in[d], a.y_size[d] = p.out[d], a.taps[d] = p.filter[d];
    a.stride[d] = p.stride[d], a.pad[d] = p.padding[d], a.dilation[d] = p.dilation[d];
    a.x_s[d] = p.xs[2 + d], a.y_s[d] = p.ys[2 + d], a.w_s[d] = p.ws[2 + d];
  }
  if (p.direction == ConvDirection::kInputGrad && runs_forward(p)) {
    std::swap(a.x_n, a.y_n), std::swap(a.x_c, a.y_c);
    std::swap(a.x_size, a.y_size), std::swap(a.x_s, a.y_s);
    for (int d = 0; d < 3; d++) {
      a.pad[d] = p.dilation[d] * (p.filter[d] - 1) - p.padding[d];
      a.w_offset += int64_t(p.filter[d] - 1) * p.ws[2 + d];
      a.w_s[d] = -a.w_s[d];
    }
  }
  return a;
}

int window_splits_of(const ConvProblem& p, const cl::Device& device) {
  int64_t tap;
  if (p.direction != ConvDirection::kWeightGrad || !evenly_spaced(p.filter, p.ws, tap)) return 1;
  Arguments a = arguments_of(p, 1);
  a.segment = segment_of(a, device);
  const int64_t most = std::max<int64_t>(ceil_div(columns_of(a), kItems / lanes_of(p)), 1);
  const int64_t groups = ceil_div(int64_t(p.k), lanes_of(p));
  const auto wanted = static_cast<int64_t>(kWindowGroupsPerUnit * device.compute_units) / groups;
  return static_cast<int>(std::clamp<int64_t>(wanted, 1, most));
}

struct DepthwiseConfig {
  int32_t splits = 1;   // parts of the weight gradient's sums
  int32_t windows = 0;  // 1: pixels in windows that slide
  static constexpr const char* kNames[] = {"splits", "windows"};
};

class DepthwiseInvoker final : public ConvInvoker {
 public:
  DepthwiseInvoker(const ConvProblem& p, cl::Device& device, const DepthwiseConfig& config)
      : direction_(p.direction),
        dtype_(p.dtype),
        forward_(runs_forward(p)),
        epilogue_(p.epilogue),
        arguments_(arguments_of(p, config.splits)),
        kernel_(config.windows
                    ? windows(p, device)
                    : fetch_with(p.epilogue, device,
                                 {"common/gpu_tile.clh", "conv/gpu_depthwise.cl", "common/split_reduce.cl"},
                                 kernel_name(p), gpu_options(device, p.dtype))) {
    if (config.windows) arguments_.segment = segment_of(arguments_, device);
    if (p.direction == ConvDirection::kWeightGrad) {
      range_.dims = 2;
      range_.local[0] = kItems;
      range_.global[0] = ceil_div(int64_t(p.k), lanes_of(p)) * kItems;
      range_.global[1] = config.splits;
    } else if (config.windows) {
      range_ = cl::Range::linear(ceil_div(columns_of(arguments_) * p.k, kItems), kItems);
    } else {
      const int32_t(&size)[4] = forward_ ? arguments_.y_size : arguments_.x_size;
      const int64_t rows = forward_ ? ceil_div(size[1], kRun) : size[1];
      range_ = cl::Range::linear(
          ceil_div(int64_t(p.n) * (forward_ ? p.k : p.c) * size[0] * rows * size[2], kItems), kItems);
    }
    if (config.splits == 1) return;
    reduce_ =
        &fetch_kernel(device, {"common/gpu_tile.clh", "conv/gpu_depthwise.cl", "common/split_reduce.cl"},
                      "split_reduce", gpu_options(device, p.dtype));
    evenly_spaced(p.filter, p.ws, split_.c_n);
    split_.c_m = p.ws[0], split_.batch = 1, split_.m = p.k, split_.n = p.taps(),
    split_.splits = config.splits;
  }

  void run(Stream& stream, const ConvProblem::Operands& o, MemRef workspace) override {
    const bool swapped = direction_ == ConvDirection::kInputGrad && forward_;
    const Buffer &x = swapped ? o.y : o.x, &y = swapped ? o.x : o.y;
    const Buffer& bias = arguments_.has_bias ? o.bias : o.w;
    Arguments a = arguments_;
    a.x_offset = x.offset, a.y_offset = y.offset, a.bias_offset = bias.offset, a.w_offset += o.w.offset;
    a.partial_offset = static_cast<int64_t>(workspace.offset / partial_bytes(dtype_));
    set_bounds(a, o.bounds);
    if (direction_ != ConvDirection::kWeightGrad)
      return kernel_.launch_with(stream.queue(), range_, [&](auto& arguments) {
        for (const cl_mem mem : {x.mem, o.w.mem, y.mem, bias.mem}) arguments.add(mem);
        arguments.add(a);
        add_epilogue(arguments, epilogue_, o);
      });
    kernel_.launch(stream.queue(), range_, x.mem, o.w.mem, y.mem, workspace.mem ? workspace.mem : o.w.mem, a);
    if (reduce_)
      launch_split_reduce(*reduce_, stream.queue(), split_, dtype_, workspace, o.w, o.w, Factor{},
                          Factor{0, 0, 0}, Bounds{});
  }

 private:
  static cl::Kernel& windows(const ConvProblem& p, cl::Device& device) {
    return fetch_with(p.epilogue, device, {"common/gpu_tile.clh", "conv/depthwise_windows.cl"},
                      p.direction == ConvDirection::kWeightGrad ? "conv_depthwise_windows_gradient"
                                                                : "conv_depthwise_windows_forward",
                      gpu_options(device, p.dtype) + " -DTAP_ROWS=" + std::to_string(p.filter[1]) +
                          " -DTAP_COLS=" + std::to_string(p.filter[2]) +
                          " -DSTRIDE=" + std::to_string(p.stride[1]));
  }

  static const char* kernel_name(const ConvProblem& p) {
    if (runs_forward(p)) return "conv_gpu_depthwise_forward";
    return p.direction == ConvDirection::kInputGrad ? "conv_gpu_depthwise_input_gradient"
                                                    : "conv_gpu_depthwise_weight_gradient";
  }

  const ConvDirection direction_;
  const c10::ScalarType dtype_;
  const bool forward_;
  const Epilogue epilogue_;
  Arguments arguments_;
  cl::Kernel& kernel_;
  cl::Kernel* reduce_ = nullptr;
  cl::Range range_;
  SplitReduce split_{};
};

class Depthwise final : public ConvSolver {
 public:
  const char* name() const override { return "gpu_depthwise"; }
  bool takes_epilogue() const override { return true; }
  int revision() const override { return 2; }
  ConfigNames config_names() const override { return ConfigNames::of<DepthwiseConfig>(); }
  Applicability applicable(const ConvProblem& p, const cl::Device& device) const override {
    if (const char* reason = gpu_tiles_refuse(device, p.dtype)) return Applicability::no(reason);
    if (p.c == 0 || p.c != p.groups) return Applicability::no("more than one input channel per group");
    const int64_t limit = INT32_MAX / 2;
    if (span(p.xs, {p.n, p.c, p.in[0], p.in[1], p.in[2]}) > limit ||
        span(p.ys, {p.n, p.k, p.out[0], p.out[1], p.out[2]}) > limit ||
        span(p.ws, {p.k, 1, p.filter[0], p.filter[1], p.filter[2]}) > limit)
      return Applicability::no("a tensor of 2^30 elements or more");
    return Applicability::yes();
  }
  uint64_t workspace(const ConvProblem& p, const cl::Device&, const Config& config) const override {
    const int32_t splits = config.as<DepthwiseConfig>().splits;
    return splits == 1 ? 0 : partial_bytes(p.dtype) * splits * p.k * p.taps();
  }
  std::vector<Config> configs(const ConvProblem& p, const cl::Device& device) const override {
    std::vector<Config> list;
    if (has_windows(p)) list.push_back(Config::of(DepthwiseConfig{window_splits_of(p, device), 1}));
    list.push_back(Config::of(DepthwiseConfig{splits_of(p, device), 0}));
    return list;
  }
  double estimate(const ConvProblem& p, const cl::Device& device) const override {
    const DeviceRates& rates = rates_of(device);
    // of multiply-adds in registers
    const double share = p.direction == ConvDirection::kWeightGrad && !has_windows(p) ? 0.02 : 0.04;
    return kGpuTileLaunches * rates.launch_us + p.flops() / (share * rates.plain(p.dtype));
  }
  std::unique_ptr<ConvInvoker> invoker(const ConvProblem& p, cl::Device& device,
                                       const Config& config) const override {
    return std::make_unique<DepthwiseInvoker>(p, device, config.as<DepthwiseConfig>());
  }
};

}  // namespace

const ConvSolver* conv_gpu_depthwise() {
  static const Depthwise solver;
  return &solver;
}

}  // namespace dlb::solver
