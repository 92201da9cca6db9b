// Attention solvers "gpu_flash": tiles in local memory and a block of results in each work-item's registers,
// for GPU-class devices of any vendor; see attention/gpu_flash.clh.
#include <array>
#include <bit>
#include <string>

#include "cl/rounding.h"
#include "primitives/attention/attention.h"
#include "runtime/element.h"
#include "runtime/fetch_kernel.h"
#include "solver/device_rates.h"

namespace dlb::attention {
namespace {

// Rows that a work-group keeps, those of a step, work-items: what fits 48 KiB of local memory.
struct Form {
  int dim, kept, step, items;

  int lanes() const { return items / (kept / 4); }
  // Bytes of local memory, by the number of tiles of each kind.
  uint64_t local_bytes(int kept_tiles, int score_tiles) const {
    const int pitch = kept + 4;
    return 4ull * (dim * (kept_tiles * pitch + step + 4) + score_tiles * step * pitch + lanes() * pitch);
  }
};
constexpr Form kForward[] = {{32, 64, 32, 128}, {64, 64, 32, 128}, {128, 32, 32, 128}, {256, 16, 16, 64}};
constexpr Form kBackward[] = {{32, 64, 32, 128}, {64, 32, 32, 64}, {128, 16, 32, 64}, {256, 8, 16, 32}};
constexpr int kLeastDim = 32;

const Form& form_of(const AttentionProblem& p) {
  const auto dim = std::bit_ceil(static_cast<uint64_t>(std::max<int64_t>(p.dim, kLeastDim)));
  return (p.is_backward() ? kBackward : kForward)[std::bit_width(dim) - std::bit_width(unsigned{kLeastDim})];
}

uint64_t local_bytes(const AttentionProblem& p) {
  return p.is_backward() ? form_of(p).local_bytes(2, 2) : form_of(p).local_bytes(1, 1);
}

Applicability applicable(const AttentionProblem& p, const cl::Device& device) {
  if (is_cpu(device)) return Applicability::no("for GPU-class devices");
  const Applicability common = common_applicable(p);
  if (!common) return common;
  if (local_bytes(p) > device.local_mem) return Applicability::no("too little local memory");
  if (form_of(p).items > static_cast<int64_t>(device.max_work_group))
    return Applicability::no("work-groups are too small");
  return Applicability::yes();
}

// A rate that few work-groups do not reach.
double estimate(const AttentionProblem& p, const cl::Device& device) {
  constexpr double kReached = 0.35, kGroupsPerUnit = 4;
  const DeviceRates& rates = rates_of(device);
  const Form& form = form_of(p);
  const double groups = double(p.batch) * p.heads * ceil_div(p.queries, form.kept);
  const double filled = std::min(1.0, groups / (kGroupsPerUnit * device.compute_units));
  const double rows = double(round_up(p.queries, form.kept)) / p.queries * form.dim / p.dim;
  const double products = p.is_backward() ? 7 : 2, launches = p.is_backward() ? 2 : 1;
  return launches * rates.launch_us +
         products * p.product_flops() * rows / (kReached * filled * rates.plain(c10::ScalarType::Float));
}

cl::Kernel& kernel_of(const AttentionProblem& p, cl::Device& device, const char* name) {
  const Form& form = form_of(p);
  const std::string options = element_option(p.dtype) + " -DDIM=" + std::to_string(form.dim) +
                              " -DKEPT=" + std::to_string(form.kept) +
                              " -DSTEP=" + std::to_string(form.step) +
                              " -DITEMS=" + std::to_string(form.items);
  return p.is_backward()
             ? fetch_kernel(device, {"common/gpu_tile.clh", "attention/gpu_flash_backward.cl"}, name, options)
             : fetch_kernel(device, {"common/gpu_tile.clh", "attention/gpu_flash.cl"}, name, options);
}

cl::Range range_of(const Form& form, int64_t length, int64_t heads, int64_t batch) {
  cl::Range range = cl::Range::grid(ceil_div(length, form.kept) * form.items, heads, batch);
  range.local[0] = static_cast<size_t>(form.items);
  return range;
}

std::unique_ptr<Invoker<AttentionProblem>> forward(const AttentionProblem& p, cl::Device& device,
                                                   const Config&) {
  cl::Kernel& kernel = kernel_of(p, device, "attention_gpu_flash");
  const cl::Range range = range_of(form_of(p), p.queries, p.heads, p.batch);
  return invoker_of(p, kernel, range);
}

std::unique_ptr<Invoker<AttentionProblem>> backward(const AttentionProblem& p, cl::Device& device,
                                                    const Config&) {
  const BackwardLaunch launch{
      kernel_of(p, device, "attention_gpu_flash_dq"), kernel_of(p, device, "attention_gpu_flash_dkv"),
      range_of(form_of(p), p.queries, p.heads, p.batch), range_of(form_of(p), p.keys, p.kv_heads, p.batch)};
  return invoker_of(p, launch);
}

}  // namespace

const Solver<AttentionProblem>* gpu_flash() {
  static const RowSolver<AttentionProblem> solver({.name = "gpu_flash",
                                                   .applicable = applicable,
                                                   .estimate = estimate,
                                                   .configs = one_config<AttentionProblem>,
                                                   .invoker = forward});
  return &solver;
}

const Solver<AttentionProblem>* gpu_flash_backward() {
  static const RowSolver<AttentionProblem> solver({.name = "gpu_flash",
                                                   .applicable = applicable,
                                                   .estimate = estimate,
                                                   .configs = one_config<AttentionProblem>,
                                                   .invoker = backward});
  return &solver;
}

}  // namespace dlb::attention
