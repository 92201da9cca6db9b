// GEMM solver "gpu_gemv": products with at most eight rows or columns on GPU-class devices, in one pass over
// the large operand; see gemm/gpu_gemv.cl. A long reduction is divided over work-groups and added in a fixed
// order by a second kernel.
#include "cl/rounding.h"
#include "kernels/gemm/params.h"
#include "primitives/common/factor.h"
#include "primitives/common/gpu_tile.h"
#include "primitives/gemm/gpu_invoker.h"
#include "primitives/gemm/solvers.h"
#include "runtime/fetch_kernel.h"

namespace dlb::solver {
namespace {

constexpr int kRows = 8;  // at most
constexpr int kItems = params::GEMV_ITEMS, kWide = params::GEMV_WIDE;
constexpr int kLanes[] = {32, 8, kItems};  // along the fast direction, in the order of preference
constexpr int64_t kShortestPart = 256;     // of the reduction
constexpr int kGroupsForBandwidth = 4;     // per compute unit; fewer have too few loads in flight
constexpr int kGroupsAtOnce = 8;           // per compute unit
constexpr double kLatency = 0.7;           // microseconds of four loads in flight, much the same on all GPUs

// The kernels want the short side as rows, and elements in groups on the other.
bool swap_sides(const GemmProblem& p) {
  return p.n < p.m && !p.group;
}
GemmProblem oriented(const GemmProblem& p) {
  return swap_sides(p) ? transposed(p) : p;
}

// Whether neighbours of the matrix lie along the reduction, not along its rows. A dimension of one element
// has stride 0 and no neighbours.
bool along_k(const GemmProblem& p) {
  return p.k > 1 && (p.n == 1 || p.b[1] <= p.b[2]);
}

bool in_vectors(const GemmProblem& p) {
  return along_k(p) ? p.b[1] == 1 && in_fours({p.b[0], p.b[2]}) : p.b[2] == 1 && in_fours({p.b[0], p.b[1]});
}

struct GemvPlan {
  int lanes, splits;
  double time;  // microseconds
};

int64_t groups_of(const GemmProblem& p, int lanes) {
  return p.batch * ceil_div(p.n, along_k(p) ? kItems / lanes * kWide : lanes * 4);
}

GemvPlan assess(const GemmProblem& p, int lanes, int64_t splits, const cl::Device& device,
                const DeviceRates& rates) {
  const double units = device.compute_units, groups = double(groups_of(p, lanes)) * splits;
  const double part = ceil_div(p.k, splits),
               loads = along_k(p) ? part / (lanes * (p.group ? 8 : 4)) : part * lanes / kItems;
  const double spread = p.b[1] > 1 && p.b[2] > 1 ? 8 : in_vectors(p) ? 1 : 1.3;  // of what a cache line holds
  const double bytes = p.b_bytes(double(p.batch) * p.n * p.k) * spread;
  const double bandwidth = rates.bytes * std::min(1.0, groups / (kGroupsForBandwidth * units));
  const double waits = std::ceil(groups / (kGroupsAtOnce * units)) * std::ceil(loads / 4) * kLatency;
  const double arithmetic = 2 * p.flops() / (kGpuTileShare * rates.plain(p.dtype));
  double time = rates.launch_us + kLatency + std::max({bytes / bandwidth, waits, arithmetic});
  if (splits > 1)
    time += rates.launch_us + (2 * splits + 1) * double(p.batch) * p.m * p.n * sizeof(float) / rates.bytes;
  return {lanes, static_cast<int>(splits), time};
}

int64_t most_splits(const GemmProblem& p) {
  return std::clamp<int64_t>(p.k / kShortestPart, 1, 64);
}

bool fits_partial(const GemmProblem& p, int64_t splits) {
  return splits * p.batch * p.m * p.n * sizeof(float) <= kGpuPartialBytes;
}

// All that could be tried for an oriented problem, the fastest first.
std::vector<GemvPlan> plans(const GemmProblem& p, const cl::Device& device) {
  const DeviceRates& rates = rates_of(device);
  std::vector<GemvPlan> list;
  for (int lanes : kLanes) {
    const int64_t most = most_splits(p);
    int64_t previous = 0;
    for (int load : {0, 2, 4, 8}) {  // work-groups per compute unit
      const int64_t wanted = ceil_div(load * int64_t(device.compute_units), groups_of(p, lanes));
      const int64_t splits = std::clamp<int64_t>(wanted, 1, most);
      if (splits == previous) continue;
      previous = splits;
      if (splits == 1 || fits_partial(p, splits)) list.push_back(assess(p, lanes, splits, device, rates));
    }
  }
  std::stable_sort(list.begin(), list.end(), [](const auto& a, const auto& b) { return a.time < b.time; });
  return list;
}

struct GemvConfig {
  int32_t lanes = 0, splits = 0;  // work-items along the fast direction; parts of the reduction
  static constexpr const char* kNames[] = {"lanes", "splits"};
};

class GemvInvoker final : public GpuGemmInvoker<params::GemmGemv> {
 public:
  GemvInvoker(const GemmProblem& problem, cl::Device& device, const Config& config)
      : GpuGemmInvoker(problem, swap_sides(problem),
                       kernel(problem, device,
                              along_k(oriented(problem)) ? "gemm_gpu_gemv_along_k" : "gemm_gpu_gemv_along_n"),
                       kernel(problem, device, "split_reduce")) {
    const GemmProblem p = oriented(problem);
    params::GemmGemv& a = arguments_;
    a.x_batch = p.a[0], a.x_row = p.a[1], a.x_k = p.a[2];
    a.a_batch = p.b[0], a.a_n = p.b[2], a.a_k = p.b[1];
    a.c_batch = p.c[0], a.c_row = p.c[1], a.c_n = p.c[2];
    a.d_batch = p.d[0], a.d_row = p.d[1], a.d_n = p.d[2];
    a.batch = p.batch, a.rows = p.m, a.n = p.n, a.k = p.k;
    a.lanes = config.as<GemvConfig>().lanes, a.splits = config.as<GemvConfig>().splits;
    a.k_part = round_up(ceil_div(p.k, a.splits), p.group ? 8 : 4);
    a.a_vector = in_vectors(p);
    a.x_vector = p.a[2] == 1 && in_fours({p.a[0], p.a[1]});
    divide(p, a.splits, groups_of(p, a.lanes), kItems);
  }

