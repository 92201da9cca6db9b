#include "primitives/fft/fft.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <string>

#include "cl/recording.h"
#include "primitives/fft/tiles.h"
#include "solver/execute.h"
#include "solver/invoker_cache.h"

namespace dlb::fft {
namespace {

void set_view(params::FftView& view, int64_t step, int64_t im, const int64_t* batch, int64_t reals) {
  view.step = step, view.im = im;
  for (int64_t d = 0; d < kMostBatchDims; d++) view.batch[d] = batch[d] * reals;
}

// The choice for small problems: the first solver that can solve them.
SolutionPtr first_choice(const FftProblem& p, cl::Device& device) {
  static auto* known = new InvokerCache<Solution>;
  if (cl::Recording::current() == nullptr)
    if (const SolutionPtr solution = known->find(p)) return solution;
  for (const AnySolver* solver : p.op->solvers()) {
    if (!solver->can_solve(p, device)) continue;
    SolutionPtr solution = make_solution(p, device, *solver, solver->first_config_for(p, device));
    if (cl::Recording::current() == nullptr) known->insert(p, solution);
    return solution;
  }
  return nullptr;
}

}  // namespace

int64_t Form::capacity() const {
  return std::max({in_count, out_count, points + ((flags & params::FFT_UNPACK) != 0)});
}

Form form_of(const FftProblem& p) {
  Form f;
  const bool even = p.n % 2 == 0, from_real = p.kind == kFromReal, to_real = p.kind == kToReal;
  const bool halved = even && (from_real || to_real);
  f.points = halved ? p.n / 2 : p.n;
  f.in_count = to_real ? p.inputs() : f.points;
  f.out_count = to_real ? f.points : p.outputs;
  if (from_real)
    set_view(f.in, halved ? 2 * p.in_step : p.in_step, halved ? p.in_step : 0, p.in_batch, 1);
  else
    set_view(f.in, 2 * p.in_step, 1, p.in_batch, 2);
  if (to_real)
    set_view(f.out, halved ? 2 * p.out_step : p.out_step, halved ? p.out_step : 0, p.out_batch, 1);
  else
    set_view(f.out, 2 * p.out_step, 1, p.out_batch, 2);
  if (to_real) f.flags = (even ? params::FFT_PACK : params::FFT_HERMITIAN) | params::FFT_SWAP_OUT;
  if (from_real && even) f.flags = params::FFT_UNPACK;
  if (from_real && even && p.outputs == p.n && p.n > 2) f.flags |= params::FFT_MIRROR;
  if (p.kind == kComplex && p.inverse) f.flags = params::FFT_SWAP_IN | params::FFT_SWAP_OUT;
  return f;
}

int64_t padded_length(int64_t n) {
  int64_t best = 1;
  while (best < n) best *= 2;
  for (const int64_t odd : {3, 5, 9, 15, 25, 27, 45, 75, 81, 125}) {
    int64_t candidate = odd;
    while (candidate < n) candidate *= 2;
    best = std::min(best, candidate);
  }
  return best;
}

const char* options_of(const cl::Device& device, bool is_double, bool seven, bool large_radices) {
  constexpr size_t kWidths = 5, kForms = 8;  // of CPUs, by their logarithms
  static const auto* texts = [] {
    auto* list = new std::array<std::string, (kWidths + 1) * kForms>;
    for (size_t i = 0; i < list->size(); i++) {
      const size_t width = i / kForms;  // the last: GPUs
      std::string text = width == kWidths ? "-DDLB_GPU" : "-DDLB_CPU -DWIDTH=" + std::to_string(1 << width);
      if (i & 1) text += " -DFFT_DOUBLE";
      if (i & 2) text += " -DFFT_SEVEN";
      if (i & 4) text += " -DFFT_LARGE_RADICES";
      (*list)[i] = text;
    }
    return list;
  }();
  const auto lanes = static_cast<unsigned>(tile_width(device, is_double));
  const size_t width = is_cpu(device) ? std::bit_width(lanes) - 1 : kWidths;
  return (*texts)[width * kForms + (large_radices ? 4 : 0) + (seven ? 2 : 0) + (is_double ? 1 : 0)].c_str();
}

double passes_microseconds(const FftProblem& p, double transforms, double points, const cl::Device& device) {
  constexpr double kReached = 0.15;  // of the rate of multiply-adds
  const double operations = 5 * transforms * points * std::max(1.0, std::log2(points));
  return operations / (kReached * rates_of(device).plain(p.is_double() ? c10::kDouble : c10::kFloat));
}

Applicability common_applicable(const FftProblem& p, const cl::Device& device) {
  if (p.first_output != 0 || (p.outputs != p.n && (p.kind != kFromReal || p.outputs != p.n / 2 + 1)))
    return Applicability::no("a part of the results");
  if (p.is_double() && !device.fp64) return Applicability::no("the device has no double precision");
  if (p.n > (int64_t{1} << 29) || p.transforms() > INT32_MAX)
    return Applicability::no("more than 2^29 points");
  return Applicability::yes();
}

void run(const FftProblem& p, const MemoryOperands& operands, Stream& stream) {
  if (is_worth_choosing(*p.op, p.n * p.transforms())) return solver::run(p, operands, stream);
  const SolutionPtr solution = first_choice(p, stream.device());
  if (!solution || solution->workspace == 0) {
    if (!solution) return solver::run(p, operands, stream);
    return solution->invoker->run_any(stream, operands, MemRef{});
  }
  const c10::DataPtr workspace =
      allocate_bytes(solution->workspace, static_cast<c10::DeviceIndex>(stream.device().index));
  solution->invoker->run_any(stream, operands, resolve(workspace, workspace.get()));
}

}  // namespace dlb::fft
