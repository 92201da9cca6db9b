// Attention solvers "gpu_wgmma": 16 bits on the warpgroup instructions of NVIDIA's Hopper GPUs; see
// attention/gpu_wgmma.clh.
#include "kernels/attention/gpu_wgmma.h"

#include <mutex>
#include <string>

#include "cl/rounding.h"
#include "kernels/common/wgmma.h"
#include "primitives/attention/attention.h"
#include "runtime/element.h"
#include "runtime/fetch_kernel.h"
#include "solver/device_rates.h"

namespace dlb::attention {
namespace {

constexpr int64_t kMostDim = 128, kKept = params::ATTENTION_WGMMA_KEPT;
constexpr int64_t kLineElements = params::WGMMA_LINE / 2, kMostStages = 4;
constexpr int64_t kBackwardStep = 64;       // rows: with more the gradients of keys do not fit the registers
constexpr int64_t kCachedBytes = 16 << 20;  // of keys and values that run together, less than the cache holds

// Rows of a step; whether the exponentials of a step are computed while the tensor cores have the one before.
struct WgmmaConfig {
  int32_t step = 0, overlap = 0;
  static constexpr const char* kNames[] = {"step", "overlap"};
};
constexpr WgmmaConfig kForward[] = {{128, 1}, {128, 0}, {64, 1}, {64, 0}};

int64_t dim_of(const AttentionProblem& p) {
  return round_up(p.dim, kLineElements);
}

int64_t blocks_of(const AttentionProblem& p, int64_t rows, int64_t heads) {
  return ceil_div(rows, kKept) * heads * p.batch;
}

// Whether the copy engine takes a view, and results can be stored eight elements at a time. A dimension of
// one has no stride, nor has a head that all others share.
bool is_aligned(const int64_t* strides, int64_t rows, bool read) {
  constexpr int64_t kMostStride = int64_t{1} << 38;  // elements
  for (int i = 0; i < 3; i++)
    if (strides[i] % params::ATTENTION_WGMMA_UNIT != 0 || strides[i] < 0 || strides[i] > kMostStride)
      return false;
  return !read || rows == 1 || strides[2] > 0;
}

bool are_aligned(const AttentionProblem& p) {
  const bool shared = is_aligned(p.q, p.queries, true) && is_aligned(p.k, p.keys, true) &&
                      is_aligned(p.v, p.keys, true) && is_aligned(p.out, p.queries, p.is_backward());
  return shared &&
         (!p.is_backward() || (is_aligned(p.grad_q, p.queries, false) &&
                               is_aligned(p.grad_k, p.keys, false) && is_aligned(p.grad_v, p.keys, false)));
}

// The same of where they begin, which a problem does not say.
bool are_aligned(const AttentionProblem& p, const AttentionOperands& o) {
  const auto aligned = [](const Buffer& b) { return b.offset % params::ATTENTION_WGMMA_UNIT == 0; };
  if (!aligned(o.q) || !aligned(o.k) || !aligned(o.v)) return false;
  if (!p.is_backward()) return aligned(o.out);
  return aligned(o.grad_out) && aligned(o.grad_q) && aligned(o.grad_k) && aligned(o.grad_v);
}

const Solver<AttentionProblem>* solver_of_odd_addresses(const AttentionProblem& p) {
  return p.is_backward() ? gpu_mma_backward() : gpu_mma();
}

Applicability applicable(const AttentionProblem& p, const cl::Device& device) {
  if (p.dtype != c10::ScalarType::Half && p.dtype != c10::ScalarType::BFloat16)
    return Applicability::no("for float16 and bfloat16");
  if (!device.wgmma) return Applicability::no("needs an NVIDIA GPU of compute capability 9.0");
  if (p.dim > kMostDim) return Applicability::no("heads of more than 128 elements");
  if (p.dim % params::ATTENTION_WGMMA_UNIT != 0 || !are_aligned(p))
    return Applicability::no("rows are not multiples of 16 bytes apart");
  if (double(ceil_div(std::max(p.queries, p.keys), kKept)) * p.heads * p.batch > INT32_MAX / 2)
    return Applicability::no("2^30 blocks or more");
  return solver_of_odd_addresses(p)->applicable(p, device);
}

// Work-groups take blocks in turn, as many of them as there are compute units.
struct Launch {
  int64_t groups;
  cl::Range range;
  params::AttentionWgmma arguments{};

