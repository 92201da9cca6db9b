// Backward on CPUs: a work-item takes a plane of the input's gradient, and adds to it in the order of the
// outputs.
#include "primitives/pool/pool.h"

namespace dlb::pool {
namespace {

// Whether samples, channels and spatial axes lie behind each other without gaps.
bool is_dense(const View5& view) {
  int64_t expected = 1;
  for (size_t i = 5; i-- > 0;) {
    if (view.size[i] != 1 && view.stride[i] != expected) return false;
    expected *= view.size[i];
  }
  return true;
}

}  // namespace

Applicability planes_applicable(const PoolProblem& p, const cl::Device& device) {
  if (!is_cpu(device)) return Applicability::no("for CPU-class devices");
  if (!is_dense(input_view(p)) || !is_dense(output_view(p)))
    return Applicability::no("planes are not contiguous");
  if (c10::elementSize(p.dtype) < 4) return Applicability::no("sums would be rounded to the result's type");
  return Applicability::yes();
}

Launch planes_launch(const PoolProblem& p, const cl::Device& device, const Config&) {
  Launch launch{"pool/planes.cl", p.is_max() ? "max_pool_planes" : "avg_pool_planes", params_of(p)};
  const int64_t planes = p.samples * p.channels;
  launch.team = make_team(device, planes, p.input_elements() / planes, 1);
  return launch;
}

const Solver<PoolProblem>* planes() {
  static const RowSolver<PoolProblem> solver({.name = "planes",
                                              .applicable = planes_applicable,
                                              .estimate = streaming_estimate<PoolProblem, 100>,
                                              .configs = one_config<PoolProblem>,
                                              .invoker = invoker<planes_launch>});
  return &solver;
}

}  // namespace dlb::pool
