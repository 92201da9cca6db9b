// Code that the solvers of Fourier transforms share: their list, and how a problem's sides look to the
// kernels.
#pragma once
#include "kernels/fft/params.h"
#include "primitives/common/estimates.h"
#include "primitives/fft/problem.h"
#include "runtime/stream.h"
#include "solver/solver_row.h"

namespace dlb::fft {

using namespace solver;

const Solver<FftProblem>* stockham();
const Solver<FftProblem>* four_step();
const Solver<FftProblem>* bluestein();
const Solver<FftProblem>* reference();

// A problem as a complex transform with something before and after. Even numbers of real values are half as
// many complex ones.
struct Form {
  int64_t points = 1;           // of the complex transform
  params::FftView in{}, out{};  // without offsets and lanes
  int64_t in_count = 1, out_count = 1;
  int32_t flags = 0;  // FFT_SWAP_IN to FFT_MIRROR
  // The longest that a transform becomes on the way.
  int64_t capacity() const;
};
Form form_of(const FftProblem& p);

// The smallest number of at least n that has no prime factor above 5, to pad convolutions to.
int64_t padded_length(int64_t n);

// Build options of the kernels. A program has the radices 2, 3, 4, 5 and 8, and as told 7, or 11 and 13: they
// take long to compile.
const char* options_of(const cl::Device& device, bool is_double, bool seven = false,
                       bool large_radices = false);

// Microseconds of transforms of `points` numbers each on arithmetic alone, all lanes counted.
double passes_microseconds(const FftProblem& p, double transforms, double points, const cl::Device& device);

// Why no fast solver computes the problem, or yes.
Applicability common_applicable(const FftProblem& p, const cl::Device& device);

// The place of the first real number of an operand, whose offset counts elements of its dtype.
inline Buffer real_place(const Buffer& buffer, c10::ScalarType type) {
  return {buffer.mem, c10::isComplexType(type) ? 2 * buffer.offset : buffer.offset};
}

}  // namespace dlb::fft
