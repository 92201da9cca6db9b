// GEMM solvers "gpu_tiled": register-blocked tiles in local memory, for GPU-class devices, and "gpu_mma": the
// same tiles on tensor cores; see gemm/gpu_tiled.cl. A long reduction with few results is divided over
// work-groups and added in a fixed order by a second kernel.
#include "cl/rounding.h"
#include "kernels/gemm/params.h"
#include "primitives/common/factor.h"
#include "primitives/common/gpu_tile.h"
#include "primitives/common/specialised.h"
#include "primitives/gemm/gpu_invoker.h"
#include "primitives/gemm/solvers.h"

namespace dlb::solver {
namespace {

using params::GemmOperand;
using params::GemmTiled;

constexpr int kThinRows = 32;  // two thin tiles at most

// The type by which tiles are chosen.
c10::ScalarType tile_type(const GemmProblem& p) {
  return p.is_int8() ? c10::ScalarType::Char : p.dtype;
}

// Whether the kernel gets the transposed problem: it stores along columns, and thin tiles have few rows.
bool swap_sides(const GemmProblem& p) {
  if (p.group) return false;  // elements in groups are B's
  const int64_t few = std::min(p.m, p.n);
  return few <= kThinRows && p.m != p.n ? p.n < p.m : columns_are_rows(p);
}

GemmProblem oriented(const GemmProblem& p) {
  return swap_sides(p) ? transposed(p) : p;
}

double tiles_of(const GemmProblem& p, const GpuTile& tile) {
  return double(p.batch) * ceil_div(p.m, tile.m) * ceil_div(p.n, tile.n);
}

std::vector<GpuPlan> plans(const GemmProblem& problem, std::initializer_list<int> tiles,
                           const cl::Device& device, const DeviceRates& rates) {
  const GemmProblem p = oriented(problem);
  std::vector<GpuPlan> list;
  for (int tile : tiles)
    if (gpu_tile_fits(tile, device, tile_type(p)) && (tile != kThinTile || p.m <= kThinRows))
      add_gpu_plans(list, tile, tiles_of(p, gpu_tile(tile)), p.k, double(p.batch) * p.m * p.n, true,
                    tile_type(p), device, rates);
  return list;
}

GpuPlan plan(const GemmProblem& p, const cl::Device& device, bool mma, const DeviceRates& rates) {
  if (mma) return fastest(plans(p, {mma_large_tile(tile_type(p)), kMmaSquareTile}, device, rates));
  // Not the square tile: the wide one with a divided reduction is as fast from 512 on, and is one program.
  const int general = gpu_tile_fits(kWideTile, device, tile_type(p)) ? kWideTile : kSquareTile;
  if (std::min(p.m, p.n) <= kThinRows) return fastest(plans(p, {general, kThinTile}, device, rates));
  return fastest(plans(p, {general}, device, rates));
}

// `vector` still lacks the test of the offset, which differs between calls.
GemmOperand operand(int64_t batch, int64_t row, int64_t k, int64_t rows, int64_t depth) {
  GemmOperand o{0, batch, row, k, 0, 0};
  // a dimension of one element has stride 0 and is nobody's neighbour
  o.k_fast = depth > 1 && (rows == 1 || k <= row);
  o.vector = o.k_fast ? k == 1 && in_fours({depth, row, batch}) : row == 1 && in_fours({rows, k, batch});
  return o;
}

Constants constants_of(const GemmTiled& a) {
  Constants c;
  for (const auto& [name, o] : {std::pair{"a.", a.a}, {"b.", a.b}}) {
    const std::string prefix = name;
    c.set(prefix + "batch", o.batch), c.set(prefix + "row", o.row), c.set(prefix + "k", o.k);
    c.set(prefix + "k_fast", o.k_fast), c.set(prefix + "vector", o.vector);
  }
  c.set("c_batch", a.c_batch), c.set("c_m", a.c_m), c.set("c_n", a.c_n), c.set("d_batch", a.d_batch);
  c.set("d_m", a.d_m), c.set("d_n", a.d_n), c.set("batch", a.batch), c.set("m", a.m), c.set("n", a.n);
  c.set("k", a.k), c.set("splits", a.splits), c.set("k_part", a.k_part), c.set("c_vector", a.c_vector);
  return c;
}

class TiledInvoker final : public GpuGemmInvoker<GemmTiled> {
 public:
  TiledInvoker(const GemmProblem& problem, cl::Device& device, const Config& config)
      : GpuGemmInvoker(
            problem, swap_sides(problem),
            gpu_gemm_kernel(device, tile_type(problem), config.as<GpuTileConfig>().tile, "gemm_gpu_tiled",
                            oriented(problem).epilogue, operand_options(oriented(problem))),
            gpu_gemm_kernel(device, tile_type(problem), config.as<GpuTileConfig>().tile, "split_reduce",
                            oriented(problem).epilogue, operand_options(oriented(problem)))) {
    const GemmProblem p = oriented(problem);
    const GpuTile& tile = gpu_tile(config.as<GpuTileConfig>().tile);
    GemmTiled& a = arguments_;
    a.a = operand(p.a[0], p.a[1], p.a[2], p.m, p.k);
    a.b = operand(p.b[0], p.b[2], p.b[1], p.n, p.k);
    a.c_batch = p.c[0], a.c_m = p.c[1], a.c_n = p.c[2];
    a.d_batch = p.d[0], a.d_m = p.d[1], a.d_n = p.d[2];
    a.batch = p.batch, a.m = p.m, a.n = p.n, a.k = p.k;
    a.splits = config.as<GpuTileConfig>().splits;
    a.k_part = round_up(ceil_div(p.k, a.splits), tile.depth(tile_type(p)));
    a.c_vector = p.c[2] == 1 && in_fours({p.c[0], p.c[1]});
    divide(p, a.splits, static_cast<size_t>(tiles_of(p, tile)), tile.items());
    if (config.specialised)
      own_ = own_gpu_gemm_kernel(device, tile_type(problem), config.as<GpuTileConfig>().tile, constants_of(a),
                                 p.epilogue, operand_options(p));
  }

