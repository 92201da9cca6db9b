// Passes over rows on GPUs, whose work-items take neighbours of a run at a time.
#include "primitives/norm/pass.h"

namespace dlb::norm {

Applicability pass_rows_wide_applicable(const NormPassProblem& p, const cl::Device& device) {
  if (is_cpu(device)) return Applicability::no("for GPU-class devices");
  if (p.length % params::NORM_NEIGHBOURS != 0)
    return Applicability::no("the length of a run is no multiple of four");
  return pass_rows_applicable(p, device);
}

PassLaunch pass_rows_wide_launch(const NormPassProblem& p, const cl::Device& device, const Config& config) {
  PassLaunch launch("norm/pass_rows_wide.cl", p.is_sums() ? "norm_sums_rows_wide" : "norm_stats_rows_wide",
                    p);
  divide_rows(launch, device, config, params::NORM_NEIGHBOURS);
  return launch;
}

const Solver<NormPassProblem>* pass_rows_wide() {
  static const RowSolver<NormPassProblem> solver({.name = "rows_wide",
                                                  .applicable = pass_rows_wide_applicable,
                                                  .estimate = streaming_estimate<NormPassProblem, 100>,
                                                  .configs = pass_rows_configs,
                                                  .invoker = pass_invoker<pass_rows_wide_launch>,
                                                  .workspace = pass_workspace<pass_rows_wide_launch>,
                                                  .config_names = ConfigNames::of<PassRowsConfig>()});
  return &solver;
}

}  // namespace dlb::norm
