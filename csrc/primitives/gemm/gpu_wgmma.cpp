// GEMM solver "gpu_wgmma": the warpgroup instructions of NVIDIA's Hopper GPUs, for 16 bits, TF32, float32 as
// three products of TF32, integers of 8 bits, and float8; see gemm/gpu_wgmma.cl. Operands that the copy
// engine cannot take are copied to lines first.
#include "kernels/gemm/gpu_wgmma.h"
#include "cl/rounding.h"
#include "codegen/pointwise.h"
#include "primitives/common/gpu_tile.h"
#include "primitives/common/pack_lines.h"
#include "primitives/common/wgmma.h"
#include "primitives/gemm/gpu_invoker.h"
#include "primitives/gemm/solvers.h"
#include "runtime/element.h"
#include "runtime/fetch_kernel.h"

namespace dlb::solver {
namespace {

using params::GemmWgmma;
using params::WgmmaOperand;

constexpr int64_t kShortestPart = 4;  // stages of a part of the reduction
constexpr size_t kMostConfigs = 6;
constexpr double kHopeless = 1.6;  // times the first config's expected time

struct WgmmaConfig {
  int32_t columns = 0, splits = 0;  // of a tile; parts of the reduction
  static constexpr const char* kNames[] = {"columns", "splits"};
};

bool is_split(const GemmProblem& p) {
  return p.dtype == c10::ScalarType::Float && !p.tf32;
}

// Products of float8 have float32 sums, of fewer digits than float32's own.
bool is_float8(const GemmProblem& p) {
  return p.dtype == c10::ScalarType::Float && p.tf32 && p.a_dtype.is_float8() && p.b_dtype.is_float8();
}

// Whether there are registers for the sums in a tile of so many columns: a tensor core's and, where those are
// added up outside of it, theirs.
bool has_registers(const GemmProblem& p, const WgmmaTile& tile) {
  return !(is_split(p) || is_float8(p)) || tile.split_speed > 0;
}

GemmProblem oriented(const GemmProblem& p) {
  return columns_are_rows(p) ? transposed(p) : p;
}

// Both operands have elements of one size.
int64_t operand_bytes(const GemmProblem& p) {
  return static_cast<int64_t>(c10::elementSize(p.a_dtype.or_else(p.dtype)));
}

int64_t line_elements(const GemmProblem& p) {
  return params::WGMMA_LINE / operand_bytes(p);
}

int64_t result_bytes(const GemmProblem& p) {
  return static_cast<int64_t>(p.epilogue ? codegen::size_of(p.epilogue.first_type)
                                         : c10::elementSize(p.dtype));
}

// How an operand [batch, rows, k] reaches the copy engine.
enum class Lines { kAlongK, kAlongRows, kPacked };

struct Side {
  int64_t batch, rows, k;                      // sizes
  int64_t batch_stride, row_stride, k_stride;  // in elements
  int64_t bytes;                               // of an element
  Lines lines() const {
    const auto whole = [&](int64_t stride) { return stride * bytes % kWgmmaUnit == 0; };
    if (!whole(batch_stride)) return Lines::kPacked;
    if ((k_stride == 1 || k == 1) && (rows == 1 || (row_stride > 0 && whole(row_stride))))
      return Lines::kAlongK;
    const bool half = bytes == 2;  // the instructions take others along k only
    if (half && (row_stride == 1 || rows == 1) && (k == 1 || (k_stride > 0 && whole(k_stride))))
      return Lines::kAlongRows;
    return Lines::kPacked;
  }
  int64_t matrices() const { return batch_stride == 0 ? 1 : batch; }
};

Side left_side(const GemmProblem& p) {
  return {p.batch, p.m, p.k, p.a[0], p.a[1], p.a[2], operand_bytes(p)};
}
Side right_side(const GemmProblem& p) {
  return {p.batch, p.n, p.k, p.b[0], p.b[2], p.b[1], operand_bytes(p)};
}

// A copy of an operand, and its lines.
struct Copy : LinesCopy {
  WgmmaOperand lines{};

