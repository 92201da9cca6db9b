// Layer norm of rows, each by a team of work-items that reads it three times (backward: twice).
#include "primitives/norm/layer_norm.h"

namespace dlb::norm {

LayerNormLaunch layer_norm_rows_launch(const LayerNormProblem& p, const cl::Device& device,
                                       const Config& config) {
  return {"norm/layer_norm_rows.cl", p.is_backward() ? "layer_norm_rows_backward" : "layer_norm_rows",
          team_of(p, device, config)};
}

const Solver<LayerNormProblem>* layer_norm_rows() {
  static const RowSolver<LayerNormProblem> solver({.name = "rows",
                                                   .applicable = always<LayerNormProblem>,
                                                   .estimate = streaming_estimate<LayerNormProblem, 100>,
                                                   .configs = layer_norm_rows_configs,
                                                   .invoker = layer_norm_invoker<layer_norm_rows_launch>,
                                                   .config_names = ConfigNames::of<LayerNormConfig>()});
  return &solver;
}

}  // namespace dlb::norm