  void run(Stream& stream, const GemmProblem::Operands& operands, MemRef workspace) override {
    params::GemmGemv a = arguments_;
    a.x_offset = left(operands).offset, a.x_vector &= a.x_offset % 4 == 0;
    a.a_offset = right(operands).offset, a.a_vector &= a.a_offset % 4 == 0;
    launch(stream, kernel_, a, operands, workspace);
  }

 private:
  static cl::Kernel& kernel(const GemmProblem& p, cl::Device& device, const char* name) {
    const int64_t few = std::min(p.m, p.n);
    const std::string rows = few == 1 ? "1" : few <= 4 ? "4" : "8";
    return fetch_with(oriented(p).epilogue, device,
                      {"common/gpu_tile.clh", "gemm/gpu_gemv.cl", "common/split_reduce.cl"}, name,
                      gpu_options(device, p.dtype) + " -DROWS=" + rows + operand_options(oriented(p)));
  }
};

class Gemv final : public GemmSolver {
 public:
  const char* name() const override { return "gpu_gemv"; }
  bool takes_epilogue() const override { return true; }
  bool takes_mixed() const override { return true; }
  bool takes_groups() const override { return true; }
  ConfigNames config_names() const override { return ConfigNames::of<GemvConfig>(); }
  Applicability applicable(const GemmProblem& p, const cl::Device& device) const override {
    if (const char* reason = gpu_tiles_refuse(device, p.dtype)) return Applicability::no(reason);
    if (std::min(p.m, p.n) > kRows) return Applicability::no("more than eight rows and columns");
    if (std::max({p.m, p.n, p.k, p.batch}) > INT32_MAX - 1024)
      return Applicability::no("a dimension of 2^31 or more");
    if (p.group && p.m > kRows) return Applicability::no("more than eight rows beside groups");
    const GemmProblem q = oriented(p);
    if (q.a[1] * q.m > INT32_MAX || q.b[2] > INT32_MAX)
      return Applicability::no("rows too far apart in memory");
    if (groups_of(q, kItems) > INT32_MAX || groups_of(q, 8) > INT32_MAX)
      return Applicability::no("2^31 work-groups or more");
    return Applicability::yes();
  }
  uint64_t workspace(const GemmProblem& p, const cl::Device&, const Config& config) const override {
    const int32_t splits = config.as<GemvConfig>().splits;
    return splits == 1 ? 0 : partial_bytes(p.dtype) * splits * p.batch * p.m * p.n;
  }
  std::vector<Config> configs(const GemmProblem& p, const cl::Device& device) const override {
    constexpr size_t kMost = 6;
    constexpr double kHopeless = 3;  // times the expected time of the first
    std::vector<Config> list;
    const auto all = plans(oriented(p), device);
    for (const GemvPlan& plan : all)
      if (list.size() < kMost && plan.time < kHopeless * all.front().time)
        list.push_back(Config::of(GemvConfig{plan.lanes, plan.splits}));
    return list;
  }
  bool has_config(const GemmProblem& p, const cl::Device&, const Config& config) const override {
    const auto [lanes, splits] = config.as<GemvConfig>();
    if (config != Config::of(GemvConfig{lanes, splits})) return false;
    if (std::find(std::begin(kLanes), std::end(kLanes), lanes) == std::end(kLanes)) return false;
    return splits >= 1 && splits <= most_splits(p) && (splits == 1 || fits_partial(p, splits));
  }
  double estimate(const GemmProblem& p, const cl::Device& device) const override {
    return plans(oriented(p), device).front().time;
  }
  std::unique_ptr<GemmInvoker> invoker(const GemmProblem& problem, cl::Device& device,
                                       const Config& config) const override {
    return std::make_unique<GemvInvoker>(problem, device, config);
  }
};

}  // namespace

const GemmSolver* gemm_gpu_gemv() {
  static const Gemv solver;
  return &solver;
}

}  // namespace dlb::solver
