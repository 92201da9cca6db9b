// Rows of a contiguous dimension on GPUs, whose work-items hold their part of a row in registers: memory is
// read once.
#include "kernels/softmax/params.h"
#include "primitives/softmax/softmax.h"

namespace dlb::softmax {
namespace {

constexpr int64_t kHeld = params::SOFTMAX_HELD;

// Work-items that share a row; 0: by the sizes.
struct RowsHeldConfig {
  int32_t lanes = 0;
  static constexpr const char* kNames[] = {"lanes"};
};

std::vector<Config> configs(const SoftmaxProblem& p, const cl::Device&) {
  std::vector<Config> list(1);
  for (int32_t lanes = 16; lanes <= static_cast<int32_t>(kTeamGroup); lanes *= 2)
    if (lanes * kHeld >= p.dim && lanes / 4 < p.dim) list.push_back(Config::of(RowsHeldConfig{lanes}));
  return list;
}

}  // namespace

Applicability rows_held_applicable(const SoftmaxProblem& p, const cl::Device& device) {
  if (is_cpu(device)) return Applicability::no("for GPU-class devices");
  if (p.dim > kHeld * kTeamGroup) return Applicability::no("rows do not fit in registers");
  return rows_applicable(p, device);
}

Launch rows_held_launch(const SoftmaxProblem& p, const cl::Device& device, const Config& config) {
  Team team{static_cast<uint32_t>(p.outer), 1, static_cast<uint32_t>(config.as<RowsHeldConfig>().lanes), 0};
  if (team.lanes == 0)
    for (team.lanes = 1; team.lanes * kHeld < p.dim || (team.lanes < 32 && team.lanes * 4 < p.dim);)
      team.lanes *= 2;
  return {"softmax/rows_held.cl", "softmax_rows_held", team, range_of(device, team)};
}

const Solver<SoftmaxProblem>* rows_held() {
  static const RowSolver<SoftmaxProblem> solver({.name = "rows_held",
                                                 .applicable = rows_held_applicable,
                                                 .estimate = streaming_estimate<SoftmaxProblem, 80>,
                                                 .configs = configs,
                                                 .invoker = invoker<rows_held_launch>,
                                                 .config_names = ConfigNames::of<RowsHeldConfig>()});
  return &solver;
}

}  // namespace dlb::softmax
