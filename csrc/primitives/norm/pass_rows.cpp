// Passes over rows of contiguous runs, whose work-items (GPU: teams) take a part of a row each.
#include "primitives/norm/pass.h"

namespace dlb::norm {
namespace {

// Four elements at a time are faster where that is possible.
double estimate(const NormPassProblem& p, const cl::Device& device) {
  return streaming_microseconds(p, device) * (pass_rows_wide_applicable(p, device) ? 1.3 : 1.0);
}

bool has_long_runs(const NormPassProblem& p) {
  const int64_t runs = p.count / p.length;
  return runs > 1 && runs <= 4096 && p.length >= 1024;
}

}  // namespace

Applicability pass_rows_applicable(const NormPassProblem& p, const cl::Device&) {
  return p.columns ? Applicability::no("elements of a row are not neighbours") : Applicability::yes();
}

std::vector<Config> pass_rows_configs(const NormPassProblem& p, const cl::Device& device) {
  const auto config = [](int32_t parts, int32_t lanes) { return Config::of(PassRowsConfig{parts, lanes}); };
  if (!is_cpu(device)) return {Config{}, config(2, 0), config(16, 0), config(0, 64)};
  std::vector<Config> list{Config{}, config(1, 0)};
  if (has_long_runs(p)) list.push_back(config(kPerRun, 0));
  return list;
}

void divide_rows(PassLaunch& launch, const cl::Device& device, const Config& config, uint32_t multiple) {
  const auto named = config.as<PassRowsConfig>();
  split(launch, device, launch.params.rows, 1, named.parts, multiple);
  launch.team = make_team(device, int64_t{launch.splits} * launch.params.rows, launch.params.per_split);
  if (!is_cpu(device) && named.lanes) launch.team.lanes = static_cast<uint32_t>(named.lanes);
  launch.range = range_of(device, launch.team);
}

PassLaunch pass_rows_launch(const NormPassProblem& p, const cl::Device& device, const Config& config) {
  PassLaunch launch("norm/pass_rows.cl", p.is_sums() ? "norm_sums_rows" : "norm_stats_rows", p);
  divide_rows(launch, device, config, 1);
  return launch;
}

const Solver<NormPassProblem>* pass_rows() {
  static const RowSolver<NormPassProblem> solver({.name = "rows",
                                                  .applicable = pass_rows_applicable,
                                                  .estimate = estimate,
                                                  .configs = pass_rows_configs,
                                                  .invoker = pass_invoker<pass_rows_launch>,
                                                  .workspace = pass_workspace<pass_rows_launch>,
                                                  .config_names = ConfigNames::of<PassRowsConfig>()});
  return &solver;
}

}  // namespace dlb::norm
