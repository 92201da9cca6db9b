// The ordered lists of normalisations' solvers.
#include "primitives/norm/apply.h"
#include "primitives/norm/layer_norm.h"
#include "primitives/norm/pass.h"

namespace dlb::norm {
namespace {

std::vector<const Solver<NormPassProblem>*> pass_solvers() {
  return {
      pass_rows(),       // contiguous runs
      pass_rows_wide(),  // GPU-class devices, runs of fours: fewer and wider loads
      pass_columns(),    // interleaved rows
      pass_reference(),  // every problem; what the others are checked against
  };
}

std::vector<const Solver<NormApplyProblem>*> apply_solvers() {
  return {
      apply_rows(),       // contiguous runs: a run's coefficients are read once
      apply_columns(),    // CPU-class devices, interleaved rows
      apply_pointwise(),  // every problem; what the others are checked against
  };
}

std::vector<const Solver<LayerNormProblem>*> layer_norm_solvers() {
  return {
      layer_norm_rows_held(),  // GPU-class devices, rows that registers hold: memory is read once
      layer_norm_rows(),       // rows of any length
      layer_norm_rows_once(),  // one pass less, and statistics that round a little more
      layer_norm_reference(),  // every problem; what the others are checked against
  };
}

std::vector<const Solver<LayerNormProblem>*> layer_norm_backward_solvers() {
  return {
      layer_norm_rows_held(),  // GPU-class devices, rows that registers hold: memory is read once
      layer_norm_rows(),       // rows of any length
      layer_norm_reference(),  // every problem; what the others are checked against
  };
}

}  // namespace

const OpOf<NormPassProblem> norm_stats_op("norm_stats", pass_solvers);
const OpOf<NormPassProblem> norm_sums_op("norm_sums", pass_solvers);
const OpOf<NormApplyProblem> norm_apply_op("norm_apply", apply_solvers);
const OpOf<NormApplyProblem> norm_apply_bwd_op("norm_apply_bwd", apply_solvers);
const OpOf<LayerNormProblem> layer_norm_op("layer_norm", layer_norm_solvers);
const OpOf<LayerNormProblem> layer_norm_bwd_op("layer_norm_bwd", layer_norm_backward_solvers);

}  // namespace dlb::norm
