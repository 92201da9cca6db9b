// The plainest kernels, which the others are checked against: a work-item for each element of the result.
#include "primitives/pool/pool.h"

namespace dlb::pool {
namespace {

const char* kernel_name(const PoolProblem& p) {
  if (p.is_backward()) return p.is_max() ? "max_pool_reference_backward" : "avg_pool_reference_backward";
  return p.is_max() ? "max_pool_reference" : "avg_pool_reference";
}

Launch launch_of(const PoolProblem& p, const cl::Device& device, const Config&) {
  Launch launch{"pool/reference.cl", kernel_name(p), params_of(p)};
  launch.team =
      make_team(device, p.is_backward() ? p.input_elements() : p.output_elements(), p.window_size(), 1);
  return launch;
}

}  // namespace

const Solver<PoolProblem>* reference() {
  static const RowSolver<PoolProblem> solver({.name = "reference",
                                              .applicable = always<PoolProblem>,
                                              .estimate = streaming_estimate<PoolProblem, 5000>,
                                              .configs = one_config<PoolProblem>,
                                              .invoker = invoker<launch_of>});
  return &solver;
}

}  // namespace dlb::pool
