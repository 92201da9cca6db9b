// GEMM solver "cpu_packed": packed panels and a register tile of float vectors, for CPU-like devices. The
// blocking is the usual one (Goto and van de Geijn, "Anatomy of High-Performance Matrix Multiplication",
// 2008), with each work-item packing what it needs into its own core's cache.
#include "cl/rounding.h"
#include "primitives/common/compute_estimates.h"
#include "primitives/common/cpu_tile.h"
#include "primitives/gemm/cpu_invoker.h"
#include "primitives/gemm/solvers.h"
#include "runtime/element.h"

namespace dlb::solver {
namespace {

struct Blocks {
  int m, n, k;
  uint64_t scratch;  // bytes
};

uint64_t scratch_bytes(int m, int n, int k) {
  const int64_t a = std::max<int64_t>(m * (k + 16), k * (m + 16));
  return 4 * (a + int64_t(m + kTileRows) * n + int64_t(k) * kTileColumns);
}

// Fewer rows until scratch suffices.
void fit(Blocks& b, const GemmProblem& p, const cl::Device& device) {
  while (scratch_bytes(b.m, b.n, b.k) > device.local_mem && b.m > kTileRows)
    b.m = balanced(p.m, b.m / 2, kTileRows);
  b.scratch = scratch_bytes(b.m, b.n, b.k);
}

// Blocks as large as half a typical second-level cache, but enough of them for every core.
Blocks choose_blocks(const GemmProblem& p, const cl::Device& device) {
  Blocks b;
  b.k = balanced(std::max<int64_t>(p.k, 1), 256, 32);
  b.n = balanced(p.n, 256, tile_columns(device));
  b.m = balanced(p.m, 210, kTileRows);
  const auto tasks = [&] { return p.batch * ceil_div(p.m, b.m) * ceil_div(p.n, b.n); };
  const int64_t wanted = 2 * device.compute_units;
  while (tasks() < wanted && b.m > 24) b.m = balanced(p.m, b.m / 2, kTileRows);
  while (tasks() < wanted && b.n > kTileColumns) b.n = balanced(p.n, b.n / 2, tile_columns(device));
  fit(b, p, device);
  return b;
}

struct PackedConfig {
  int32_t block_m = 0, block_n = 0, block_k = 0;  // zeros are the best guess
  static constexpr const char* kNames[] = {"block_m", "block_n", "block_k"};
};

Blocks blocks_of(const GemmProblem& p, const cl::Device& device, const Config& config) {
  const auto blocks = config.as<PackedConfig>();
  if (blocks.block_m == 0) return choose_blocks(p, device);
  Blocks b{blocks.block_m, blocks.block_n, blocks.block_k, 0};
  fit(b, p, device);
  return b;
}

class PackedInvoker final : public CpuGemmInvoker {
 public:
  PackedInvoker(const GemmProblem& problem, cl::Device& device, const Config& config)
      : CpuGemmInvoker(problem, columns_are_rows(problem),
                       cpu_gemm_kernel(device, problem, columns_are_rows(problem), "gemm_cpu_packed")),
        blocks_(blocks_of(problem_, device, config)) {
    range_ =
        cl::Range::grid(ceil_div(problem_.m, blocks_.m), ceil_div(problem_.n, blocks_.n), problem_.batch);
  }

  void run(Stream& stream, const GemmProblem::Operands& operands, MemRef) override {
    const Blocks& b = blocks_;
    launch(stream, operands, {problem_.m, problem_.n, problem_.k, b.m, b.n, b.k}, b.scratch);
  }

 private:
  const Blocks blocks_;
};

class Packed final : public GemmSolver {
 public:
  const char* name() const override { return "cpu_packed"; }
  bool takes_epilogue() const override { return true; }
  bool takes_mixed() const override { return true; }
  bool takes_groups() const override { return true; }
  ConfigNames config_names() const override { return ConfigNames::of<PackedConfig>(); }
  Applicability applicable(const GemmProblem& p, const cl::Device& device) const override {
    if (p.epilogue.changes_type()) return Applicability::no("stores the dtype that it computes in");
    if (device.cls != cl::DeviceClass::kCpu) return Applicability::no("for CPU-like devices");
    if (!is_float_storage(p.dtype))
      return Applicability::no("computes in float: float32, float16 and bfloat16");
    if (std::max({p.m, p.n, p.k}) > INT32_MAX - 512) return Applicability::no("a dimension of 2^31 or more");
    if (scratch_bytes(kTileRows, kTileColumns, 256) > device.local_mem)
      return Applicability::no("too little local memory");
    return Applicability::yes();
  }
  // The best guess; half as many rows; half as many columns; twice the depth with as many rows as scratch has
  // room for.
  std::vector<Config> configs(const GemmProblem& p, const cl::Device& device) const override {
    const GemmProblem q = columns_are_rows(p) ? transposed(p) : p;
    const Blocks b = choose_blocks(q, device);
    std::vector<Config> list = {Config{}};
    const auto add = [&](int m, int n, int k) { list.push_back(Config::of(PackedConfig{m, n, k})); };
    if (b.m > 2 * kTileRows) add(balanced(q.m, b.m / 2, kTileRows), b.n, b.k);
    if (b.n > kTileColumns) add(b.m, balanced(q.n, b.n / 2, tile_columns(device)), b.k);
    if (b.k < q.k)
      add(balanced(q.m, std::max(b.m / 2, kTileRows), kTileRows), b.n, balanced(q.k, 2 * b.k, 32));
    return list;
  }
  double estimate(const GemmProblem& p, const cl::Device& device) const override {
    const GemmProblem q = columns_are_rows(p) ? transposed(p) : p;
    const Blocks b = choose_blocks(q, device);
    const double row_blocks = ceil_div(q.m, b.m), column_blocks = ceil_div(q.n, b.n);
    const double tasks = double(q.batch) * row_blocks * column_blocks;
    // The last blocks are smaller, but count on average only where each core gets as many of them as others:
    // a driver hands the first core its whole share at once.
    const double cores = device.compute_units;
    const double rows = q.batch * column_blocks >= cores ? round_up(q.m, kTileRows) / row_blocks : b.m;
    const double columns =
        q.batch >= cores ? round_up(q.n, 16) / column_blocks : std::min<int64_t>(b.n, round_up(q.n, 16));
    const double cycles =
        1.12 * q.k * rows * columns / 16 + q.k * (rows + columns) / 4 + rows * columns / 4 + 500;
    return cycles_microseconds(1.5, std::max(tasks / cores, 1.0) * cycles, device);
  }
  std::unique_ptr<GemmInvoker> invoker(const GemmProblem& problem, cl::Device& device,
                                       const Config& config) const override {
    return std::make_unique<PackedInvoker>(problem, device, config);
  }
};

}  // namespace

const GemmSolver* gemm_cpu_packed() {
  static const Packed solver;
  return &solver;
}

}  // namespace dlb::solver
