// Convolutions as gathers, which the CPU solvers and Winograd's share: see Gather in conv/params.h.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "cl/kernel.h"
#include "kernels/conv/params.h"
#include "primitives/conv/problem.h"

namespace dlb::solver {

using params::Gather;  // the solver fills in block and what follows it

struct Phase {
  Gather gather;
  int64_t weight_offset;  // elements, to the weight of tap 0
  int64_t output_offset;  // elements, to position 0
};

// The forward pass's gather; the weight gradient has the same one.
Phase forward_phase(const ConvProblem& problem);

// The gather of a call: the same, with the call's bounds.
inline Gather within(Gather gather, const Bounds& bounds) {
  set_bounds(gather, bounds);
  return gather;
}

// The phases of the input gradient, one for each residue of the input position modulo the stride; without the
// empty.
std::vector<Phase> input_grad_phases(const ConvProblem& problem);

// Phases of the problem's direction.
std::vector<Phase> phases_of(const ConvProblem& problem);

// Whether a bound of an extent leaves it whole, as a larger bound, the first that is tried, does too.
inline bool says_nothing(int bound, int first, int extent) {
  return bound != first && extent <= bound;
}

// A kernel of conv/cpu_implicit.cl.
cl::Kernel& conv_cpu_kernel(cl::Device& device, const ConvProblem& problem, const char* name);

// Whether the weights lie in memory as [k][c][filter].
bool dense_weights(const ConvProblem& problem);

// The definition of CONSTANTS (conv/gather.clh) for a kernel's argument, to stand before the sources.
std::string constants_of(const Gather& gather);

}  // namespace dlb::solver
