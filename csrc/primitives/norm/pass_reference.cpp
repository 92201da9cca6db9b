// The plainest passes, which the others are checked against: a work-item for each row.
#include "primitives/norm/pass.h"

namespace dlb::norm {
namespace {

PassLaunch launch_of(const NormPassProblem& p, const cl::Device& device, const Config&) {
  PassLaunch launch("norm/pass_reference.cl", p.is_sums() ? "norm_sums_reference" : "norm_stats_reference",
                    p);
  params::NormPass& params = launch.params;
  params.per_split = params.count;
  if (p.columns) params.inner_rows = params.rows, params.inner_stride = params.length = 1;
  launch.team = make_team(device, params.rows, params.count, 1);
  launch.range = range_of(device, launch.team);
  return launch;
}

}  // namespace

const Solver<NormPassProblem>* pass_reference() {
  static const RowSolver<NormPassProblem> solver({.name = "reference",
                                                  .applicable = always<NormPassProblem>,
                                                  .estimate = streaming_estimate<NormPassProblem, 5000>,
                                                  .configs = one_config<NormPassProblem>,
                                                  .invoker = pass_invoker<launch_of>});
  return &solver;
}

}  // namespace dlb::norm
