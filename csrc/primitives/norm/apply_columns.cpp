// Applying coefficients to interleaved rows: a CPU's work-item takes whole runs of all rows, a GPU's some
// elements of one row, whose coefficients it keeps in registers.
#include "primitives/norm/apply.h"

namespace dlb::norm {
namespace {

// Elements of a GPU's work-item; 0: the usual number.
struct ApplyColumnsConfig {
  int32_t elements = 0;
  static constexpr const char* kNames[] = {"elements"};
};
constexpr int32_t kUsualElements = 8;

Applicability applicable(const NormApplyProblem& p, const cl::Device&) {
  return p.inner == 1 ? Applicability::yes() : Applicability::no("rows are not interleaved");
}

std::vector<Config> configs(const NormApplyProblem&, const cl::Device& device) {
  if (is_cpu(device)) return {Config{}};
  return {Config{}, Config::of(ApplyColumnsConfig{32})};
}

ApplyLaunch launch_of(const NormApplyProblem& p, const cl::Device& device, const Config& config) {
  ApplyLaunch launch{"norm/apply_columns.cl",
                     p.is_backward() ? "norm_apply_columns_backward" : "norm_apply_columns",
                     apply_params(p),
                     {}};
  if (is_cpu(device)) {
    launch.team = make_team(device, p.outer, p.rows);
  } else {
    const int32_t elements = config.as<ApplyColumnsConfig>().elements;
    launch.params.per_item = static_cast<uint32_t>(elements ? elements : kUsualElements);
    const int64_t chunks = (p.outer + launch.params.per_item - 1) / launch.params.per_item;
    launch.team = make_team(device, chunks * p.rows, 1, 1);
  }
  return launch;
}

}  // namespace

const Solver<NormApplyProblem>* apply_columns() {
  static const RowSolver<NormApplyProblem> solver({.name = "columns",
                                                   .applicable = applicable,
                                                   .estimate = streaming_estimate<NormApplyProblem, 110>,
                                                   .configs = configs,
                                                   .invoker = apply_invoker<launch_of>,
                                                   .config_names = ConfigNames::of<ApplyColumnsConfig>()});
  return &solver;
}

}  // namespace dlb::norm
