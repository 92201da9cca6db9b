// The ordered list of solvers of Fourier transforms.
#include "primitives/fft/fft.h"

namespace dlb::fft {
namespace {

std::vector<const Solver<FftProblem>*> fft_solvers() {
  return {
      stockham(),   // short transforms without large prime factors: memory is read and written once
      four_step(),  // long ones, and a few of middling length: two launches or three
      bluestein(),  // any length, as a convolution of at least twice that length
      reference(),  // every problem; what the others are checked against
  };
}

}  // namespace

const OpOf<FftProblem> fft_op("fft", fft_solvers);

}  // namespace dlb::fft
