#include "primitives/fft/problem.h"

#include <algorithm>

namespace dlb::fft {
namespace {

// From the first to the last element of a side.
int64_t extent_of(const FftProblem& p, int64_t count, int64_t step, const int64_t* batch) {
  int64_t last = (count - 1) * step;
  for (int64_t d = 0; d < kMostBatchDims; d++) last += (p.batch[d] - 1) * batch[d];
  return last + 1;
}

}  // namespace

void FftProblem::finish() {
  const auto real = is_double() ? c10::ScalarType::Double : c10::ScalarType::Float;
  types[0] = kind == kFromReal ? real : dtype;
  result_type() = kind == kToReal ? real : dtype;
  extents[0] = extent_of(*this, inputs(), in_step, in_batch);
  result_extent() = extent_of(*this, outputs, out_step, out_batch);
}

std::vector<solver::CheckWindow<FftProblem>> FftProblem::check_windows() const {
  constexpr int64_t kMostProducts = 16 << 20, kMostResults = 64;
  std::vector<solver::CheckWindow<FftProblem>> list;
  for (const bool last : {false, true}) {
    solver::CheckWindow<FftProblem> window{*this};
    FftProblem& p = window.problem;
    p.outputs = std::min(outputs, std::clamp<int64_t>(kMostProducts / n, 1, kMostResults));
    p.first_output = last ? outputs - p.outputs : 0;
    for (int64_t d = 0; d < kMostBatchDims; d++) {
      p.batch[d] = 1;
      if (!last) continue;
      window.shift.in0.offset += (batch[d] - 1) * in_batch[d];
      window.shift.out0.offset += (batch[d] - 1) * out_batch[d];
    }
    window.shift.out0.offset += p.first_output * out_step;
    p.finish();
    list.push_back(window);
  }
  return list;
}

uint64_t FftProblem::size_bucket() const {
  FftProblem p = *this;
  for (int64_t d = 0; d < kMostBatchDims; d++) {
    p.batch[d] = solver::coarse(batch[d]);
    p.in_batch[d] = solver::coarse_stride(in_batch[d]), p.out_batch[d] = solver::coarse_stride(out_batch[d]);
  }
  p.in_step = solver::coarse_stride(in_step), p.out_step = solver::coarse_stride(out_step);
  p.coarsen_extents();
  return solver::hash_of(p);
}

}  // namespace dlb::fft