  // Blocks of `rows` rows for `heads` heads, of which `sharing` read the same `read` rows of two tensors.
  Launch(const AttentionProblem& p, const cl::Device& device, int64_t rows, int64_t heads, int64_t sharing,
         int64_t read)
      : groups(std::min<int64_t>(blocks_of(p, rows, heads), device.compute_units)),
        range(cl::Range::linear(static_cast<size_t>(groups), params::ATTENTION_WGMMA_ITEMS)) {
    const int64_t cached = std::max<int64_t>(1, kCachedBytes / (2 * 2 * dim_of(p) * read)) * sharing;
    arguments.batch = static_cast<int32_t>(p.batch);
    arguments.together = static_cast<int32_t>(std::min(cached, heads * p.batch));
  }
  int64_t maps_bytes() const {
    return groups * int64_t{params::ATTENTION_WGMMA_MAPS} * int64_t{params::WGMMA_MAP};
  }
};

Launch forward_launch(const AttentionProblem& p, const cl::Device& device) {
  return {p, device, p.queries, p.heads, p.heads / p.kv_heads, p.keys};
}

uint64_t forward_workspace(const AttentionProblem& p, const cl::Device& device, const Config&) {
  return static_cast<uint64_t>(forward_launch(p, device).maps_bytes());
}

// The share of the rate of products (DeviceRates::matrix16) that is reached, by the head size.
double reached(const AttentionProblem& p) {
  return dim_of(p) == kLineElements ? 0.5 : 0.65;
}

double estimate(const AttentionProblem& p, const cl::Device& device) {
  const DeviceRates& rates = rates_of(device);
  const double products = p.is_backward() ? 7 : 2, launches = p.is_backward() ? 2 : 1;
  const int64_t blocks = blocks_of(p, p.queries, p.heads);
  const double filled = std::min(1.0, double(blocks) / device.compute_units);
  const double rows = double(round_up(p.queries, kKept)) / p.queries * dim_of(p) / p.dim;
  return launches * rates.launch_us +
         products * p.product_flops() * rows / (reached(p) * filled * rates.matrix16);
}

std::string options_of(const AttentionProblem& p, int64_t step) {
  const int64_t step_bytes = 2 * 2 * dim_of(p) * step;
  const int64_t stages = std::min(kMostStages, int64_t{params::ATTENTION_WGMMA_STEP_BYTES} / step_bytes);
  return element_option(p.dtype) + " -DDIM=" + std::to_string(dim_of(p)) + " -DSTEP=" + std::to_string(step) +
         " -DSTAGES=" + std::to_string(stages) + " -DBIAS=" + (p.bias ? "1" : "0") +
         " -DDROPOUT=" + (p.dropout ? "1" : "0");
}

// Numbers of dropout take the exponentials so long that nothing is gained by an overlap.
std::vector<Config> forward_configs(const AttentionProblem& p, const cl::Device&) {
  std::vector<Config> list;
  for (const WgmmaConfig& config : kForward)
    if (!p.dropout || !config.overlap) list.push_back(Config::of(config));
  return list;
}

// Runs a pass, or where an operand begins at an odd address the solver that takes those. The latter's
// programs are looked for when they are first needed.
template <class Run>
class WgmmaInvoker final : public Invoker<AttentionProblem> {
 public:
  WgmmaInvoker(const AttentionProblem& p, cl::Device& device, Run run)
      : p_(p), device_(device), run_(std::move(run)) {}

  void run(Stream& stream, const AttentionOperands& o, MemRef workspace) override {
    if (are_aligned(p_, o)) return run_(stream, o, workspace);
    std::call_once(once_, [&] { other_ = solver_of_odd_addresses(p_)->invoker(p_, device_, {}); });
    other_->run(stream, o, {});
  }