  void run(Stream& stream, const GemmProblem::Operands& operands, MemRef workspace) override {
    GemmTiled a = arguments_;
    a.a.offset = left(operands).offset, a.a.vector &= a.a.offset % 4 == 0;
    a.b.offset = right(operands).offset, a.b.vector &= a.b.offset % 4 == 0;
    a.c_vector &= operands.c.offset % 4 == 0;
    // what the kernel of its own takes for granted
    const bool aligned = in_fours({a.a.offset, a.b.offset, operands.c.offset});
    launch(stream, own_ && aligned ? *own_ : kernel_, a, operands, workspace);
  }

 private:
  std::shared_ptr<cl::Kernel> own_;  // of a program for this problem
};

// Offsets inside a tile are 32-bit.
bool spans_int(int64_t row, int64_t k) {
  return row < INT32_MAX / 256 && k < INT32_MAX / 64;
}

class Tiled final : public GemmSolver {
 public:
  explicit Tiled(bool mma) : mma_(mma) {}
  const char* name() const override { return mma_ ? "gpu_mma" : "gpu_tiled"; }
  bool takes_epilogue() const override { return true; }
  bool takes_mixed() const override { return true; }
  bool takes_groups() const override { return true; }
  ConfigNames config_names() const override { return ConfigNames::of<GpuTileConfig>(); }
  Applicability applicable(const GemmProblem& p, const cl::Device& device) const override {
    if (const char* reason = gpu_tiles_refuse(device, tile_type(p))) return Applicability::no(reason);
    if (mma_)
      if (const char* reason = gpu_mma_refuses(device, tile_type(p), p.tf32))
        return Applicability::no(reason);
    if (std::max({p.batch, p.m, p.n, p.k}) > INT32_MAX - 512)
      return Applicability::no("a dimension of 2^31 or more");
    if (!spans_int(p.a[1], p.a[2]) || !spans_int(p.b[2], p.b[1]))
      return Applicability::no("rows or columns too far apart in memory");
    if (tiles_of(oriented(p), gpu_tile(kThinTile)) > INT32_MAX)
      return Applicability::no("2^31 tiles or more");
    return Applicability::yes();
  }
  uint64_t workspace(const GemmProblem& p, const cl::Device&, const Config& config) const override {
    if (config.as<GpuTileConfig>().splits == 1) return 0;
    return partial_bytes(p.dtype) * config.as<GpuTileConfig>().splits * p.batch * p.m * p.n;
  }
  std::vector<Config> configs(const GemmProblem& p, const cl::Device& device) const override {
    const DeviceRates& rates = rates_of(device);
    return gpu_configs(
        plan(p, device, mma_, rates),
        mma_ ? plans(p, {mma_large_tile(tile_type(p)), kMmaWideTile, kMmaSquareTile}, device, rates)
             : plans(p, {kWideTile, kSquareTile, kThinTile, kLargeTile}, device, rates),
        tile_type(p));
  }
  bool has_config(const GemmProblem& p, const cl::Device& device, const Config& config) const override {
    return has_gpu_config(config, mma_, p.k, double(p.batch) * p.m * p.n, true, tile_type(p), device);
  }
  Config first_config(const GemmProblem& p, const cl::Device& device) const override {
    return config_of(plan(p, device, mma_, rates_of(device)));
  }
  bool can_specialise(const GemmProblem&, const cl::Device&, const Config&) const override { return true; }
  double estimate(const GemmProblem& p, const cl::Device& device) const override {
    return 0.9 * plan(p, device, mma_, rates_of(device))
                     .time;  // measured over planned, which is for convolutions too
  }
  std::unique_ptr<GemmInvoker> invoker(const GemmProblem& problem, cl::Device& device,
                                       const Config& config) const override {
    return std::make_unique<TiledInvoker>(problem, device, config);
  }

 private:
  const bool mma_;
};

}  // namespace

Config gemm_gpu_tiled_config(const GemmProblem& problem, const cl::Device& device, const DeviceRates& rates) {
  return config_of(plan(problem, device, false, rates));
}

const GemmSolver* gemm_gpu_tiled() {
  static const Tiled solver(false);
  return &solver;
}

const GemmSolver* gemm_gpu_mma() {
  static const Tiled solver(true);
  return &solver;
}

}  // namespace dlb::solver
