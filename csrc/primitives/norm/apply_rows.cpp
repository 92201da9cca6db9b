// Applying coefficients to contiguous runs: a work-item (GPU: a team) keeps a run's coefficients in
// registers.
#include "primitives/norm/apply.h"

namespace dlb::norm {
namespace {

// Work-items of a GPU that share a run; 0: by its length.
struct ApplyRowsConfig {
  int32_t lanes = 0;
  static constexpr const char* kNames[] = {"lanes"};
};

Applicability applicable(const NormApplyProblem& p, const cl::Device&) {
  return p.inner > 1 ? Applicability::yes() : Applicability::no("rows are interleaved");
}

// A GPU's pointwise kernels load four neighbours at once.
double estimate(const NormApplyProblem& p, const cl::Device& device) {
  return streaming_microseconds(p, device) * (is_cpu(device) ? 95 : 110) / 100;
}

std::vector<Config> configs(const NormApplyProblem&, const cl::Device& device) {
  if (is_cpu(device)) return {Config{}};
  return {Config{}, Config::of(ApplyRowsConfig{32}), Config::of(ApplyRowsConfig{256})};
}

}  // namespace

ApplyLaunch apply_rows_launch(const NormApplyProblem& p, const cl::Device& device, const Config& config) {
  Team team = make_team(device, p.outer * p.rows, p.inner);
  const int32_t lanes = config.as<ApplyRowsConfig>().lanes;
  if (!is_cpu(device) && lanes) team.lanes = static_cast<uint32_t>(lanes);
  return {"norm/apply_rows.cl", p.is_backward() ? "norm_apply_rows_backward" : "norm_apply_rows",
          apply_params(p), team};
}

const Solver<NormApplyProblem>* apply_rows() {
  static const RowSolver<NormApplyProblem> solver({.name = "rows",
                                                   .applicable = applicable,
                                                   .estimate = estimate,
                                                   .configs = configs,
                                                   .invoker = apply_invoker<apply_rows_launch>,
                                                   .config_names = ConfigNames::of<ApplyRowsConfig>()});
  return &solver;
}

}  // namespace dlb::norm
