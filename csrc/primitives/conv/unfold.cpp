// Convolution solver "unfold": the image unfolded to a matrix in memory and one product of matrices per
// group, by whichever GEMM solver is best for it; all directions, any device. Chellapilla, Puri and Simard,
// "High Performance Convolutional Neural Networks for Document Processing" (2006).
#include <cmath>

#include "cl/queue.h"
#include "cl/rounding.h"
#include "primitives/common/compute_estimates.h"
#include "primitives/common/cpu_tile.h"
#include "primitives/common/factor.h"
#include "primitives/common/gpu_tile.h"
#include "primitives/conv/inner_gemm.h"
#include "primitives/conv/shape.h"
#include "primitives/conv/solvers.h"
#include "primitives/conv/strides.h"
#include "runtime/element.h"
#include "runtime/fetch_kernel.h"

namespace dlb::solver {
namespace {

constexpr uint64_t kMostBytes = uint64_t(512) << 20;  // of unfolded images
constexpr uint64_t kAlignment = 256;
constexpr int kCpuSpan = 64;  // input columns that one work-item folds

uint64_t aligned(uint64_t bytes) {
  return round_up(bytes, kAlignment);
}

// How a convolution is done as products. Operand roles: forward y = w columns, input gradient columns = w' y,
// weight gradient w = y columns'.
struct Product {
  GemmProblem gemm;
  int64_t row_step = 0, image_step = 0;  // of the columns, in elements
  int taps_outer = 0;                    // rows are (tap, channel), not (channel, tap)
  int64_t repeats = 1;                   // images, one after the other, where the batch is the groups
  bool copy_y = false;                   // the output's gradient is copied to [k][n][pixel] first
  uint64_t columns_bytes = 0, y_bytes = 0;
};

// The stride of w's (channel, tap) as one dimension, in either order; false when they are none.
bool weight_rows(const ConvProblem& p, int64_t& stride, int& taps_outer) {
  const int64_t taps = p.taps(), channels = p.c / p.groups;
  if (!evenly_spaced(p.filter, p.ws, stride)) return false;
  if (taps == 1) stride = p.ws[1];
  taps_outer = channels > 1 && taps > 1 && p.ws[1] != taps * stride;
  if (!taps_outer) return true;
  const bool follows = stride == channels * p.ws[1];
  stride = p.ws[1];
  return follows;
}

void set(int64_t (&strides)[3], int64_t batch, int64_t row, int64_t column) {
  strides[0] = batch, strides[1] = row, strides[2] = column;
}

// Fills in the product, or says why there is none.
const char* product(const ConvProblem& p, Product& r) {
  if (p.c == 0 || p.k == 0 || p.taps() == 0) return "nothing to sum over";
  const bool weight_grad = p.direction == ConvDirection::kWeightGrad;
  int64_t row, y_pixel;
  if (!weight_rows(p, row, r.taps_outer)) return "channels and taps of the weights are not evenly spaced";
  const bool flat = evenly_spaced(p.out, p.ys, y_pixel);
  if (!flat && !weight_grad) return "pixels are not evenly spaced in memory";
  const int64_t pixels = p.out_pixels(), rows = p.c / p.groups * p.taps(), cols = p.k / p.groups;
  const int64_t element = c10::elementSize(p.x_dtype.or_else(p.dtype));
  r.columns_bytes = aligned(double(p.n) * p.c * p.taps() * pixels * element > double(kMostBytes)
                                ? kMostBytes + 1
                                : p.n * p.c * p.taps() * pixels * element);
  if (r.columns_bytes > kMostBytes) return "the unfolded images take more than 512 MiB";
  GemmProblem& g = r.gemm;
  g.dtype = p.dtype, g.device = p.device, g.tf32 = p.tf32;
  const int64_t w_group = cols * p.ws[0];
  if (weight_grad) {
    r.row_step = p.n * pixels, r.image_step = pixels;
    r.copy_y = !flat || (p.n > 1 && p.ys[0] != pixels * y_pixel);
    if (r.copy_y) r.y_bytes = aligned(p.n * p.k * pixels * element);
    g.batch = p.groups, g.m = cols, g.n = rows, g.k = p.n * pixels;
    const int64_t y_row = r.copy_y ? g.k : p.ys[1];
    set(g.a, cols * y_row, y_row, r.copy_y ? 1 : y_pixel), set(g.b, rows * r.row_step, 1, r.row_step);
    set(g.c, w_group, p.ws[0], row);
  } else {
    const bool forward = p.direction == ConvDirection::kForward, grouped = p.groups > 1;
    r.row_step = pixels, r.image_step = p.groups * rows * pixels;
    r.repeats = grouped ? p.n : 1;
    g.batch = grouped ? p.groups : p.n;
    g.m = forward ? cols : rows, g.n = pixels, g.k = forward ? rows : cols;
    g.has_d = forward && p.has_bias;
    g.epilogue = transposed(p.epilogue);  // whose rows are channels
    g.a_dtype = p.w_dtype, g.b_dtype = p.x_dtype;
    set(g.a, grouped ? w_group : 0, forward ? p.ws[0] : row, forward ? row : p.ws[0]);
    set(forward ? g.b : g.c, grouped ? rows * pixels : r.image_step, pixels, 1);
    set(forward ? g.c : g.b, grouped ? cols * p.ys[1] : p.ys[0], p.ys[1], y_pixel);
    if (g.has_d) set(g.d, grouped ? cols : 0, 1, 0);
  }
  g.normalize();
  return nullptr;
}

Product product(const ConvProblem& p) {
  Product r;
  product(p, r);
  return r;
}

// The output's gradient as an image whose unfolding, with one tap, is a copy.
ConvShape copy_of_y(const ConvProblem& p) {
  ConvShape s{};
  s.n = p.n, s.c = p.k, s.groups = 1;
  std::copy_n(p.ys, 5, s.xs);
  std::copy_n(p.out, 3, s.in), std::copy_n(p.out, 3, s.out);
  for (int i = 0; i < 3; i++) s.filter[i] = s.stride[i] = s.dilation[i] = 1;
  return s;
}

class UnfoldInvoker final : public ConvInvoker {
 public:
  UnfoldInvoker(const ConvProblem& p, cl::Device& device, const Config& config)
      : direction_(p.direction),
        product_(product(p)),
        gemm_(inner_gemm_solution(product_.gemm, device, config)),
        shape_(conv_shape(p)),
        y_shape_(copy_of_y(p)),
        element_(c10::elementSize(p.x_dtype.or_else(p.dtype))),
        image_items_(int64_t(p.c) * p.taps()),
        lanes_(device.cls == cl::DeviceClass::kCpu ? 0 : 64),
        kernel_(kernel_of(p, device)) {}

