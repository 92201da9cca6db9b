// The plainest layer norm, which the others are checked against: a work-item for each row.
#include "primitives/norm/layer_norm.h"

namespace dlb::norm {
namespace {

LayerNormLaunch launch_of(const LayerNormProblem& p, const cl::Device& device, const Config&) {
  return {"norm/layer_norm_reference.cl",
          p.is_backward() ? "layer_norm_reference_backward" : "layer_norm_reference",
          make_team(device, p.rows, p.length, 1)};
}

}  // namespace

const Solver<LayerNormProblem>* layer_norm_reference() {
  static const RowSolver<LayerNormProblem> solver({.name = "reference",
                                                   .applicable = always<LayerNormProblem>,
                                                   .estimate = streaming_estimate<LayerNormProblem, 5000>,
                                                   .configs = one_config<LayerNormProblem>,
                                                   .invoker = layer_norm_invoker<launch_of>});
  return &solver;
}

}  // namespace dlb::norm
