// Convolution solver "gpu_plain": plain tiles for GPU-class devices, which run while better kernels are
// compiled; see conv/gpu_plain.cl.
#include <algorithm>

#include "cl/rounding.h"
#include "kernels/common/plain_tile.h"
#include "primitives/common/compute_estimates.h"
#include "primitives/common/gpu_tile.h"
#include "primitives/conv/shape.h"
#include "primitives/conv/solvers.h"
#include "runtime/fetch_kernel.h"

namespace dlb::solver {
namespace {

constexpr int64_t kShortestPart = 512;  // of a weight gradient's sums
constexpr int64_t kGroupsPerUnit = 4;   // that run at once

bool is_weight_grad(const ConvProblem& p) {
  return p.direction == ConvDirection::kWeightGrad;
}

// A group's product.
struct Product {
  int64_t rows, columns, depth;
  explicit Product(const ConvProblem& p) {
    const bool data = p.direction == ConvDirection::kInputGrad;
    const int64_t c = p.c / p.groups, k = p.k / p.groups, taps = p.taps();
    rows = data ? c : k;
    columns = is_weight_grad(p) ? c * taps : p.n * (data ? p.in_pixels() : p.out_pixels());
    depth = is_weight_grad(p) ? p.n * p.out_pixels() : (data ? k : c) * taps;
  }
  int64_t tiles() const {
    return ceil_div(rows, int64_t{params::PLAIN}) * ceil_div(columns, int64_t{params::PLAIN});
  }
};

// Parts of the depth, none empty.
int64_t splits_of(const ConvProblem& p, const cl::Device& device) {
  const Product product(p);
  if (!is_weight_grad(p) || product.depth == 0) return 1;
  const int64_t wanted =
      kGroupsPerUnit * device.compute_units / std::max<int64_t>(p.groups * product.tiles(), 1);
  const int64_t splits = std::clamp<int64_t>(wanted, 1, ceil_div(product.depth, kShortestPart));
  const int64_t part = round_up(ceil_div(product.depth, splits), int64_t{params::PLAIN_DEPTH});
  return ceil_div(product.depth, part);
}

class PlainInvoker final : public ConvInvoker {
 public:
  PlainInvoker(const ConvProblem& p, cl::Device& device)
      : problem_(p),
        shape_(conv_shape(p)),
        splits_(splits_of(p, device)),
        kernel_(kernel("conv_gpu_plain", p, device)),
        add_(kernel("conv_gpu_plain_add", p, device)) {
    const Product product(p);
    arguments_.rows = static_cast<int>(product.rows), arguments_.columns = static_cast<int>(product.columns);
    arguments_.depth = static_cast<int>(product.depth);
    arguments_.part =
        static_cast<int>(round_up(ceil_div(product.depth, splits_), int64_t{params::PLAIN_DEPTH}));
    range_.dims = 2;
    range_.local[0] = params::PLAIN_ITEMS, range_.local[1] = 1;
    range_.global[0] = p.groups * product.tiles() * params::PLAIN_ITEMS, range_.global[1] = splits_;
  }

  void run(Stream& stream, const ConvProblem::Operands& o, MemRef workspace) override {
    const bool data = problem_.direction == ConvDirection::kInputGrad, weights = is_weight_grad(problem_);
    const Buffer &line = weights ? o.y : o.w, &image = data ? o.y : o.x;
    const Buffer& out = weights ? o.w : data ? o.x : o.y;
    const Buffer& bias = shape_.has_bias ? o.bias : o.w;
    params::ConvPlain a = arguments_;
    a.line_offset = line.offset, a.image_offset = image.offset, a.out_offset = out.offset;
    a.bias_offset = bias.offset;
    a.partial_offset = static_cast<int64_t>(workspace.offset / partial_bytes(problem_.dtype));
    const cl_mem partial = workspace.mem ? workspace.mem : out.mem;
    const ConvShape shape = within(shape_, o.bounds);
    kernel_.launch_with(stream.queue(), range_, [&](auto& list) {
      for (const cl_mem mem : {line.mem, image.mem, out.mem, bias.mem, partial}) list.add(mem);
      list.add(shape), list.add(a);
    });
    if (splits_ == 1) return;
    const int64_t results = problem_.groups * int64_t{a.rows} * a.columns;
    constexpr int64_t kItems = 128;
    add_.launch(stream.queue(), cl::Range::linear(ceil_div(results, kItems), kItems), partial, out.mem, shape,
                a, static_cast<cl_int>(splits_));
  }

 private:
  static cl::Kernel& kernel(const char* name, const ConvProblem& p, cl::Device& device) {
    const int direction = is_weight_grad(p)                          ? params::CONV_PLAIN_WEIGHTS
                          : p.direction == ConvDirection::kInputGrad ? params::CONV_PLAIN_DATA
                                                                     : params::CONV_PLAIN_FORWARD;
    return fetch_kernel(device, {"common/gpu_tile.clh", "common/plain_tile.clh", "conv/gpu_plain.cl"}, name,
                        gpu_options(device, p.dtype) + " -DDIRECTION=" + std::to_string(direction));
  }

  const ConvProblem problem_;
  const ConvShape shape_;
  const int64_t splits_;
  cl::Kernel &kernel_, &add_;
  cl::Range range_;
  params::ConvPlain arguments_{};
};

class Plain final : public ConvSolver {
 public:
  const char* name() const override { return "gpu_plain"; }
  bool stands_in() const override { return true; }
  Applicability applicable(const ConvProblem& p, const cl::Device& device) const override {
    if (const char* reason = plain_tiles_refuse(device, p.dtype)) return Applicability::no(reason);
    const Product product(p);
    if (std::max({product.rows, product.columns, product.depth, p.groups * product.tiles()}) > INT32_MAX / 2)
      return Applicability::no("2^30 rows, columns or tiles or more");
    return Applicability::yes();
  }
  uint64_t workspace(const ConvProblem& p, const cl::Device& device, const Config&) const override {
    const int64_t splits = splits_of(p, device);
    return splits == 1 ? 0 : partial_bytes(p.dtype) * splits * p.k * (p.c / p.groups) * p.taps();
  }
  double estimate(const ConvProblem& p, const cl::Device& device) const override {
    const Product product(p);
    const auto splits = double(splits_of(p, device));
    return 2 * plain_tile_microseconds(p.flops(), splits * double(p.groups * product.tiles()),
                                       double(product.depth) / splits, p.dtype, device);
  }
  std::unique_ptr<ConvInvoker> invoker(const ConvProblem& p, cl::Device& device,
                                       const Config&) const override {
    return std::make_unique<PlainInvoker>(p, device);
  }
};

}  // namespace

const ConvSolver* conv_gpu_plain() {
  static const Plain solver;
  return &solver;
}

}  // namespace dlb::solver