  void run(Stream& stream, const ConvProblem::Operands& o, MemRef workspace) override {
    const Buffer columns{workspace.mem, static_cast<int64_t>(workspace.offset / element_)};
    MemRef rest = workspace;
    rest.offset += product_.columns_bytes;
    if (direction_ == ConvDirection::kInputGrad) {
      multiply(stream, o.w, o.y, columns, Buffer{}, rest, o);
      fold(stream, columns, o);
      return;
    }
    unfold(stream, o.x, shape_, columns, product_.row_step, product_.image_step, image_items_,
           product_.taps_outer);
    if (direction_ == ConvDirection::kForward) return multiply(stream, o.w, columns, o.y, o.bias, rest, o);
    Buffer y = o.y;
    if (product_.copy_y) {
      y = {rest.mem, static_cast<int64_t>(rest.offset / element_)};
      rest.offset += product_.y_bytes;
      unfold(stream, o.y, y_shape_, y, product_.row_step, product_.image_step, y_shape_.c, 0);
    }
    multiply(stream, y, columns, o.w, Buffer{}, rest, o);
  }

 private:
  static cl::Kernel& kernel_of(const ConvProblem& p, cl::Device& device) {
    const bool fold = p.direction == ConvDirection::kInputGrad;
    // unfolding copies bits: halves need no arithmetic
    const auto own = p.x_dtype.or_else(p.dtype);
    const auto type = !fold && c10::elementSize(own) == 2 ? c10::ScalarType::Short : own;
    const std::string span = device.cls == cl::DeviceClass::kCpu ? " -DSPAN=" + std::to_string(kCpuSpan) : "";
    return fetch_kernel(device, {"common/element.clh", "conv/unfold.cl"}, fold ? "conv_fold" : "conv_unfold",
                        element_option(type) + span);
  }

  cl::Range range(int64_t items, int64_t middle, int64_t images) const {
    cl::Range range;
    range.dims = 3;
    range.local[0] = lanes_ ? lanes_ : 1;
    range.global[0] = round_up(items, range.local[0]);
    range.global[1] = middle, range.global[2] = images;
    return range;
  }

  void unfold(Stream& stream, const Buffer& image, const ConvShape& shape, const Buffer& to, int64_t row_step,
              int64_t image_step, int64_t rows, int taps_outer) {
    const int64_t pixels = int64_t(shape.out[0]) * shape.out[1] * shape.out[2];
    kernel_.launch(stream.queue(), range(lanes_ ? pixels : 1, rows, shape.n), image.mem, image.offset, to.mem,
                   to.offset, shape, row_step, image_step, static_cast<cl_int>(taps_outer),
                   lanes_ ? int64_t(1) : pixels);
  }

