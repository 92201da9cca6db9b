// Convolution solver "cpu_int8": implicit product of integers of 8 bits by the instructions that CPUs have
// for it, with the rows behind it; see common/cpu_int8.cl.
#include "primitives/common/cpu_int8.h"

#include <cmath>

#include "cl/hash.h"
#include "primitives/common/compute_estimates.h"
#include "primitives/conv/gather.h"
#include "primitives/conv/solvers.h"
#include "primitives/conv/strides.h"

namespace dlb::solver {
namespace {

constexpr int64_t kMostTaps = 1024;

Int8Plan plan_of(const ConvProblem& p, const cl::Device& device, const Config& config = {}) {
  Int8Plan plan;
  plan.gather = forward_phase(p).gather;
  plan.in_extent = span(p.xs, {p.n, p.c, p.in[0], p.in[1], p.in[2]}) + 1;
  plan.product.in_group = plan.gather.red * p.xs[1], plan.product.out_group = plan.gather.cols * p.ys[1];
  plan.product.column_group = plan.gather.cols;
  return int8_plan(plan, device, config);
}

class Int8Invoker final : public ConvInvoker {
 public:
  Int8Invoker(const ConvProblem& p, cl::Device& device, const Config& config)
      : keeps_(p.constant_w),
        has_bias_(p.has_bias),
        launch_(plan_of(p, device, config), p.x_dtype, p.epilogue, device) {
    if (keeps_) form_ = cl::hash128(launch_.form()).low;
  }

  void run(Stream& stream, const ConvProblem::Operands& o, MemRef workspace) override {
    const Buffer packed = keeps_ ? o.prepared : Buffer{workspace.mem, static_cast<int64_t>(workspace.offset)};
    if (!keeps_) launch_.pack(stream, o.w, packed);
    // Without a bias the kernel reads none, so any buffer will do.
    launch_.run(stream, o.x, packed, o.y, has_bias_ ? o.bias : Buffer{packed.mem, 0}, 1, o);
  }
  void prepare(Stream& stream, const ConvProblem::Operands& o, MemRef to) override {
    launch_.pack(stream, o.w, {to.mem, static_cast<int64_t>(to.offset)});
  }
  uint64_t form() const override { return form_; }

 private:
  const bool keeps_, has_bias_;
  uint64_t form_ = 0;
  Int8Launch launch_;
};

class Int8 final : public ConvSolver {
 public:
  const char* name() const override { return "cpu_int8"; }
  bool takes_epilogue() const override { return true; }
  bool takes_mixed() const override { return true; }
  ConfigNames config_names() const override { return ConfigNames::of<Int8Config>(); }

  Applicability applicable(const ConvProblem& p, const cl::Device& device) const override {
    if (const Applicability can = int8_applicable(device, p.x_dtype, p.w_dtype); !can) return can;
    if (p.n == 0 || p.out_pixels() == 0 || p.c == 0 || p.k == 0)
      return Applicability::no("nothing to sum over");
    if (p.taps() > kMostTaps) return Applicability::no("more than 1024 taps");
    const int64_t x = span(p.xs, {p.n, p.c, p.in[0], p.in[1], p.in[2]}),
                  y = span(p.ys, {p.n, p.k, p.out[0], p.out[1], p.out[2]});
    if (std::max(x, y) > INT32_MAX / 2 || double(p.c / p.groups + 3) * p.taps() > INT32_MAX / 2)
      return Applicability::no("a tensor of 2^30 elements or more");
    if (std::isinf(plan_of(p, device).cycles)) return Applicability::no("too little local memory");
    return Applicability::yes();
  }
  uint64_t workspace(const ConvProblem& p, const cl::Device& device, const Config&) const override {
    return p.constant_w ? 0 : plan_of(p, device).packed_bytes();
  }
  uint64_t prepared(const ConvProblem& p, const cl::Device& device, const Config&) const override {
    return p.constant_w ? plan_of(p, device).packed_bytes() : 0;
  }
  std::vector<Config> configs(const ConvProblem& p, const cl::Device& device) const override {
    return int8_configs(plan_of(p, device));
  }
  double estimate(const ConvProblem& p, const cl::Device& device) const override {
    const Int8Plan plan = plan_of(p, device);
    const double pack = p.constant_w ? 0 : plan.pack_cycles() / device.compute_units;
    return cycles_microseconds(p.constant_w ? 1 : 2, plan.cycles + pack, device);
  }
  std::unique_ptr<ConvInvoker> invoker(const ConvProblem& p, cl::Device& device,
                                       const Config& config) const override {
    return std::make_unique<Int8Invoker>(p, device, config);
  }
};

}  // namespace

const ConvSolver* conv_cpu_int8() {
  static const Int8 solver;
  return &solver;
}

}  // namespace dlb::solver
