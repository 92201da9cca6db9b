// GEMM solver "cpu_bf16": bfloat16 by the instructions that CPUs have for it, see gemm/cpu_bf16.cl.
#include "primitives/common/cpu_bf16.h"
#include "cl/rounding.h"
#include "primitives/common/compute_estimates.h"
#include "primitives/gemm/cpu_invoker.h"
#include "primitives/gemm/solvers.h"

namespace dlb::solver {
namespace {

constexpr std::initializer_list<const char*> kFiles = {"common/cpu_tile.clh", "common/cpu_bf16.clh",
                                                       "gemm/cpu_bf16.cl"};
constexpr int kMostRows = 512, kMostColumns = 512, kMostDepth = 512;
constexpr int kFewColumns = 64;  // for which A is read where it lies

struct Blocks {
  int64_t m, n, k;
  bool copy;  // A, although it lies along the reduction
  uint64_t scratch() const { return bf16_scratch(m, n, k, depth); }
  int64_t depth;  // of the problem
};

// Fewer rows, then columns, until scratch suffices.
void fit(Blocks& b, const GemmProblem& p, const cl::Device& device) {
  while (b.scratch() > device.local_mem && b.m > 32) b.m = balanced(p.m, b.m / 2, 32);
  while (b.scratch() > device.local_mem && b.n > 32) b.n = balanced(p.n, b.n / 2, 32);
}

Blocks choose_blocks(const GemmProblem& p, const cl::Device& device) {
  Blocks b{0, 0, 0, false, p.k};
  b.k = balanced(std::max<int64_t>(p.k, 1), kMostDepth, kBf16Depth);
  b.n = balanced(p.n, kMostColumns, 32);
  b.m = balanced(p.m, kMostRows, 32);
  const auto tasks = [&] { return p.batch * ceil_div(p.m, b.m) * ceil_div(p.n, b.n); };
  const int64_t wanted = 2 * device.compute_units;
  while (tasks() < wanted && (b.m > 32 || b.n > 32)) {
    if (b.n >= b.m && b.n > 32)
      b.n = balanced(p.n, b.n / 2, 32);
    else
      b.m = balanced(p.m, b.m / 2, 32);
  }
  b.copy = b.n > kFewColumns;
  fit(b, p, device);
  return b;
}

struct Bf16Config {
  int32_t block_m = 0, block_n = 0, block_k = 0, copies_a = 0;  // zeros are the best guess
  static constexpr const char* kNames[] = {"block_m", "block_n", "block_k", "copies_a"};
};

Blocks blocks_of(const GemmProblem& p, const cl::Device& device, const Config& config) {
  const auto blocks = config.as<Bf16Config>();
  if (blocks.block_m == 0) return choose_blocks(p, device);
  Blocks b{blocks.block_m, blocks.block_n, blocks.block_k, blocks.copies_a != 0, p.k};
  fit(b, p, device);
  return b;
}

// Cycles of a work-item.
double cycles_of(const GemmProblem& p, const cl::Device& device, const Blocks& b) {
  const auto pack = [](int64_t along, int64_t across, int64_t stride_k, int64_t stride) {
    return stride_k == 1 || along <= 1  ? kBf16Copy
           : stride == 1 || across <= 1 ? kBf16Transpose
                                        : kBf16Scatter;
  };
  const double m = bf16_tiles(std::min(b.m, p.m)), n = bf16_tiles(std::min(b.n, p.n)),
               k = ceil_div(p.k, kBf16Depth);
  const double a = p.a[2] == 1 && !b.copy ? 30 : pack(p.k, p.m, p.a[2], p.a[1]);
  const double c = p.c[2] == 1 || p.n == 1   ? kBf16Copy
                   : p.c[1] == 1 || p.m == 1 ? kBf16Transpose
                                             : kBf16Scatter;
  return m * n * k * bf16_multiply(device) + m * k * a + n * k * pack(p.n, p.k, p.b[2], p.b[1]) +
         m * n * 2 * c + 2000;
}

double cycles_of(const GemmProblem& p, const cl::Device& device) {
  const Blocks b = choose_blocks(p, device);
  const double tasks = double(p.batch) * ceil_div(p.m, b.m) * ceil_div(p.n, b.n);
  return std::max(tasks / device.compute_units, 1.0) * cycles_of(p, device, b);
}

// Rows and columns are exchanged where that packs less across memory.
bool swap_sides(const GemmProblem& p, const cl::Device& device) {
  return cycles_of(transposed(p), device) < cycles_of(p, device);
}

class Bf16Invoker final : public CpuGemmInvoker {
 public:
  Bf16Invoker(const GemmProblem& problem, cl::Device& device, const Config& config)
      : CpuGemmInvoker(problem, swap_sides(problem, device), bf16_kernel(device, kFiles, "gemm_cpu_bf16")),
        blocks_(blocks_of(problem_, device, config)) {
    range_ =
        cl::Range::grid(ceil_div(problem_.m, blocks_.m), ceil_div(problem_.n, blocks_.n), problem_.batch);
  }

  void run(Stream& stream, const GemmProblem::Operands& operands, MemRef) override {
    const Blocks& b = blocks_;
    launch(stream, operands, {problem_.m, problem_.n, problem_.k, b.m, b.n, b.k, b.copy}, b.scratch());
  }

 private:
  const Blocks blocks_;
};

class Bf16 final : public GemmSolver {
 public:
  const char* name() const override { return "cpu_bf16"; }
  ConfigNames config_names() const override { return ConfigNames::of<Bf16Config>(); }
  Applicability applicable(const GemmProblem& p, const cl::Device& device) const override {
    if (const Applicability can = bf16_applicable(p.dtype, device); !can) return can;
    if (std::max({p.m, p.n, p.k}) > INT32_MAX - 512) return Applicability::no("a dimension of 2^31 or more");
    if (bf16_scratch(32, 32, kMostDepth, INT32_MAX) > device.local_mem)
      return Applicability::no("too little local memory");
    return Applicability::yes();
  }
  // The best guess; A copied or not; half as many columns; half as many rows; twice the depth.
  std::vector<Config> configs(const GemmProblem& p, const cl::Device& device) const override {
    const GemmProblem q = swap_sides(p, device) ? transposed(p) : p;
    const Blocks b = choose_blocks(q, device);
    std::vector<Config> list = {Config{}};
    const auto add = [&](int64_t m, int64_t n, int64_t k, bool copy) {
      list.push_back(Config::of(Bf16Config{int32_t(m), int32_t(n), int32_t(k), copy}));
    };
    if (q.a[2] == 1) add(b.m, b.n, b.k, !b.copy);
    if (b.n > 32) add(b.m, balanced(q.n, b.n / 2, 32), b.k, b.copy);
    if (b.m > 32) add(balanced(q.m, b.m / 2, 32), b.n, b.k, b.copy);
    if (b.k < q.k) add(b.m, b.n, balanced(q.k, 2 * b.k, kBf16Depth), b.copy);
    return list;
  }
  double estimate(const GemmProblem& p, const cl::Device& device) const override {
    return std::max(
        cycles_microseconds(1.5, std::min(cycles_of(p, device), cycles_of(transposed(p), device)), device),
        p.flops() / rates_of(device).matrix16);
  }
  std::unique_ptr<GemmInvoker> invoker(const GemmProblem& problem, cl::Device& device,
                                       const Config& config) const override {
    return std::make_unique<Bf16Invoker>(problem, device, config);
  }
};

}  // namespace

const GemmSolver* gemm_cpu_bf16() {
  static const Bf16 solver;
  return &solver;
}

}  // namespace dlb::solver
