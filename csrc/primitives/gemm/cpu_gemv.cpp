// GEMM solver "cpu_gemv": products with at most four rows or four columns on CPU-like devices, in one pass
// over the large operand.
#include "cl/queue.h"
#include "cl/rounding.h"
#include "kernels/gemm/params.h"
#include "primitives/common/compute_estimates.h"
#include "primitives/gemm/cpu_invoker.h"
#include "primitives/gemm/solvers.h"
#include "runtime/element.h"

namespace dlb::solver {
namespace {

constexpr int kRows = params::CPU_GEMV_ROWS, kMostColumns = 1024;

// Of the reduction, per pass: 4 KiB of a column at a time.
int depth_of(const GemmProblem& p) {
  return p.m == 1 ? 4096 : 1024 * (p.b_dtype ? 4 : 1);
}

// The kernel wants the short side as rows, and elements in groups on the other.
bool swap_sides(const GemmProblem& p) {
  return p.n < p.m && !p.group;
}

// Results, and a pass of A with a sum for each group that has the fewest elements.
uint64_t scratch_bytes(int columns, int depth) {
  return sizeof(float) * kRows * (columns + depth + depth / params::LEAST_GROUP);
}

int block_columns(const GemmProblem& p, const cl::Device& device) {
  const int64_t tasks = ceil_div(2 * device.compute_units, p.batch);
  return static_cast<int>(std::clamp<int64_t>(round_up(ceil_div(p.n, tasks), 32), 32, kMostColumns));
}

class GemvInvoker final : public CpuGemmInvoker {
 public:
  GemvInvoker(const GemmProblem& problem, cl::Device& device)
      : CpuGemmInvoker(problem, swap_sides(problem),
                       cpu_gemm_kernel(device, problem, swap_sides(problem), "gemm_cpu_gemv")),
        columns_(block_columns(problem_, device)) {
    range_.dims = 2;
    range_.global[0] = ceil_div(problem_.n, columns_);
    range_.global[1] = problem_.batch;
  }

  void run(Stream& stream, const GemmProblem::Operands& operands, MemRef) override {
    const int depth = depth_of(problem_);
    launch(stream, operands, {problem_.m, problem_.n, problem_.k, columns_, depth},
           scratch_bytes(columns_, depth));
  }

 private:
  const int columns_;
};

class Gemv final : public GemmSolver {
 public:
  const char* name() const override { return "cpu_gemv"; }
  int revision() const override { return 2; }
  bool takes_epilogue() const override { return true; }
  bool takes_mixed() const override { return true; }
  bool takes_groups() const override { return true; }
  Applicability applicable(const GemmProblem& p, const cl::Device& device) const override {
    if (p.epilogue.changes_type()) return Applicability::no("stores the dtype that it computes in");
    if (device.cls != cl::DeviceClass::kCpu) return Applicability::no("for CPU-like devices");
    if (!is_float_storage(p.dtype))
      return Applicability::no("computes in float: float32, float16 and bfloat16");
    if (std::min(p.m, p.n) > kRows) return Applicability::no("more than four rows and columns");
    if (p.group && p.m > kRows) return Applicability::no("more than four rows beside groups");
    if (std::max({p.m, p.n, p.k}) > INT32_MAX - 2048) return Applicability::no("a dimension of 2^31 or more");
    const GemmProblem q = swap_sides(p) ? transposed(p) : p;
    if (scratch_bytes(kMostColumns, depth_of(q)) > device.local_mem)
      return Applicability::no("too little local memory");
    return Applicability::yes();
  }
  double estimate(const GemmProblem& p, const cl::Device& device) const override {
    const GemmProblem q = swap_sides(p) ? transposed(p) : p;
    const double tasks = double(q.batch) * ceil_div(q.n, block_columns(q, device));
    const double cycles = double(q.batch) * q.n * q.k * (q.b[2] == 1 || q.b[1] == 1 || q.k < 16 ? 0.35 : 4.0);
    return cycles_microseconds(1, cycles / std::min<double>(tasks, device.compute_units), device);
  }
  std::unique_ptr<GemmInvoker> invoker(const GemmProblem& problem, cl::Device& device,
                                       const Config&) const override {
    return std::make_unique<GemvInvoker>(problem, device);
  }
};

}  // namespace

const GemmSolver* gemm_cpu_gemv() {
  static const Gemv solver;
  return &solver;
}

}  // namespace dlb::solver
