// Passes over interleaved rows: a work-item (GPU: a work-group) takes a part of a block of neighbouring
// columns.
#include "primitives/norm/pass.h"

namespace dlb::norm {
namespace {

// Parts per compute unit, and columns taken together; 0: by the sizes.
struct PassColumnsConfig {
  int32_t parts = 0, block = 0;
  static constexpr const char* kNames[] = {"parts", "block"};
};

// CPU: long pieces of memory where enough of them are left for all compute units.
int32_t usual_block(const NormPassProblem& p, const cl::Device& device) {
  constexpr int32_t kMost = params::NORM_MOST_COLUMNS;
  if (!is_cpu(device)) return 32;
  return p.rows >= kMost && p.count >= 2048 ? kMost : 64;
}

Applicability applicable(const NormPassProblem& p, const cl::Device&) {
  return p.columns ? Applicability::yes() : Applicability::no("rows are not interleaved");
}

std::vector<Config> configs(const NormPassProblem& p, const cl::Device& device) {
  const auto config = [](int32_t parts, int32_t block) {
    return Config::of(PassColumnsConfig{parts, block});
  };
  if (!is_cpu(device)) return {Config{}, config(2, 0), config(16, 0), config(0, 8), config(0, 128)};
  std::vector<Config> list{Config{}, config(0, 16)};
  if (p.rows > 64) list.push_back(config(0, usual_block(p, device) == 64 ? params::NORM_MOST_COLUMNS : 64));
  return list;
}

}  // namespace

PassLaunch pass_columns_launch(const NormPassProblem& p, const cl::Device& device, const Config& config) {
  PassLaunch launch("norm/pass_columns.cl", p.is_sums() ? "norm_sums_columns" : "norm_stats_columns", p);
  params::NormPass& params = launch.params;
  const auto named = config.as<PassColumnsConfig>();
  params.block = static_cast<uint32_t>(named.block ? named.block : usual_block(p, device));
  const int64_t units = (params.rows + params.block - 1) / params.block;
  const int64_t width = std::min(params.block, params.rows);
  split(launch, device, units, width, named.parts, 1);
  if (is_cpu(device)) {
    launch.team = make_team(device, units * launch.splits, params.per_split * width);
    launch.range = range_of(device, launch.team);
  } else {
    launch.range = cl::Range::linear(static_cast<size_t>(units * launch.splits), kTeamGroup);
  }
  return launch;
}

const Solver<NormPassProblem>* pass_columns() {
  static const RowSolver<NormPassProblem> solver({.name = "columns",
                                                  .applicable = applicable,
                                                  .estimate = streaming_estimate<NormPassProblem, 100>,
                                                  .configs = configs,
                                                  .invoker = pass_invoker<pass_columns_launch>,
                                                  .workspace = pass_workspace<pass_columns_launch>,
                                                  .config_names = ConfigNames::of<PassColumnsConfig>()});
  return &solver;
}

}  // namespace dlb::norm