  explicit Copy(const Side& side) {
    const bool along_rows = side.lines() == Lines::kAlongRows;
    const int64_t count = along_rows ? side.k : side.rows, length = along_rows ? side.rows : side.k;
    lines.pitch = round_up(length * side.bytes, kWgmmaUnit);
    lines.batch = side.matrices() > 1 ? count * lines.pitch : 0;
    bytes = side.matrices() * count * lines.pitch;
    always = side.lines() == Lines::kPacked;
    params::PackLines& a = arguments;
    a.from_outer = side.batch_stride;
    a.from_line[0] = along_rows ? side.k_stride : side.row_stride;
    a.from_element = along_rows ? side.row_stride : side.k_stride;
    a.to_line = lines.pitch / side.bytes, a.to_outer = count * a.to_line;
    a.lines = static_cast<int>(count), a.length = static_cast<int>(length);
    a.elements_fast = length > 1 && (count == 1 || a.from_element <= a.from_line[0]);
    a.width = codegen::make_divider(static_cast<uint32_t>(count));
    a.height = a.inner = codegen::make_divider(1);
    groups = packing_groups(a, side.matrices(), side.bytes);
  }
};

int64_t tiles_of(const GemmProblem& p, int columns) {
  return p.batch * ceil_div(p.m, params::WGMMA_ROWS) * ceil_div(p.n, columns);
}

int64_t groups_of(const GemmProblem& p, const cl::Device& device, const WgmmaConfig& config) {
  return std::min<int64_t>(tiles_of(p, config.columns) * config.splits, device.compute_units);
}

// Bytes of the copy of an operand that is always copied.
int64_t packed_bytes(const Side& side) {
  return side.lines() == Lines::kPacked ? Copy(side).bytes : 0;
}

// Where things lie in the workspace, in bytes.
struct Layout {
  uint64_t maps, left, right, partial, end;
  Layout(const GemmProblem& p, const cl::Device& device, const WgmmaConfig& config) {
    const auto after = [](uint64_t start, int64_t bytes) { return start + round_up(bytes, kWgmmaAlign); };
    maps = 0;
    left = after(maps, groups_of(p, device, config) * 2 * params::WGMMA_MAP);
    right = after(left, packed_bytes(left_side(p)));
    partial = after(right, packed_bytes(right_side(p)));
    end = partial + (config.splits > 1 ? config.splits * p.batch * p.m * p.n * sizeof(float) : 0);
  }
};

struct WgmmaPlan {
  WgmmaConfig config;
  double time;  // microseconds
};

// The depth of each part of the reduction, and the number of parts that have something to add.
int64_t part_depth(const GemmProblem& p, int64_t splits) {
  return round_up(ceil_div(p.k, splits), line_elements(p));
}
int64_t filled_parts(const GemmProblem& p, int64_t splits) {
  return ceil_div(p.k, part_depth(p, splits));
}

WgmmaPlan assess(const GemmProblem& p, const WgmmaTile& tile, int splits, const cl::Device& device,
                 const DeviceRates& rates) {
  const double rate = (is_split(p) ? tile.split_speed : tile.speed) * wgmma_rate(rates, operand_bytes(p)) /
                      device.compute_units;
  const double flops =
      2.0 * int(params::WGMMA_ROWS) * tile.columns * part_depth(p, splits) * (is_split(p) ? 3 : 1);
  const int64_t rounds = ceil_div(tiles_of(p, tile.columns) * splits, device.compute_units);
  double time = kGpuTileLaunches * rates.launch_us + rounds * (kWgmmaTileTime + flops / rate);
  for (const Side& side : {left_side(p), right_side(p)})
    if (side.lines() == Lines::kPacked) time += rates.launch_us + 2 * packed_bytes(side) / rates.bytes;
  if (splits > 1)
    time += rates.launch_us + (2 * splits + 1) * double(p.batch) * p.m * p.n * sizeof(float) / rates.bytes;
  return {{tile.columns, splits}, time};
}

int64_t most_splits(const GemmProblem& p) {
  const int64_t by_memory =
      kGpuPartialBytes / std::max<double>(1, double(p.batch) * p.m * p.n * sizeof(float));
  return std::max<int64_t>(1, std::min(p.k / (kShortestPart * line_elements(p)), by_memory));
}

// All that could be tried for an oriented problem, the fastest first.
std::vector<WgmmaPlan> plans(const GemmProblem& p, const cl::Device& device) {
  const DeviceRates& rates = rates_of(device);
  std::vector<WgmmaPlan> list;
  for (const WgmmaTile& tile : kWgmmaTiles) {
    if (!has_registers(p, tile)) continue;
    int64_t previous = 0;
    for (int rounds : {0, 1, 2, 3}) {  // tiles that a compute unit shall have
      const int64_t wanted = rounds * int64_t(device.compute_units) / tiles_of(p, tile.columns);
      const int64_t splits = filled_parts(p, std::clamp<int64_t>(wanted, 1, most_splits(p)));
      if (splits == previous) continue;
      previous = splits;
      list.push_back(assess(p, tile, static_cast<int>(splits), device, rates));
    }
  }
  std::stable_sort(list.begin(), list.end(), [](const auto& a, const auto& b) { return a.time < b.time; });
  return list;
}

// An operand as the kernel takes it, but for its offset.
WgmmaOperand operand(const Side& side) {
  const WgmmaOperand copied = Copy(side).lines;
  const int64_t batch = side.batch > 1 ? side.batch_stride * side.bytes : 0;
  switch (side.lines()) {
    case Lines::kAlongK:
      return {0, side.rows > 1 ? side.row_stride * side.bytes : copied.pitch, batch};
    case Lines::kAlongRows:
      return {0, side.k > 1 ? side.k_stride * side.bytes : copied.pitch, batch};
    case Lines::kPacked:
      break;
  }
  return copied;
}

class WgmmaInvoker final : public GpuGemmInvoker<GemmWgmma> {
 public:
  WgmmaInvoker(const GemmProblem& problem, cl::Device& device, const Config& chosen)
      : GpuGemmInvoker(problem, columns_are_rows(problem), kernel(problem, device, chosen, "gemm_gpu_wgmma"),
                       kernel(problem, device, chosen, "split_reduce")),
        layout_(oriented(problem), device, chosen.as<WgmmaConfig>()),
        packer_(device, problem.device, problem.a_dtype ? c10::ScalarType::Char : problem.dtype),
        left_(left_side(oriented(problem))),
        right_(right_side(oriented(problem))) {
    if (left_.always || right_.always) packer_.fetch();
    const GemmProblem p = oriented(problem);
    const WgmmaConfig config = chosen.as<WgmmaConfig>();
    GemmWgmma& a = arguments_;
    a.a = operand(left_side(p)), a.b = operand(right_side(p));
    a.c_batch = p.c[0], a.c_m = p.c[1], a.c_n = p.c[2];
    a.d_batch = p.d[0], a.d_m = p.d[1], a.d_n = p.d[2];
    a.batch = p.batch, a.m = p.m, a.n = p.n, a.k = p.k;
    a.splits = config.splits;
    a.k_part = static_cast<int>(part_depth(p, config.splits));
    together_ = result_bytes(p) == 4 ? 2 : 8;
    a.c_vector = p.c[2] == 1 && p.c[0] % together_ == 0 && p.c[1] % together_ == 0 && p.n % together_ == 0;
    divide(p, config.splits, groups_of(p, device, config), params::WGMMA_ITEMS);
    takes_turns();
  }

