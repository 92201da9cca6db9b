// GEMM solver "cpu_small": small products and batches of them (attention heads, grouped layers) on CPU-like
// devices, without copying what a register tile can read where it lies; see gemm/cpu_small.cl.
#include "cl/rounding.h"
#include "primitives/common/compute_estimates.h"
#include "primitives/common/cpu_tile.h"
#include "primitives/gemm/cpu_invoker.h"
#include "primitives/gemm/solvers.h"
#include "runtime/element.h"

namespace dlb::solver {
namespace {

constexpr int kMostDepth = 1024;       // of a panel of B in scratch
constexpr int kDepthInCache = 384;     // of columns of A that stay in 32 KiB beside a narrow panel of B
constexpr double kTaskCycles = 20000;  // of a work-item: enough to hide what starting it costs

struct Blocks {
  int64_t m, n, items;
  double cycles;  // expected, of the slowest core
};

double product_cycles(const GemmProblem& p, const cl::Device& device, int64_t m, int64_t n) {
  const int64_t panels = ceil_div(n, tile_columns(device));
  const double tiles = double(ceil_div(m, kTileRows)) * panels, columns = round_up(n, 16);
  const bool narrow = tile_columns(device) < kTileColumns;
  // rows of A that lie pages apart from one step of the reduction to the next
  const double scattered = p.a[2] > 512 && p.k > 64 ? 1.25 : !narrow && p.m * p.k > (1 << 18) ? 1.1 : 1.0;
  // a narrow tile does too little with a step of the reduction to hide a cache line of A for each
  const double deep = narrow && p.a[2] > 1 && p.k >= kDepthInCache ? 1.45 : 1.0;
  const double multiply = round_up(m, kTileRows) * columns / 16 * p.k * 1.05 * scattered * deep + tiles * 40;
  // A is converted one element at a time
  const double convert = (p.dtype == c10::ScalarType::Half       ? 35.0
                          : p.dtype == c10::ScalarType::BFloat16 ? 3.0
                                                                 : 0.0) *
                         round_up(m, kTileRows) * p.k * panels;
  const bool crowded =  // see the kernel
      p.k > 64 && (p.b[1] % 256 == 0 ? m > 2 * kTileRows : narrow && m > 12 * kTileRows);
  const bool direct = p.b[2] == 1 && n % 16 == 0 && !crowded;
  const double pack = direct ? 0 : p.k * columns / 16 * (p.b[2] == 1 ? 4.0 : p.b[1] == 1 ? 7.0 : 40.0) + 40;
  const double store = double(m) * (n / 16 * 4 + n % 16 * (n < 16 ? 1.5 : 3));
  return multiply + convert + pack + store + 60;
}

// Whole products while there are enough of them, else blocks of columns and rows for every core.
Blocks choose_blocks(const GemmProblem& p, const cl::Device& device) {
  Blocks b{p.m, p.n, 1, 0};
  const auto tasks = [&] { return p.batch * ceil_div(p.m, b.m) * ceil_div(p.n, b.n); };
  const int64_t wanted = 2 * device.compute_units;
  while (tasks() < wanted && product_cycles(p, device, b.m, b.n) > kTaskCycles) {
    if (b.n > kTileColumns)
      b.n = round_up(ceil_div(b.n, 2), tile_columns(device));
    else if (b.m > kTileRows)
      b.m = round_up(ceil_div(b.m, 2), kTileRows);
    else
      break;
  }
  const double cycles = product_cycles(p, device, b.m, b.n);
  const int64_t most = std::max<int64_t>(p.batch / wanted, 1);
  b.items = std::clamp<int64_t>(static_cast<int64_t>(kTaskCycles / cycles), 1, most);
  const double groups = double(ceil_div(p.batch, b.items)) * ceil_div(p.m, b.m) * ceil_div(p.n, b.n);
  b.cycles = std::max(groups / device.compute_units, 1.0) * (b.items * cycles + 400);
  return b;
}

uint64_t scratch_bytes(int64_t k) {
  return sizeof(float) * kTileColumns * (kTileRows + k);
}

class SmallInvoker final : public CpuGemmInvoker {
 public:
  SmallInvoker(const GemmProblem& problem, cl::Device& device)
      : CpuGemmInvoker(problem, columns_are_rows(problem),
                       cpu_gemm_kernel(device, problem, columns_are_rows(problem), "gemm_cpu_small")),
        blocks_(choose_blocks(problem_, device)) {
    range_ = cl::Range::grid(ceil_div(problem_.m, blocks_.m), ceil_div(problem_.n, blocks_.n),
                             ceil_div(problem_.batch, blocks_.items));
  }

  void run(Stream& stream, const GemmProblem::Operands& operands, MemRef) override {
    const GemmProblem& p = problem_;
    const Blocks& b = blocks_;
    launch(stream, operands, {p.m, p.n, p.k, b.m, b.n, b.items, p.batch}, scratch_bytes(p.k));
  }

 private:
  const Blocks blocks_;
};

class Small final : public GemmSolver {
 public:
  const char* name() const override { return "cpu_small"; }
  bool takes_epilogue() const override { return true; }
  bool takes_mixed() const override { return true; }
  int revision() const override { return 3; }
  Applicability applicable(const GemmProblem& p, const cl::Device& device) const override {
    if (p.epilogue.changes_type()) return Applicability::no("stores the dtype that it computes in");
    if (device.cls != cl::DeviceClass::kCpu) return Applicability::no("for CPU-like devices");
    if (!is_float_storage(p.dtype))
      return Applicability::no("computes in float: float32, float16 and bfloat16");
    if (p.k > kMostDepth) return Applicability::no("the reduction is deeper than 1024");
    if (scratch_bytes(p.k) > device.local_mem) return Applicability::no("too little local memory");
    const int64_t a = p.m * p.a[1] + p.k * p.a[2], b = p.k * p.b[1] + p.n * p.b[2];
    if (std::max({p.m, p.n, p.batch, a, b}) > INT32_MAX - 512)
      return Applicability::no("an operand of 2^31 elements or more");
    return Applicability::yes();
  }
  double estimate(const GemmProblem& p, const cl::Device& device) const override {
    const GemmProblem q = columns_are_rows(p) ? transposed(p) : p;
    return cycles_microseconds(1.4, choose_blocks(q, device).cycles, device);
  }
  std::unique_ptr<GemmInvoker> invoker(const GemmProblem& problem, cl::Device& device,
                                       const Config&) const override {
    return std::make_unique<SmallInvoker>(problem, device);
  }
};

}  // namespace

const GemmSolver* gemm_cpu_small() {
  static const Small solver;
  return &solver;
}

}  // namespace dlb::solver
