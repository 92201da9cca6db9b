// Backward: every input's gradient is the sum over the outputs whose windows hold it.
#include "primitives/pool/pool.h"

namespace dlb::pool {
namespace {

// Neighbours along the width go through all windows that hold any of them, which are few for the short blocks
// of GPUs.
bool takes_widths(const cl::Device& device) {
  return !is_cpu(device);
}

std::vector<Config> configs(const PoolProblem& p, const cl::Device& device) {
  return block_configs(gather_launch(p, device, {}), device, takes_widths(device));
}

}  // namespace

Launch gather_launch(const PoolProblem& p, const cl::Device& device, const Config& config) {
  constexpr int64_t kWindows = 4;  // that hold an input, about
  Launch launch{"pool/gather.cl", p.is_max() ? "max_pool_gather" : "avg_pool_gather", params_of(p)};
  set_team(launch, p, device, config, input_view(p), takes_widths(device), kWindows);
  return launch;
}

const Solver<PoolProblem>* gather() {
  static const RowSolver<PoolProblem> solver({.name = "gather",
                                              .applicable = always<PoolProblem>,
                                              .estimate = streaming_estimate<PoolProblem, 120>,
                                              .configs = configs,
                                              .invoker = invoker<gather_launch>,
                                              .revision = 2,
                                              .config_names = ConfigNames::of<BlockConfig>()});
  return &solver;
}

}  // namespace dlb::pool
