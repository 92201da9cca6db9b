// Bluestein's algorithm (L. Bluestein, "A linear filtering approach to the computation of discrete Fourier
// transform", 1970): 2 j k = j^2 + k^2 - (k - j)^2 makes a transform of any length a convolution with a
// chirp, which transforms of a length without large prime factors compute. In one tile where they fit it,
// else in steps.
#include "primitives/fft/long.h"

namespace dlb::fft {
namespace {

int64_t padded_of(const FftProblem& p) {
  return padded_length(2 * form_of(p).points - 1);
}

bool in_a_tile(const FftProblem& p, const cl::Device& device) {
  return padded_of(p) <= most_in_tile(device, p.is_double()) &&
         form_of(p).capacity() <= most_in_tile(device, p.is_double());
}

TileTask tile_task(const FftProblem& p, const cl::Device& device) {
  TileTask task = task_of(p, form_of(p), device);
  task.n = padded_of(p), task.flags |= params::FFT_CHIRP;
  task.capacity = std::max(task.capacity, task.n);
  return task;
}

Applicability applicable(const FftProblem& p, const cl::Device& device) {
  if (const Applicability can = common_applicable(p, device); !can) return can;
  if (!in_a_tile(p, device) && split_points(padded_of(p), device, p.is_double()).empty())
    return Applicability::no("too long");
  return Applicability::yes();
}

double estimate(const FftProblem& p, const cl::Device& device) {
  if (!in_a_tile(p, device)) return LongTransform::estimate(p, padded_of(p), device);
  const double transforms = padded_transforms(tile_task(p, device), device, p.is_double());
  return streaming_microseconds(p, device) +
         passes_microseconds(p, 2.3 * transforms, static_cast<double>(padded_of(p)), device);
}

uint64_t workspace(const FftProblem& p, const cl::Device& device, const Config&) {
  return in_a_tile(p, device) ? TileLaunch::workspace(tile_task(p, device), device, p.is_double())
                              : LongTransform::workspace(p, padded_of(p), device);
}

std::unique_ptr<Invoker<FftProblem>> invoker(const FftProblem& p, cl::Device& device, const Config&) {
  if (in_a_tile(p, device)) return tile_invoker(p, tile_task(p, device), device);
  auto plan = std::make_shared<const LongTransform>(p, padded_of(p), device);
  return make_invoker<FftProblem>(
      [plan](Stream& stream, const MemoryOperands& o, MemRef work) { plan->run(stream, o, work); });
}

}  // namespace

const Solver<FftProblem>* bluestein() {
  static const RowSolver<FftProblem> solver({.name = "bluestein",
                                             .applicable = applicable,
                                             .estimate = estimate,
                                             .configs = one_config<FftProblem>,
                                             .invoker = invoker,
                                             .workspace = workspace});
  return &solver;
}

}  // namespace dlb::fft
