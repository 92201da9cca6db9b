// Rows of a contiguous dimension, each by a team of work-items that reads it three times (backward: twice).
#include "primitives/softmax/softmax.h"

namespace dlb::softmax {
namespace {

// CPU: work-items of a compute unit. GPU: work-items that share a row. 0: by the sizes.
struct RowsConfig {
  int32_t items = 0;
  static constexpr const char* kNames[] = {"items"};
};

std::vector<Config> configs(const SoftmaxProblem&, const cl::Device& device) {
  return is_cpu(device) ? configs_of<RowsConfig>({1, 16}) : configs_of<RowsConfig>({16, 32, 64, 128, 256});
}

}  // namespace

Applicability rows_applicable(const SoftmaxProblem& p, const cl::Device&) {
  return p.inner == 1 ? Applicability::yes() : Applicability::no("the dimension is not contiguous");
}

Launch rows_launch(const SoftmaxProblem& p, const cl::Device& device, const Config& config) {
  const Team team = team_of(device, p.outer, p.dim, config.as<RowsConfig>().items, kTeamGroup);
  return {"softmax/rows.cl", p.is_backward() ? "softmax_rows_backward" : "softmax_rows", team,
          range_of(device, team)};
}

const Solver<SoftmaxProblem>* rows() {
  static const RowSolver<SoftmaxProblem> solver({.name = "rows",
                                                 .applicable = rows_applicable,
                                                 .estimate = streaming_estimate<SoftmaxProblem, 100>,
                                                 .configs = configs,
                                                 .invoker = invoker<rows_launch>,
                                                 .config_names = ConfigNames::of<RowsConfig>()});
  return &solver;
}

}  // namespace dlb::softmax
