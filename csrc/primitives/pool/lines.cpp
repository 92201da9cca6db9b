// Forward: a work-item takes neighbours of a line of the result, along the width or along the channels,
// whichever are innermost.
#include "primitives/pool/pool.h"

namespace dlb::pool {
namespace {

// Adaptive windows of neighbours along the width have sizes of their own.
bool takes_widths(const PoolProblem& p) {
  return p.axes[2].kernel > 0;
}

std::vector<Config> configs(const PoolProblem& p, const cl::Device& device) {
  return block_configs(lines_launch(p, device, {}), device, takes_widths(p));
}

}  // namespace

Launch lines_launch(const PoolProblem& p, const cl::Device& device, const Config& config) {
  Launch launch{"pool/lines.cl", p.is_max() ? "max_pool_lines" : "avg_pool_lines", params_of(p)};
  set_team(launch, p, device, config, output_view(p), takes_widths(p), p.window_size());
  return launch;
}

const Solver<PoolProblem>* lines() {
  static const RowSolver<PoolProblem> solver({.name = "lines",
                                              .applicable = always<PoolProblem>,
                                              .estimate = streaming_estimate<PoolProblem, 100>,
                                              .configs = configs,
                                              .invoker = invoker<lines_launch>,
                                              .config_names = ConfigNames::of<BlockConfig>()});
  return &solver;
}

}  // namespace dlb::pool
