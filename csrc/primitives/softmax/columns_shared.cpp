// A strided dimension on GPUs with too few columns to fill the device: several work-items along the dimension
// share a column.
#include "primitives/softmax/softmax.h"

namespace dlb::softmax {
namespace {

// Work-items that share a column; 0: by the sizes.
struct ColumnsSharedConfig {
  int32_t lanes = 0;
  static constexpr const char* kNames[] = {"lanes"};
};

Applicability applicable(const SoftmaxProblem& p, const cl::Device& device) {
  if (is_cpu(device)) return Applicability::no("for GPU-class devices");
  return p.inner > 1 ? Applicability::yes() : Applicability::no("the dimension is contiguous");
}

std::vector<Config> configs(const SoftmaxProblem&, const cl::Device&) {
  return configs_of<ColumnsSharedConfig>({4, 16, 64, 256});
}

Launch launch_of(const SoftmaxProblem& p, const cl::Device&, const Config& config) {
  Team team{static_cast<uint32_t>(p.outer), 1, static_cast<uint32_t>(config.as<ColumnsSharedConfig>().lanes),
            0};
  if (team.lanes == 0)
    for (team.lanes = 8; team.lanes < 64 && kTeamGroup / team.lanes > p.inner;) team.lanes *= 2;
  const int64_t width = kTeamGroup / team.lanes;
  const auto groups = static_cast<size_t>(p.outer * ((p.inner + width - 1) / width));
  return {"softmax/columns_shared.cl",
          p.is_backward() ? "softmax_columns_shared_backward" : "softmax_columns_shared", team,
          cl::Range::linear(groups, kTeamGroup)};
}

}  // namespace

const Solver<SoftmaxProblem>* columns_shared() {
  static const RowSolver<SoftmaxProblem> solver({.name = "columns_shared",
                                                 .applicable = applicable,
                                                 .estimate = streaming_estimate<SoftmaxProblem, 150>,
                                                 .configs = configs,
                                                 .invoker = invoker<launch_of>,
                                                 .config_names = ConfigNames::of<ColumnsSharedConfig>()});
  return &solver;
}

}  // namespace dlb::softmax
