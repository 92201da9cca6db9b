// Long transforms as shorter ones along the dimensions of a matrix.
#include "primitives/fft/long.h"

namespace dlb::fft {
namespace {

Applicability applicable(const FftProblem& p, const cl::Device& device) {
  if (const Applicability can = common_applicable(p, device); !can) return can;
  constexpr int64_t kLeast = 64;
  const int64_t points = form_of(p).points;
  if (points < kLeast) return Applicability::no("too short to split");
  if (radices_of(points) == 0) return Applicability::no("a prime factor above 13");
  if (split_points(points, device, p.is_double()).empty())
    return Applicability::no("no factors that fit tiles");
  return Applicability::yes();
}

double estimate(const FftProblem& p, const cl::Device& device) {
  return LongTransform::estimate(p, 0, device);
}

uint64_t workspace(const FftProblem& p, const cl::Device& device, const Config&) {
  return LongTransform::workspace(p, 0, device);
}

std::unique_ptr<Invoker<FftProblem>> invoker(const FftProblem& p, cl::Device& device, const Config&) {
  auto plan = std::make_shared<const LongTransform>(p, 0, device);
  return make_invoker<FftProblem>(
      [plan](Stream& stream, const MemoryOperands& o, MemRef work) { plan->run(stream, o, work); });
}

}  // namespace

const Solver<FftProblem>* four_step() {
  static const RowSolver<FftProblem> solver({.name = "four_step",
                                             .applicable = applicable,
                                             .estimate = estimate,
                                             .configs = one_config<FftProblem>,
                                             .invoker = invoker,
                                             .workspace = workspace});
  return &solver;
}

}  // namespace dlb::fft
