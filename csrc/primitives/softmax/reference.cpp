// The plainest kernel, which the others are checked against: a work-item for each position outside the
// dimension.
#include "primitives/softmax/softmax.h"

namespace dlb::softmax {
namespace {

Launch launch_of(const SoftmaxProblem& p, const cl::Device& device, const Config&) {
  const Team team{static_cast<uint32_t>(p.outer * p.inner), 1, 1, 0};
  return {"softmax/reference.cl", p.is_backward() ? "softmax_reference_backward" : "softmax_reference", team,
          range_of(device, team)};
}

}  // namespace

const Solver<SoftmaxProblem>* reference() {
  static const RowSolver<SoftmaxProblem> solver({.name = "reference",
                                                 .applicable = always<SoftmaxProblem>,
                                                 .estimate = streaming_estimate<SoftmaxProblem, 5000>,
                                                 .configs = one_config<SoftmaxProblem>,
                                                 .invoker = invoker<launch_of>});
  return &solver;
}

}  // namespace dlb::softmax
