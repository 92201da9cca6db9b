// Backward where windows do not overlap: every output writes all inputs of its window, so that nothing is
// read twice.
#include "primitives/pool/pool.h"

namespace dlb::pool {
namespace {

// A GPU's gathering reads each gradient once for each input of its window.
double estimate(const PoolProblem& p, const cl::Device& device) {
  return (is_cpu(device) ? 1.1 : 0.3) * streaming_microseconds(p, device);
}

}  // namespace

Applicability windows_applicable(const PoolProblem& p, const cl::Device&) {
  for (const PoolAxis& axis : p.axes) {
    if (axis.kernel == 0 && axis.in % axis.out != 0) return Applicability::no("windows of different sizes");
    if (axis.kernel > 1 && axis.dilation > 1) return Applicability::no("windows have gaps");
    if (axis.kernel > axis.stride) return Applicability::no("windows overlap");
  }
  return Applicability::yes();
}

Launch windows_launch(const PoolProblem& p, const cl::Device& device, const Config&) {
  Launch launch{"pool/windows.cl", p.is_max() ? "max_pool_windows" : "avg_pool_windows", params_of(p)};
  launch.team = walk_lines(launch.params.lines, device, output_view(p), is_cpu(device), p.window_size(),
                           is_cpu(device) ? kLineBlock : 1);
  return launch;
}

const Solver<PoolProblem>* windows() {
  static const RowSolver<PoolProblem> solver({.name = "windows",
                                              .applicable = windows_applicable,
                                              .estimate = estimate,
                                              .configs = one_config<PoolProblem>,
                                              .invoker = invoker<windows_launch>});
  return &solver;
}

}  // namespace dlb::pool
