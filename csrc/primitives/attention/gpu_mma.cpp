// Attention solvers "gpu_mma": 16 bits on NVIDIA's tensor cores; see attention/gpu_mma.clh.
#include <bit>
#include <string>

#include "cl/rounding.h"
#include "primitives/attention/attention.h"
#include "runtime/element.h"
#include "runtime/fetch_kernel.h"
#include "solver/device_rates.h"

namespace dlb::attention {
namespace {

constexpr int64_t kLeastDim = 32, kMostDim = 128, kKept = 64, kItems = 128;

int64_t dim_of(const AttentionProblem& p) {
  return static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(std::max(p.dim, kLeastDim))));
}
// Rows of a step: so many that four tiles fit 48 KiB.
int64_t step_of(const AttentionProblem& p) {
  return dim_of(p) > 64 ? 32 : 64;
}

// Bytes of local memory: the tiles of a step as rows and as pairs, and what the emulation takes.
uint64_t local_bytes(const AttentionProblem& p, const cl::Device& device) {
  const int64_t dim = dim_of(p), step = step_of(p), rows = step * (dim / 2 + 4), pairs = dim * (step / 2 + 4);
  const int64_t words = p.is_backward() ? 2 * rows + 2 * pairs : rows + pairs + 2 * 4 * kKept;
  const bool emulated = device.tensor_cores == cl::TensorCores::kEmulated;
  return static_cast<uint64_t>(4 * (words + (emulated ? 12 * kItems : 1)));
}

Applicability applicable(const AttentionProblem& p, const cl::Device& device) {
  if (device.tensor_cores == cl::TensorCores::kNone || is_cpu(device))
    return Applicability::no("the device has no tensor cores that OpenCL reaches");
  if (p.dtype != c10::ScalarType::Half && p.dtype != c10::ScalarType::BFloat16)
    return Applicability::no("for float16 and bfloat16");
  if (p.dim > kMostDim) return Applicability::no("heads of more than 128 elements");
  if (local_bytes(p, device) > device.local_mem) return Applicability::no("too little local memory");
  return common_applicable(p);
}

double estimate(const AttentionProblem& p, const cl::Device& device) {
  constexpr double kReached = 0.2, kGroupsPerUnit = 2;
  const DeviceRates& rates = rates_of(device);
  const double groups = double(p.batch) * p.heads * ceil_div(p.queries, kKept);
  const double filled = std::min(1.0, groups / (kGroupsPerUnit * device.compute_units));
  const double rows = double(round_up(p.queries, kKept)) / p.queries * dim_of(p) / p.dim;
  const double products = p.is_backward() ? 7 : 2, launches = p.is_backward() ? 2 : 1;
  return launches * rates.launch_us +
         products * p.product_flops() * rows / (kReached * filled * rates.matrix16);
}

cl::Kernel& kernel_of(const AttentionProblem& p, cl::Device& device, const char* name) {
  const std::string options = element_option(p.dtype) + " -DDIM=" + std::to_string(dim_of(p)) +
                              " -DSTEP=" + std::to_string(step_of(p)) +
                              (device.tensor_cores == cl::TensorCores::kEmulated ? " -DMMA=2" : " -DMMA=1");
  return p.is_backward()
             ? fetch_kernel(device, {"common/gpu_tile.clh", "attention/gpu_mma_backward.cl"}, name, options)
             : fetch_kernel(device, {"common/gpu_tile.clh", "attention/gpu_mma.cl"}, name, options);
}

cl::Range range_of(int64_t length, int64_t heads, int64_t batch) {
  cl::Range range = cl::Range::grid(ceil_div(length, kKept) * kItems, heads, batch);
  range.local[0] = kItems;
  return range;
}

std::unique_ptr<Invoker<AttentionProblem>> forward(const AttentionProblem& p, cl::Device& device,
                                                   const Config&) {
  cl::Kernel& kernel = kernel_of(p, device, "attention_mma");
  const cl::Range range = range_of(p.queries, p.heads, p.batch);
  return invoker_of(p, kernel, range);
}

std::unique_ptr<Invoker<AttentionProblem>> backward(const AttentionProblem& p, cl::Device& device,
                                                    const Config&) {
  return invoker_of(p, {kernel_of(p, device, "attention_mma_dq"), kernel_of(p, device, "attention_mma_dkv"),
                        range_of(p.queries, p.heads, p.batch), range_of(p.keys, p.kv_heads, p.batch)});
}

}  // namespace

const Solver<AttentionProblem>* gpu_mma() {
  static const RowSolver<AttentionProblem> solver({.name = "gpu_mma",
                                                   .applicable = applicable,
                                                   .estimate = estimate,
                                                   .configs = one_config<AttentionProblem>,
                                                   .invoker = forward});
  return &solver;
}

const Solver<AttentionProblem>* gpu_mma_backward() {
  static const RowSolver<AttentionProblem> solver({.name = "gpu_mma",
                                                   .applicable = applicable,
                                                   .estimate = estimate,
                                                   .configs = one_config<AttentionProblem>,
                                                   .invoker = backward});
  return &solver;
}

}  // namespace dlb::attention
