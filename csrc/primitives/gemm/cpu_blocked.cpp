// GEMM solver "cpu_blocked": the dtypes that do not compute in float, on CPU-like devices. Blocks that fit a
// core's cache and register tiles, as in "cpu_packed", but in vectors of the dtype, of integers of 8 bits in
// pairs along the reduction, whose products instructions of x86-64 add.
#include "cl/rounding.h"
#include "kernels/gemm/params.h"
#include "primitives/common/compute_estimates.h"
#include "primitives/common/cpu_tile.h"
#include "primitives/common/factor.h"
#include "primitives/gemm/arguments.h"
#include "primitives/gemm/solvers.h"
#include "runtime/element.h"
#include "runtime/fetch_kernel.h"

namespace dlb::solver {
namespace {

constexpr int kRows = params::BLOCKED_ROWS;

// How the kernel computes: bytes of a number in scratch, of which a complex one has two, and columns of a
// register tile.
struct Computes {
  int bytes, planes, columns;
};

Computes computes(c10::ScalarType type) {
  const int planes = c10::isComplexType(type) ? 2 : 1;
  const bool wide = type == c10::ScalarType::Double || type == c10::ScalarType::ComplexDouble ||
                    type == c10::ScalarType::Long;
  return {wide ? 8 : 4, planes, (wide ? 32 : 64) / planes};
}

struct Blocks {
  int m, n, k;
  uint64_t scratch;  // bytes
};

uint64_t scratch_bytes(int m, int n, int k, const Computes& c) {
  constexpr int64_t kLine = 64;
  const int64_t pad = kLine / c.bytes, a = std::max(m * (k + pad), k * (m + pad));
  return c.bytes * (c.planes * (a + int64_t(m + kRows) * n) + int64_t(k) * params::BLOCKED_COLUMNS);
}

// Blocks that share a core's second-level cache, but enough of them for every core.
Blocks choose_blocks(const GemmProblem& p, const cl::Device& device) {
  const Computes c = computes(p.dtype);
  const int bytes = c.bytes * c.planes;  // of an element: 4, 8 or 16
  Blocks b{balanced(p.m, bytes > 8 ? 96 : 192, kRows), balanced(p.n, bytes > 8 ? 128 : 256, c.columns),
           balanced(std::max<int64_t>(p.k, 1), bytes > 4 ? 192 : 256, 32), 0};
  const auto tasks = [&] { return p.batch * ceil_div(p.m, b.m) * ceil_div(p.n, b.n); };
  while (tasks() < 2 * device.compute_units && b.m > 24) b.m = balanced(p.m, b.m / 2, kRows);
  while (scratch_bytes(b.m, b.n, b.k, c) > device.local_mem && b.m > kRows)
    b.m = balanced(p.m, b.m / 2, kRows);
  while (scratch_bytes(b.m, b.n, b.k, c) > device.local_mem && b.n > c.columns)
    b.n = balanced(p.n, b.n / 2, c.columns);
  b.scratch = scratch_bytes(b.m, b.n, b.k, c);
  return b;
}

class BlockedInvoker final : public GemmInvoker {
 public:
  BlockedInvoker(const GemmProblem& problem, cl::Device& device)
      : problem_(problem),
        blocks_(choose_blocks(problem, device)),
        range_(
            cl::Range::grid(ceil_div(problem.m, blocks_.m), ceil_div(problem.n, blocks_.n), problem.batch)),
        kernel_(fetch_with(problem.epilogue, device, {"common/element.clh", "gemm/cpu_blocked.cl"},
                           "gemm_cpu_blocked",
                           cpu_tile_options(device, problem.dtype) + operand_options(problem) +
                               (problem.is_int8() ? " -DPAIRS" : ""))) {}

  void run(Stream& stream, const GemmProblem::Operands& operands, MemRef) override {
    kernel_.launch_with(stream.queue(), range_, [&](auto& arguments) {
      add_operands(arguments, problem_, operands);
      add_factor(arguments, problem_.dtype, operands.alpha);
      add_factor(arguments, problem_.dtype, operands.beta);
      arguments.add(static_cast<cl_int>(problem_.has_d));
      arguments.add(operands.bounds.low);
      arguments.add(operands.bounds.high);
      for (int64_t size : {problem_.m, problem_.n, problem_.k}) arguments.add(static_cast<cl_int>(size));
      for (int size : {blocks_.m, blocks_.n, blocks_.k}) arguments.add(static_cast<cl_int>(size));
      arguments.add(cl::Local{blocks_.scratch});
      add_epilogue(arguments, problem_.epilogue, operands);
    });
  }

 private:
  const GemmProblem problem_;
  const Blocks blocks_;
  const cl::Range range_;
  cl::Kernel& kernel_;
};

class Blocked final : public GemmSolver {
 public:
  const char* name() const override { return "cpu_blocked"; }
  bool takes_mixed() const override { return true; }
  bool takes_epilogue() const override { return true; }
  int revision() const override { return 3; }
  Applicability applicable(const GemmProblem& p, const cl::Device& device) const override {
    if (device.cls != cl::DeviceClass::kCpu) return Applicability::no("for CPU-like devices");
    if (!has_arithmetic(p.dtype)) return Applicability::no("dtype without arithmetic");
    if (is_float_storage(p.dtype)) return Applicability::no("for dtypes that do not compute in float");
    if (p.is_mixed() && !c10::isIntegralType(p.dtype, false))
      return Applicability::no("takes operands of other dtypes with integers alone");
    const bool fp64 = p.dtype == c10::ScalarType::Double || p.dtype == c10::ScalarType::ComplexDouble;
    if (fp64 && !device.fp64) return Applicability::no("the device has no double precision");
    if (std::max({p.m, p.n, p.k}) > INT32_MAX - 512) return Applicability::no("a dimension of 2^31 or more");
    if (scratch_bytes(kRows, params::BLOCKED_COLUMNS, 256, computes(p.dtype)) > device.local_mem)
      return Applicability::no("too little local memory");
    return Applicability::yes();
  }
  double estimate(const GemmProblem& p, const cl::Device& device) const override {
    const Blocks b = choose_blocks(p, device);
    const Computes c = computes(p.dtype);
    const double row_blocks = ceil_div(p.m, b.m), column_blocks = ceil_div(p.n, b.n);
    const double tasks = double(p.batch) * row_blocks * column_blocks;
    const double rows = std::min<double>(b.m, round_up(p.m, kRows)),
                 columns = std::min<double>(b.n, round_up(p.n, c.columns));
    const double cycles =
        (p.is_int8() ? 0.7 : 1.15) * p.k * rows * columns * c.planes * c.planes * c.bytes / 64 +
        p.k * (rows + columns) * c.planes * c.bytes / 16 + rows * columns * 2 + 500;
    return cycles_microseconds(1.5, std::max(tasks / device.compute_units, 1.0) * cycles, device);
  }
  std::unique_ptr<GemmInvoker> invoker(const GemmProblem& problem, cl::Device& device,
                                       const Config&) const override {
    return std::make_unique<BlockedInvoker>(problem, device);
  }
};

}  // namespace

const GemmSolver* gemm_cpu_blocked() {
  static const Blocked solver;
  return &solver;
}

}  // namespace dlb::solver
