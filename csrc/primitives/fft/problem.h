// Fourier transforms along one dimension of a batch: complex, of real numbers, and to real numbers.
#pragma once
#include "primitives/common/memory_problem.h"

namespace dlb::fft {

// The numbers that a transform takes and gives.
enum Kind : int64_t {
  kComplex,   // n complex numbers to n
  kFromReal,  // n real numbers to their spectrum's first n / 2 + 1, or to all n
  kToReal     // n / 2 + 1 numbers of a spectrum to n real ones, backward; those beyond are not looked at
};

constexpr int64_t kMostBatchDims = 4;

// out[k] = scale * sum over j of in[j] * exp(-+2 pi i j k / n): minus forward, plus backward. Operands: in0,
// out0, which may be the same memory where kind is kComplex and all strides are the same; scalar: the scale.
// dtype is that of the complex side. Strides in elements of each side's own dtype, none negative.
struct FftProblem : solver::MemoryProblemOf<FftProblem> {
  int64_t n = 1;
  int64_t kind = kComplex;
  int64_t inverse = 0;       // 1: backward; kToReal always is, kFromReal never
  int64_t outputs = 1;       // results of each transform
  int64_t first_output = 0;  // of a check window, which the reference alone computes
  int64_t in_step = 1, out_step = 1;
  // The batch; unused dimensions have size 1 and strides 0.
  int64_t batch[kMostBatchDims] = {1, 1, 1, 1};
  int64_t in_batch[kMostBatchDims] = {}, out_batch[kMostBatchDims] = {};

  template <class Self, class Visit>
  static void visit_sizes(Self& p, Visit&& v) {
    v("n", p.n), v("kind", p.kind), v("inverse", p.inverse), v("outputs", p.outputs);
    v("first", p.first_output), v("sx", p.in_step), v("sy", p.out_step), v("batch", p.batch);
    v("bx", p.in_batch), v("by", p.out_batch);
  }
  int64_t transforms() const { return batch[0] * batch[1] * batch[2] * batch[3]; }
  int64_t inputs() const { return kind == kToReal ? n / 2 + 1 : n; }
  bool is_double() const { return dtype == c10::ScalarType::ComplexDouble; }
  // Sets extents and dtypes of the operands from the rest.
  void finish();

  // The first and the last transform, some results at both ends.
  std::vector<solver::CheckWindow<FftProblem>> check_windows() const;
  // Lengths count as they are: another length may need another solver.
  uint64_t size_bucket() const;
};

extern const solver::OpOf<FftProblem> fft_op;

// Solves the problem on the stream: as solver::run() where choosing pays, else by the first choice.
void run(const FftProblem& problem, const solver::MemoryOperands& operands, Stream& stream);

}  // namespace dlb::fft
