// Layer norm of rows on GPUs, whose work-items hold their part of a row in registers: memory is read once.
#include "primitives/norm/layer_norm.h"

namespace dlb::norm {
namespace {

constexpr int64_t kHeld = params::NORM_HELD;

std::vector<Config> configs(const LayerNormProblem& p, const cl::Device&) {
  std::vector<Config> list(1);
  for (int32_t lanes = 32; lanes <= static_cast<int32_t>(kTeamGroup); lanes *= 2)
    if (lanes * kHeld >= p.length && lanes / 4 < p.length) list.push_back(Config::of(LayerNormConfig{lanes}));
  return list;
}

}  // namespace

Applicability layer_norm_rows_held_applicable(const LayerNormProblem& p, const cl::Device& device) {
  if (is_cpu(device)) return Applicability::no("for GPU-class devices");
  if (p.length > kHeld * kTeamGroup) return Applicability::no("rows do not fit in registers");
  return Applicability::yes();
}

LayerNormLaunch layer_norm_rows_held_launch(const LayerNormProblem& p, const cl::Device& device,
                                            const Config& config) {
  Team team = team_of(p, device, config);
  if (config.as<LayerNormConfig>().items == 0)
    for (team.lanes = 1; team.lanes * kHeld < p.length || (team.lanes < 32 && team.lanes * 4 < p.length);)
      team.lanes *= 2;
  return {"norm/layer_norm_rows_held.cl",
          p.is_backward() ? "layer_norm_rows_held_backward" : "layer_norm_rows_held", team};
}

const Solver<LayerNormProblem>* layer_norm_rows_held() {
  static const RowSolver<LayerNormProblem> solver({.name = "rows_held",
                                                   .applicable = layer_norm_rows_held_applicable,
                                                   .estimate = streaming_estimate<LayerNormProblem, 80>,
                                                   .configs = configs,
                                                   .invoker = layer_norm_invoker<layer_norm_rows_held_launch>,
                                                   .config_names = ConfigNames::of<LayerNormConfig>()});
  return &solver;
}

}  // namespace dlb::norm