  void fold(Stream& stream, const Buffer& columns, const ConvProblem::Operands& o) {
    const Buffer& bias = shape_.has_bias ? o.bias : o.w;
    kernel_.launch(stream.queue(),
                   range(lanes_ ? shape_.in[2] : ceil_div(shape_.in[2], kCpuSpan),
                         int64_t(shape_.c) * shape_.in[0] * shape_.in[1], shape_.n),
                   columns.mem, columns.offset, o.x.mem, o.x.offset, bias.mem, bias.offset, shape_,
                   static_cast<cl_int>(product_.taps_outer));
  }

  void multiply(Stream& stream, Buffer a, Buffer b, Buffer c, const Buffer& d, MemRef workspace,
                const ConvProblem::Operands& o) {
    const bool forward = direction_ == ConvDirection::kForward;
    const Bounds bounds = forward ? o.bounds : Bounds{};
    const Factor one{}, beta = product_.gemm.has_d ? one : Factor{0, 0, 0};
    const int64_t y_step = shape_.ys[0];
    for (int64_t i = 0; i < product_.repeats; i++) {
      GemmOperands operands{a, b, c, d, one, beta, bounds};
      static_cast<EpilogueOperands&>(operands) = o;
      gemm_->invoker->run_any(stream, operands, workspace);
      b.offset += forward ? product_.image_step : y_step;
      c.offset += forward ? y_step : product_.image_step;
    }
  }

  const ConvDirection direction_;
  const Product product_;
  const SolutionPtr gemm_;
  const ConvShape shape_, y_shape_;
  const uint64_t element_;  // bytes
  const int64_t image_items_, lanes_;
  cl::Kernel& kernel_;
};

class Unfold final : public ConvSolver {
 public:
  const char* name() const override { return "unfold"; }
  bool takes_epilogue() const override { return true; }
  bool takes_mixed() const override { return true; }
  ConfigNames config_names() const override { return ConfigNames::of<InnerGemmConfig>(); }
  Applicability applicable(const ConvProblem& p, const cl::Device& device) const override {
    if (!has_arithmetic(p.dtype)) return Applicability::no("dtype without arithmetic");
    const bool fp64 = p.dtype == c10::ScalarType::Double || p.dtype == c10::ScalarType::ComplexDouble;
    if (fp64 && !device.fp64) return Applicability::no("the device has no double precision");
    if (p.direction == ConvDirection::kInputGrad && c10::elementSize(p.dtype) == 2)
      return Applicability::no("16-bit products would be rounded before they are summed");
    if (p.epilogue && p.groups > 1)
      return Applicability::no("its products know the channels of one group, and the epilogue those of all");
    Product r;
    if (const char* reason = product(p, r)) return Applicability::no(reason);
    if (!has_inner_gemm(r.gemm, device)) return Applicability::no("no GEMM solver is allowed");
    return Applicability::yes();
  }
  uint64_t workspace(const ConvProblem& p, const cl::Device& device, const Config& config) const override {
    const Product r = product(p);
    return r.columns_bytes + r.y_bytes + inner_gemm_workspace(r.gemm, device, config);
  }
  std::vector<Config> configs(const ConvProblem& p, const cl::Device& device) const override {
    return inner_gemm_configs(product(p).gemm, device);
  }
  bool has_config(const ConvProblem& p, const cl::Device& device, const Config& config) const override {
    return has_inner_gemm_config(product(p).gemm, device, config);
  }
  double estimate(const ConvProblem& p, const cl::Device& device) const override {
    const Product r = product(p);
    const double elements = double(p.n) * p.c * p.taps() * p.out_pixels();
    const double bytes = 2.0 * (r.columns_bytes + r.y_bytes);
    const double gemm = inner_gemm_estimate(r.gemm, device) * r.repeats;
    constexpr double kGaps = 8;  // times what copying takes: columns are written with gaps
    const DeviceRates& rates = rates_of(device);
    if (device.cls != cl::DeviceClass::kCpu)
      return kGpuTileLaunches * rates.launch_us + kGaps * bytes / rates.bytes + gemm;
    // rows of pixels whose channels are neighbours: each pixel lies in another cache line
    const bool scattered = p.xs[1] == 1 && p.c > 1 && p.out_pixels() > 1;
    const double each = scattered ? 12 : p.direction == ConvDirection::kInputGrad ? 1.5 : 1.0;
    const double cycles = elements * each + bytes / 4;
    // the weight gradient's product is deep and its result small: it gets less out of wide tiles
    const bool wide = tile_columns(device) == kTileColumns;
    const double deep = p.direction == ConvDirection::kWeightGrad && wide ? 1.3 : 1.0;
    return cycles_microseconds(2, cycles / device.compute_units, device) + deep * gemm;
  }
  std::unique_ptr<ConvInvoker> invoker(const ConvProblem& p, cl::Device& device,
                                       const Config& config) const override {
    return std::make_unique<UnfoldInvoker>(p, device, config);
  }
};

}  // namespace

const ConvSolver* conv_unfold() {
  static const Unfold solver;
  return &solver;
}

}  // namespace dlb::solver
