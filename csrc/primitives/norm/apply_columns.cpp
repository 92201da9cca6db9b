// Applying coefficients to interleaved rows on CPUs, whose work-items take whole runs of all rows. Batch
// norms of GPUs have a kernel of their own (batch_norm_apply.cpp), and no other op has such rows.
#include "primitives/norm/apply.h"

namespace dlb::norm {
namespace {

Applicability applicable(const NormApplyProblem& p, const cl::Device& device) {
  if (!is_cpu(device)) return Applicability::no("for CPU-class devices");
  return p.inner == 1 ? Applicability::yes() : Applicability::no("rows are not interleaved");
}

ApplyLaunch launch_of(const NormApplyProblem& p, const cl::Device& device, const Config&) {
  return {"norm/apply_columns.cl", p.is_backward() ? "norm_apply_columns_backward" : "norm_apply_columns",
          apply_params(p), make_team(device, p.outer, p.rows)};
}

}  // namespace

const Solver<NormApplyProblem>* apply_columns() {
  static const RowSolver<NormApplyProblem> solver({.name = "columns",
                                                   .applicable = applicable,
                                                   .estimate = streaming_estimate<NormApplyProblem, 110>,
                                                   .configs = one_config<NormApplyProblem>,
                                                   .invoker = apply_invoker<launch_of>});
  return &solver;
}

}  // namespace dlb::norm
