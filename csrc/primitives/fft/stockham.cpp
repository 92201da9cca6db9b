// Transforms that fit a tile in one launch: local memory of a GPU's work-group, a buffer in a CPU's cache.
#include "primitives/fft/tiles.h"

namespace dlb::fft {
namespace {

Applicability applicable(const FftProblem& p, const cl::Device& device) {
  if (const Applicability can = common_applicable(p, device); !can) return can;
  const Form form = form_of(p);
  if (form.points > 1 && radices_of(form.points) == 0) return Applicability::no("a prime factor above 13");
  if (!fits_tile(task_of(p, form, device), device, p.is_double())) return Applicability::no("too long for a tile");
  return Applicability::yes();
}

double estimate(const FftProblem& p, const cl::Device& device) {
  constexpr double kCached = 4096,
                   kBeyond = 1.5;  // numbers, and times the time where a tile leaves the caches
  const Form form = form_of(p);
  const double transforms = padded_transforms(task_of(p, form, device), device, p.is_double());
  const double excess = form.points > kCached ? kBeyond : 1;
  return streaming_microseconds(p, device) +
         excess * passes_microseconds(p, transforms, static_cast<double>(form.points), device);
}

uint64_t workspace(const FftProblem& p, const cl::Device& device, const Config&) {
  return TileLaunch::workspace(task_of(p, form_of(p), device), device, p.is_double());
}

std::unique_ptr<Invoker<FftProblem>> invoker(const FftProblem& p, cl::Device& device, const Config&) {
  return tile_invoker(p, task_of(p, form_of(p), device), device);
}

}  // namespace

const Solver<FftProblem>* stockham() {
  static const RowSolver<FftProblem> solver({.name = "stockham",
                                             .applicable = applicable,
                                             .estimate = estimate,
                                             .configs = one_config<FftProblem>,
                                             .invoker = invoker,
                                             .workspace = workspace});
  return &solver;
}

}  // namespace dlb::fft
