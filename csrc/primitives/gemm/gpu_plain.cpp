// GEMM solver "gpu_plain": plain tiles for GPU-class devices, which run while better kernels are compiled;
// see gemm/gpu_plain.cl.
#include "cl/rounding.h"
#include "kernels/common/plain_tile.h"
#include "kernels/gemm/params.h"
#include "primitives/common/compute_estimates.h"
#include "primitives/gemm/gpu_invoker.h"
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

class PlainInvoker final : public GpuGemmInvoker<params::GemmTiled> {
 public:
  PlainInvoker(const GemmProblem& p, cl::Device& device) : PlainInvoker(p, kernel(p, device)) {}

  void run(Stream& stream, const GemmProblem::Operands& o, MemRef) override {
    params::GemmTiled a = arguments_;
    a.a.offset = o.a.offset, a.b.offset = o.b.offset;
    launch(stream, kernel_, a, o, {});
  }

 private:
  // The sums are not divided, so nothing launches the second kernel.
  PlainInvoker(const GemmProblem& p, cl::Kernel& kernel) : GpuGemmInvoker(p, false, kernel, kernel) {
    params::GemmTiled& a = arguments_;
    a.a = operand(p.a[0], p.a[1], p.a[2]), a.b = operand(p.b[0], p.b[2], p.b[1]);
    a.c_batch = p.c[0], a.c_m = p.c[1], a.c_n = p.c[2];
    a.d_batch = p.d[0], a.d_m = p.d[1], a.d_n = p.d[2];
    a.batch = p.batch, a.m = p.m, a.n = p.n, a.k = p.k, a.splits = 1;
    divide(p, 1, static_cast<size_t>(groups_of(p)), params::PLAIN_ITEMS);
  }

  static cl::Kernel& kernel(const GemmProblem& p, cl::Device& device) {
    return fetch_kernel(device, {"common/gpu_tile.clh", "common/plain_tile.clh", "gemm/gpu_plain.cl"},
                        "gemm_gpu_plain", gpu_options(device, p.dtype));
  }
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