  void run(Stream& stream, const GemmProblem::Operands& given, MemRef workspace) override {
    GemmProblem::Operands operands = given;
    GemmWgmma a = arguments_;
    const auto in_workspace = [&](uint64_t bytes) { return MemRef{workspace.mem, workspace.offset + bytes}; };
    // freed when this returns, which the allocator orders behind what is enqueued
    const c10::DataPtr left =
        bring(stream, left_, swap_ ? operands.b : operands.a, a.a, in_workspace(layout_.left));
    const c10::DataPtr right =
        bring(stream, right_, swap_ ? operands.a : operands.b, a.b, in_workspace(layout_.right));
    a.c_vector &= operands.c.offset % together_ == 0;
    a.maps_offset = static_cast<int64_t>((workspace.offset + layout_.maps) / sizeof(float));
    launch(stream, kernel_, a, operands, in_workspace(layout_.partial));
  }

 private:
  static cl::Kernel& kernel(const GemmProblem& problem, cl::Device& device, const Config& config,
                            const char* name) {
    const GemmProblem p = oriented(problem);
    const auto along_rows = [](const Side& side) { return side.lines() == Lines::kAlongRows ? "1" : "0"; };
    return fetch_with(p.epilogue, device,
                      {"common/gpu_tile.clh", "common/operands.clh", "common/wgmma.clh",
                       "common/wgmma_loop.clh", "gemm/gpu_wgmma.cl", "common/split_reduce.cl"},
                      name,
                      gpu_options(device, p.dtype) + operand_options(p) +
                          " -DTILE_N=" + std::to_string(config.as<WgmmaConfig>().columns) + " -DSPLIT=" +
                          (is_split(p) ? "1" : "0") + " -DA_ALONG_ROWS=" + along_rows(left_side(p)) +
                          " -DB_ALONG_ROWS=" + along_rows(right_side(p)));
  }

