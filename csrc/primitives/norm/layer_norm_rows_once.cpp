// Layer norm of rows, forward: both statistics are made of what is read once, by its deviations from a first
// estimate of the mean.
#include "primitives/norm/layer_norm.h"

namespace dlb::norm {
namespace {

double estimate(const LayerNormProblem& p, const cl::Device& device) {
  return streaming_microseconds(p, device) * (suggests_rows_once(p, device) ? 90 : 110) / 100;
}

}  // namespace

bool suggests_rows_once(const LayerNormProblem& p, const cl::Device& device) {
  return is_cpu(device) && p.length >= 256;
}

LayerNormLaunch layer_norm_rows_once_launch(const LayerNormProblem& p, const cl::Device& device,
                                            const Config& config) {
  return {"norm/layer_norm_rows_once.cl", "layer_norm_rows_once", team_of(p, device, config)};
}

const Solver<LayerNormProblem>* layer_norm_rows_once() {
  static const RowSolver<LayerNormProblem> solver({.name = "rows_once",
                                                   .applicable = always<LayerNormProblem>,
                                                   .estimate = estimate,
                                                   .configs = layer_norm_rows_configs,
                                                   .invoker = layer_norm_invoker<layer_norm_rows_once_launch>,
                                                   .config_names = ConfigNames::of<LayerNormConfig>()});
  return &solver;
}

}  // namespace dlb::norm
