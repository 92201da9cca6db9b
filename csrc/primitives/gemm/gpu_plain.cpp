// GEMM solver "gpu_plain": plain tiles for GPU-class devices, which run while better kernels are compiled;
// see gemm/gpu_plain.cl.
#include "cl/rounding.h"
#include "kernels/common/plain_tile.h"
#include "kernels/gemm/params.h"
#include "primitives/common/compute_estimates.h"
#include "primitives/common/factor.h"
#include "primitives/common/gpu_tile.h"
#include "primitives/gemm/arguments.h"
#include "primitives/gemm/solvers.h"
#include "runtime/fetch_kernel.h"

namespace dlb::solver {
namespace {

using params::GemmOperand;

int64_t groups_of(const GemmProblem& p) {
  return p.batch * ceil_div(p.m, int64_t{params::PLAIN}) * ceil_div(p.n, int64_t{params::PLAIN});
}

GemmOperand operand(int64_t batch, int64_t row, int64_t k) {
  return {0, batch, row, k, std::abs(k) <= std::abs(row), 0};
}

class PlainInvoker final : public GemmInvoker {
 public:
  PlainInvoker(const GemmProblem& p, cl::Device& device)
      : problem_(p),
        kernel_(fetch_kernel(device, {"common/gpu_tile.clh", "common/plain_tile.clh", "gemm/gpu_plain.cl"},
                             "gemm_plain", gpu_options(device, p.dtype))),
        range_(cl::Range::linear(groups_of(p), params::PLAIN_ITEMS)) {
    arguments_.a = operand(p.a[0], p.a[1], p.a[2]), arguments_.b = operand(p.b[0], p.b[2], p.b[1]);
    arguments_.c_batch = p.c[0], arguments_.c_m = p.c[1], arguments_.c_n = p.c[2];
    arguments_.d_batch = p.d[0], arguments_.d_m = p.d[1], arguments_.d_n = p.d[2];
    arguments_.batch = static_cast<int>(p.batch), arguments_.m = static_cast<int>(p.m);
    arguments_.n = static_cast<int>(p.n), arguments_.k = static_cast<int>(p.k);
  }

  void run(Stream& stream, const GemmProblem::Operands& o, MemRef) override {
    params::GemmTiled a = arguments_;
    const Buffer& d = problem_.has_d ? o.d : o.c;
    a.a.offset = o.a.offset, a.b.offset = o.b.offset, a.c_offset = o.c.offset, a.d_offset = d.offset;
    set_bounds(a, o.bounds);
    kernel_.launch_with(stream.queue(), range_, [&](auto& list) {
      for (const cl_mem mem : {o.a.mem, o.b.mem, o.c.mem, d.mem}) list.add(mem);
      add_factor(list, problem_.dtype, o.alpha);
      add_factor(list, problem_.dtype, problem_.has_d ? o.beta : Factor{0, 0, 0});
      list.add(a);
    });
  }

 private:
  const GemmProblem problem_;
  cl::Kernel& kernel_;
  const cl::Range range_;
  params::GemmTiled arguments_{};
};

class Plain final : public GemmSolver {
 public:
  const char* name() const override { return "gpu_plain"; }
  bool stands_in() const override { return true; }
  Applicability applicable(const GemmProblem& p, const cl::Device& device) const override {
    if (const char* reason = plain_tiles_refuse(device, p.dtype)) return Applicability::no(reason);
    if (std::max({p.batch, p.m, p.n, p.k, groups_of(p)}) > INT32_MAX / 2)
      return Applicability::no("2^30 rows, columns or tiles or more");
    return Applicability::yes();
  }
  double estimate(const GemmProblem& p, const cl::Device& device) const override {
    return plain_tile_microseconds(p.flops(), double(groups_of(p)), p.k, p.dtype, device);
  }
  std::unique_ptr<GemmInvoker> invoker(const GemmProblem& p, cl::Device& device,
                                       const Config&) const override {
    return std::make_unique<PlainInvoker>(p, device);
  }
};

}  // namespace

const GemmSolver* gemm_gpu_plain() {
  static const Plain solver;
  return &solver;
}

}  // namespace dlb::solver