  // Where only the operand's address is odd, its copy is elsewhere and has other strides.
  c10::DataPtr bring(Stream& stream, const Copy& copy, Buffer& operand, WgmmaOperand& lines,
                     MemRef place) const {
    c10::DataPtr memory = packer_.bring(stream, copy, operand, place);
    if (memory) lines = copy.lines;
    lines.offset = operand.offset;
    return memory;
  }

  const Layout layout_;
  const LinePacker packer_;
  const Copy left_, right_;
  int together_;  // elements of a row of results that are stored at once
};

class Wgmma final : public GemmSolver {
 public:
  const char* name() const override { return "gpu_wgmma"; }
  bool takes_epilogue() const override { return true; }
  bool takes_mixed() const override { return true; }
  ConfigNames config_names() const override { return ConfigNames::of<WgmmaConfig>(); }
  Applicability applicable(const GemmProblem& p, const cl::Device& device) const override {
    if (!(p.is_int8() || is_float8(p)) && (!is_float_storage(p.dtype) || p.a_dtype || p.b_dtype))
      return Applicability::no(
          "takes operands of one dtype (float32, float16, bfloat16), two of int8 or of float8");
    if (result_bytes(p) > 4) return Applicability::no("results of more than 4 bytes");
    if (!device.wgmma) return Applicability::no("needs an NVIDIA GPU of compute capability 9.0");
    if (std::min({p.batch, p.m, p.n, p.k}) == 0) return Applicability::no("nothing to multiply");
    if (std::max({p.batch, p.m, p.n, p.k}) > INT32_MAX - 512)
      return Applicability::no("a dimension of 2^31 or more");
    const GemmProblem q = oriented(p);
    for (const Side& side : {left_side(q), right_side(q)})
      if (const WgmmaOperand o = operand(side); std::max(o.pitch, o.batch) >= int64_t(1) << 40)
        return Applicability::no("rows or matrices 2^40 bytes apart");
    if (double(tiles_of(q, kWgmmaTiles[2].columns)) * most_splits(q) > INT32_MAX ||
        std::max(Copy(left_side(q)).groups, Copy(right_side(q)).groups) > INT32_MAX)
      return Applicability::no("2^31 tiles or more");
    return Applicability::yes();
  }
  uint64_t workspace(const GemmProblem& p, const cl::Device& device, const Config& config) const override {
    return Layout(oriented(p), device, config.as<WgmmaConfig>()).end;
  }
  std::vector<Config> configs(const GemmProblem& problem, const cl::Device& device) const override {
    const GemmProblem p = oriented(problem);
    const std::vector<WgmmaPlan> all = plans(p, device);
    std::vector<Config> list;
    for (const WgmmaPlan& plan : all)
      if (list.size() < kMostConfigs && plan.time < kHopeless * all.front().time)
        list.push_back(Config::of(plan.config));
    return list;
  }
  bool has_config(const GemmProblem& problem, const cl::Device&, const Config& config) const override {
    const auto [columns, splits] = config.as<WgmmaConfig>();
    if (config != Config::of(WgmmaConfig{columns, splits})) return false;
    const GemmProblem p = oriented(problem);
    for (const WgmmaTile& tile : kWgmmaTiles)
      if (tile.columns == columns && has_registers(p, tile))
        return splits >= 1 && splits <= most_splits(p) && splits == filled_parts(p, splits);
    return false;
  }
  double estimate(const GemmProblem& p, const cl::Device& device) const override {
    return plans(oriented(p), device).front().time;
  }
  std::unique_ptr<GemmInvoker> invoker(const GemmProblem& problem, cl::Device& device,
                                       const Config& config) const override {
    return std::make_unique<WgmmaInvoker>(problem, device, config);
  }
};

}  // namespace

const GemmSolver* gemm_gpu_wgmma() {
  static const Wgmma solver;
  return &solver;
}

}  // namespace dlb::solver
