// Convolution solver "gemm_1x1": a convolution with one tap, stride 1 and no padding is a product of matrices
// with pixels along one side. Uses whichever GEMM solver is best for it.
#include <cmath>

#include "primitives/common/cpu_tile.h"
#include "primitives/common/factor.h"
#include "primitives/conv/inner_gemm.h"
#include "primitives/conv/solvers.h"
#include "primitives/conv/strides.h"
#include "runtime/element.h"

namespace dlb::solver {
namespace {

const char* const kNotOneTap = "more than one tap, stride, padding or groups";
const char* const kNotFlat = "pixels are not evenly spaced in memory";

// The product that the convolution is, or the reason why it is none. Operand roles: forward y = w x, input
// gradient x = w' y, weight gradient w = y x'.
const char* product(const ConvProblem& p, GemmProblem& g) {
  if (p.groups != 1) return kNotOneTap;
  for (int i = 0; i < 3; i++) {
    if (p.filter[i] != 1 || p.stride[i] != 1 || p.padding[i] != 0) return kNotOneTap;
    // A transposed convolution's output padding makes pixels of which the other tensor has none.
    if (p.in[i] != p.out[i]) return "input and output have not the same pixels";
  }
  int64_t x_pixel, y_pixel;
  if (!evenly_spaced(p.in, p.xs, x_pixel) || !evenly_spaced(p.out, p.ys, y_pixel)) return kNotFlat;
  g = GemmProblem{};
  g.dtype = p.dtype, g.device = p.device, g.tf32 = p.tf32;
  const int64_t pixels = p.out_pixels();
  const auto set = [](int64_t(&strides)[3], int64_t batch, int64_t row, int64_t column) {
    strides[0] = batch, strides[1] = row, strides[2] = column;
  };
  if (p.direction == ConvDirection::kWeightGrad) {
    // the reduction runs over images and pixels, which must be one dimension
    const bool x_flat = p.n == 1 || p.xs[0] == pixels * x_pixel,
               y_flat = p.n == 1 || p.ys[0] == pixels * y_pixel;
    if (!x_flat || !y_flat) return "images and pixels are not evenly spaced in memory";
    g.m = p.k, g.n = p.c, g.k = p.n * pixels;
    set(g.a, 0, p.ys[1], y_pixel), set(g.b, 0, x_pixel, p.xs[1]), set(g.c, 0, p.ws[0], p.ws[1]);
  } else {
    const bool forward = p.direction == ConvDirection::kForward;
    g.batch = p.n, g.m = forward ? p.k : p.c, g.n = pixels, g.k = forward ? p.c : p.k;
    g.has_d = p.has_bias;
    g.epilogue = transposed(p.epilogue);  // whose rows are channels
    g.a_dtype = p.w_dtype, g.b_dtype = p.x_dtype;
    set(g.a, 0, p.ws[forward ? 0 : 1], p.ws[forward ? 1 : 0]);
    set(forward ? g.b : g.c, p.xs[0], p.xs[1], x_pixel);
    set(forward ? g.c : g.b, p.ys[0], p.ys[1], y_pixel);
    set(g.d, 0, 1, 0);
    // images whose pixels follow each other are one long row of pixels
    if (p.n > 1 && p.xs[0] == pixels * x_pixel && p.ys[0] == pixels * y_pixel) g.n *= g.batch, g.batch = 1;
  }
  g.normalize();
  return nullptr;
}

class OneTapInvoker final : public ConvInvoker {
 public:
  OneTapInvoker(ConvDirection direction, bool bias, SolutionPtr gemm)
      : direction_(direction), bias_(bias), gemm_(std::move(gemm)) {}

  void run(Stream& stream, const ConvProblem::Operands& o, MemRef workspace) override {
    const Factor one{}, beta = bias_ ? one : Factor{0, 0, 0};
    switch (direction_) {
      case ConvDirection::kForward: {
        GemmOperands operands{o.w, o.x, o.y, o.bias, one, beta, o.bounds};
        static_cast<EpilogueOperands&>(operands) = o;
        return gemm_->invoker->run_any(stream, operands, workspace);
      }
      case ConvDirection::kInputGrad:
        return gemm_->invoker->run_any(stream, GemmOperands{o.w, o.y, o.x, o.bias, one, beta}, workspace);
      default:
        return gemm_->invoker->run_any(stream, GemmOperands{o.y, o.x, o.w, Buffer{}, one, beta}, workspace);
    }
  }

 private:
  const ConvDirection direction_;
  const bool bias_;
  const SolutionPtr gemm_;
};

class OneTap final : public ConvSolver {
 public:
  const char* name() const override { return "gemm_1x1"; }
  bool takes_epilogue() const override { return true; }
  bool takes_mixed() const override { return true; }
  ConfigNames config_names() const override { return ConfigNames::of<InnerGemmConfig>(); }
  Applicability applicable(const ConvProblem& p, const cl::Device& device) const override {
    if (!has_arithmetic(p.dtype)) return Applicability::no("dtype without arithmetic");
    GemmProblem g;
    if (const char* reason = product(p, g)) return Applicability::no(reason);
    if (!has_inner_gemm(g, device)) return Applicability::no("no GEMM solver is allowed");
    return Applicability::yes();
  }
  uint64_t workspace(const ConvProblem& p, const cl::Device& device, const Config& config) const override {
    return inner_gemm_workspace(gemm_of(p), device, config);
  }
  std::vector<Config> configs(const ConvProblem& p, const cl::Device& device) const override {
    return inner_gemm_configs(gemm_of(p), device);
  }
  bool has_config(const ConvProblem& p, const cl::Device& device, const Config& config) const override {
    return has_inner_gemm_config(gemm_of(p), device, config);
  }
  double estimate(const ConvProblem& p, const cl::Device& device) const override {
    // an input gradient's weights lie across
    const bool across = device.cls == cl::DeviceClass::kGpu && p.direction == ConvDirection::kInputGrad;
    // a small result of a deep reduction, which gets less out of narrow tiles (measured on a Zen 3)
    const bool deep = device.cls == cl::DeviceClass::kCpu && p.direction == ConvDirection::kWeightGrad &&
                      tile_columns(device) < kTileColumns;
    return (across ? 1.13 : deep ? 1.3 : 1.0) * inner_gemm_estimate(gemm_of(p), device);
  }
  std::unique_ptr<ConvInvoker> invoker(const ConvProblem& p, cl::Device& device,
                                       const Config& config) const override {
    return std::make_unique<OneTapInvoker>(p.direction, p.has_bias,
                                           inner_gemm_solution(gemm_of(p), device, config));
  }

 private:
  static GemmProblem gemm_of(const ConvProblem& p) {
    GemmProblem g;
    product(p, g);
    return g;
  }
};

}  // namespace

const ConvSolver* conv_gemm_1x1() {
  static const OneTap solver;
  return &solver;
}

}  // namespace dlb::solver
