// Attention solvers "reference": any device, a work-item for each row of a result.
#include "cl/rounding.h"
#include "primitives/attention/attention.h"
#include "primitives/common/compute_estimates.h"
#include "runtime/element.h"
#include "runtime/fetch_kernel.h"

namespace dlb::attention {
namespace {

cl::Kernel& kernel_of(const AttentionProblem& p, cl::Device& device, const char* name) {
  return fetch_kernel(device, {"common/gpu_tile.clh", "attention/reference.cl"}, name,
                      element_option(p.dtype));
}

Applicability applicable(const AttentionProblem& p, const cl::Device&) {
  return common_applicable(p);
}

template <int products>
double estimate(const AttentionProblem& p, const cl::Device& device) {
  return reference_microseconds(products * p.product_flops(), p.dtype, device);
}

std::unique_ptr<Invoker<AttentionProblem>> forward(const AttentionProblem& p, cl::Device& device,
                                                   const Config&) {
  cl::Kernel& kernel = kernel_of(p, device, "attention_reference");
  const cl::Range range = rows_range(device, p.queries, p.heads, p.batch);
  return invoker_of(p, kernel, range);
}

std::unique_ptr<Invoker<AttentionProblem>> backward(const AttentionProblem& p, cl::Device& device,
                                                    const Config&) {
  const BackwardLaunch launch{
      kernel_of(p, device, "attention_reference_dq"), kernel_of(p, device, "attention_reference_dkv"),
      rows_range(device, p.queries, p.heads, p.batch), rows_range(device, p.keys, p.kv_heads, p.batch)};
  return invoker_of(p, launch);
}

}  // namespace

const Solver<AttentionProblem>* reference() {
  static const RowSolver<AttentionProblem> solver({.name = "reference",
                                                   .applicable = applicable,
                                                   .estimate = estimate<2>,
                                                   .configs = one_config<AttentionProblem>,
                                                   .invoker = forward});
  return &solver;
}

const Solver<AttentionProblem>* reference_backward() {
  static const RowSolver<AttentionProblem> solver({.name = "reference",
                                                   .applicable = applicable,
                                                   .estimate = estimate<7>,
                                                   .configs = one_config<AttentionProblem>,
                                                   .invoker = backward});
  return &solver;
}

}  // namespace dlb::attention