 private:
  const AttentionProblem p_;
  cl::Device& device_;
  const Run run_;
  std::once_flag once_;
  std::unique_ptr<Invoker<AttentionProblem>> other_;
};

template <class Run>
std::unique_ptr<Invoker<AttentionProblem>> wgmma_invoker(const AttentionProblem& p, cl::Device& device,
                                                         Run run) {
  return std::make_unique<WgmmaInvoker<Run>>(p, device, std::move(run));
}

std::unique_ptr<Invoker<AttentionProblem>> forward(const AttentionProblem& p, cl::Device& device,
                                                   const Config& chosen) {
  const auto config = chosen.as<WgmmaConfig>();
  cl::Kernel& kernel = fetch_kernel(
      device, {"common/gpu_tile.clh", "common/wgmma.clh", "attention/gpu_wgmma.cl"}, "attention_gpu_wgmma",
      options_of(p, config.step) + " -DOVERLAP=" + std::to_string(config.overlap));
  return wgmma_invoker(p, device,
                       [p, &kernel, launch = forward_launch(p, device)](
                           Stream& stream, const AttentionOperands& o, MemRef workspace) {
                         params::AttentionWgmma arguments = launch.arguments;
                         arguments.maps = static_cast<int64_t>(workspace.offset);
                         launch_forward(kernel, launch.range, o, params_of(p, o), stream, workspace.mem,
                                        arguments);
                       });
}

// A block of keys is gone through by the queries of all heads that share it.
struct BackwardLaunches {
  Launch dq, dkv;
  BackwardLaunches(const AttentionProblem& p, const cl::Device& device)
      : dq(p, device, p.queries, p.heads, p.heads / p.kv_heads, p.keys),
        dkv(p, device, p.keys, p.kv_heads, 1, p.queries * (p.heads / p.kv_heads)) {}
};

// Each kernel has maps of its own, since the second may begin before the first has ended.
uint64_t backward_workspace(const AttentionProblem& p, const cl::Device& device, const Config&) {
  const BackwardLaunches launches(p, device);
  return static_cast<uint64_t>(launches.dq.maps_bytes() + launches.dkv.maps_bytes());
}

std::unique_ptr<Invoker<AttentionProblem>> backward(const AttentionProblem& p, cl::Device& device,
                                                    const Config&) {
  const BackwardLaunches launches(p, device);
  const std::string options = options_of(p, kBackwardStep);
  const auto kernel_of = [&](const char* name) -> cl::Kernel& {
    return fetch_kernel(device,
                        {"common/gpu_tile.clh", "common/wgmma.clh", "attention/gpu_wgmma_backward.cl"}, name,
                        options);
  };
  const BackwardLaunch both{kernel_of("attention_gpu_wgmma_dq"), kernel_of("attention_gpu_wgmma_dkv"),
                            launches.dq.range, launches.dkv.range};
  return wgmma_invoker(p, device,
                       [p, both, launches](Stream& stream, const AttentionOperands& o, MemRef workspace) {
                         const Params params = params_of(p, o);
                         params::AttentionWgmma arguments = launches.dq.arguments;
                         arguments.maps = static_cast<int64_t>(workspace.offset);
                         both.run_dq(o, params, stream, workspace.mem, arguments);
                         const int64_t after = arguments.maps + launches.dq.maps_bytes();
                         arguments = launches.dkv.arguments;
                         arguments.maps = after;
                         both.run_dkv(o, params, stream, workspace.mem, arguments);
                       });
}

}  // namespace

const Solver<AttentionProblem>* gpu_wgmma_backward() {
  static const RowSolver<AttentionProblem> solver({.name = "gpu_wgmma",
                                                   .applicable = applicable,
                                                   .estimate = estimate,
                                                   .configs = one_config<AttentionProblem>,
                                                   .invoker = backward,
                                                   .workspace = backward_workspace});
  return &solver;
}

const Solver<AttentionProblem>* gpu_wgmma() {
  static const RowSolver<AttentionProblem> solver({.name = "gpu_wgmma",
                                                   .applicable = applicable,
                                                   .estimate = estimate,
                                                   .configs = forward_configs,
                                                   .invoker = forward,
                                                   .workspace = forward_workspace,
                                                   .config_names = ConfigNames::of<WgmmaConfig>()});
  return &solver;
}

}  // namespace dlb::attention
