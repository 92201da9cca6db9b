// Rows of a contiguous dimension, read twice: exponentials are stored before their sum is known, and scaled
// then. Only for results that hold them exactly enough.
#include "primitives/softmax/softmax.h"
#include "runtime/tensor.h"

namespace dlb::softmax {
namespace {

// CPU: work-items of a compute unit. GPU: work-items that share a row. 0: by the sizes.
struct RowsOnceConfig {
  int32_t items = 0;
  static constexpr const char* kNames[] = {"items"};
};

Applicability applicable(const SoftmaxProblem& p, const cl::Device& device) {
  if (p.log) return Applicability::no("not for log_softmax");
  if (dtype_of(p.result_type(), "softmax") != compute_of(p))
    return Applicability::no("the result is less precise than what is computed in");
  return rows_applicable(p, device);
}

std::vector<Config> configs(const SoftmaxProblem&, const cl::Device& device) {
  return is_cpu(device) ? configs_of<RowsOnceConfig>({1, 16})
                        : configs_of<RowsOnceConfig>({16, 32, 64, 128, 256});
}

// A CPU's core computes more slowly than it reads its caches back, so that fewer exponentials win there.
double estimate(const SoftmaxProblem& p, const cl::Device& device) {
  return streaming_microseconds(p, device) * (is_cpu(device) ? 0.9 : 1.1);
}

Launch launch_of(const SoftmaxProblem& p, const cl::Device& device, const Config& config) {
  const Team team = team_of(device, p.outer, p.dim, config.as<RowsOnceConfig>().items, kTeamGroup);
  return {"softmax/rows_once.cl", "softmax_rows_once", team, range_of(device, team)};
}

}  // namespace

const Solver<SoftmaxProblem>* rows_once() {
  static const RowSolver<SoftmaxProblem> solver({.name = "rows_once",
                                                 .applicable = applicable,
                                                 .estimate = estimate,
                                                 .configs = configs,
                                                 .invoker = invoker<launch_of>,
                                                 .config_names = ConfigNames::of<RowsOnceConfig>()});
  return &solver;
}

}  // namespace dlb::softmax
