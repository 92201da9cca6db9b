// GEMM solver "cpu_int8": integers of 8 bits by the instructions that CPUs have for them, as a convolution
// with one tap of an image of one row, whose channels are the reduction; see common/cpu_int8.cl.
#include "primitives/common/cpu_int8.h"

#include <cmath>

#include "primitives/common/compute_estimates.h"
#include "primitives/gemm/arguments.h"
#include "primitives/gemm/solvers.h"

namespace dlb::solver {
namespace {

// B is what is packed, which has to be signed: else the product is turned.
bool turns(const GemmProblem& p) {
  return p.b_dtype && p.b_dtype.type() != c10::kChar;
}

// Of a problem that is turned already.
Int8Plan plan_of(const GemmProblem& p, const cl::Device& device, const Config& config = {}) {
  Int8Plan plan;
  params::Gather& g = plan.gather;
  g.n = 1, g.groups = static_cast<int>(p.batch);
  g.red = static_cast<int>(p.k), g.cols = static_cast<int>(p.n);
  for (int i = 0; i < 3; i++) g.in[i] = g.q[i] = g.step[i] = g.dilation[i] = g.taps[i] = 1;
  g.in[2] = g.q[2] = static_cast<int>(p.m);
  g.is[4] = p.m == 1 ? 1 : p.a[1], g.is[1] = p.k == 1 ? 1 : p.a[2];
  g.os[4] = p.c[1], g.os[1] = p.c[2];
  g.wgroup = p.b[0], g.wred = p.k == 1 ? 1 : p.b[1], g.wcol = p.b[2];
  plan.product.in_group = p.a[0], plan.product.out_group = p.c[0];
  plan.in_extent = (p.batch - 1) * p.a[0] + (p.m - 1) * p.a[1] + (p.k - 1) * p.a[2] + 1;
  return int8_plan(plan, device, config);
}

Int8Plan plan_for(const GemmProblem& p, const cl::Device& device, const Config& config = {}) {
  return plan_of(turns(p) ? transposed(p) : p, device, config);
}

class Int8Invoker final : public GemmInvoker {
 public:
  Int8Invoker(const GemmProblem& p, cl::Device& device, const Config& config)
      : turns_(turns(p)),
        launch_(plan_for(p, device, config), turns_ ? p.b_dtype : p.a_dtype,
                turns_ ? transposed(p.epilogue) : p.epilogue, device) {}

  void run(Stream& stream, const GemmProblem::Operands& o, MemRef workspace) override {
    const Buffer packed{workspace.mem, static_cast<int64_t>(workspace.offset)};
    launch_.pack(stream, turns_ ? o.a : o.b, packed);
    launch_.run(stream, turns_ ? o.b : o.a, packed, o.c, {packed.mem, 0}, o.alpha.integer, o);
  }

 private:
  const bool turns_;
  Int8Launch launch_;
};

class Int8 final : public GemmSolver {
 public:
  const char* name() const override { return "cpu_int8"; }
  bool takes_mixed() const override { return true; }
  bool takes_epilogue() const override { return true; }
  ConfigNames config_names() const override { return ConfigNames::of<Int8Config>(); }

  Applicability applicable(const GemmProblem& p, const cl::Device& device) const override {
    const bool turned = turns(p);
    if (const Applicability can =
            int8_applicable(device, turned ? p.b_dtype : p.a_dtype, turned ? p.a_dtype : p.b_dtype);
        !can)
      return can;
    if (p.has_d) return Applicability::no("adds no matrix");
    if (p.batch * p.m * p.n * p.k == 0) return Applicability::no("nothing to sum over");
    const double a = (p.m - 1.0) * p.a[1] + (p.k - 1.0) * p.a[2],
                 b = (p.k - 1.0) * p.b[1] + (p.n - 1.0) * p.b[2],
                 c = (p.m - 1.0) * p.c[1] + (p.n - 1.0) * p.c[2];
    if (std::max({a, b, c, 4.0 * p.batch}) > INT32_MAX / 2)
      return Applicability::no("an operand of 2^30 elements or more");
    if (std::isinf(plan_for(p, device).cycles)) return Applicability::no("too little local memory");
    return Applicability::yes();
  }
  uint64_t workspace(const GemmProblem& p, const cl::Device& device, const Config&) const override {
    return plan_for(p, device).packed_bytes();
  }
  std::vector<Config> configs(const GemmProblem& p, const cl::Device& device) const override {
    return int8_configs(plan_for(p, device));
  }
  double estimate(const GemmProblem& p, const cl::Device& device) const override {
    const Int8Plan plan = plan_for(p, device);
    const double packers = std::min<double>(device.compute_units, plan.columns() / params::INT8_TILE);
    return cycles_microseconds(2, plan.cycles + plan.pack_cycles() / packers, device);
  }
  std::unique_ptr<GemmInvoker> invoker(const GemmProblem& problem, cl::Device& device,
                                       const Config& config) const override {
    return std::make_unique<Int8Invoker>(problem, device, config);
  }
};

}  // namespace

const GemmSolver* gemm_cpu_int8() {
  static const Int8 solver;
  return &solver;
}

}  // namespace dlb::solver
