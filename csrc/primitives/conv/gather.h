// A convolution, or one stride phase of its input gradient, as a gather: every output position q of dimension
// i sums over taps t the gathered image at q * step + first + t * dilation. Shared by the CPU solvers; struct
// Gather of conv/cpu_implicit.cl and conv/cpu_direct.cl.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "cl/kernel.h"
#include "primitives/conv/problem.h"

namespace dlb::solver {

struct Gather {
  int64_t is[5], os[5];  // strides of the gathered image and of the output: n, channel, d, h, w
  int64_t wgroup, wcol, wred, wtap[3];  // strides of the weights; those of taps may be negative
  int32_t n, groups, red, cols;         // images, groups, summed and output channels per group
  int32_t in[3], q[3];                  // size of the gathered image, output positions
  int32_t step[3], first[3], dilation[3], taps[3];
  // Filled in by the solver: see the kernels.
  int32_t block[4], channels, pitch, block_cols, split[3], block_groups, has_bias, packs, keeps;
  Bounds bounds;  // of a call
};

struct Phase {
  Gather gather;
  int64_t weight_offset;  // elements, to the weight of tap 0
  int64_t output_offset;  // elements, to position 0
};

// The forward pass's gather; the weight gradient has the same one.
Phase forward_phase(const ConvProblem& problem);

// The gather of a call: the same, with the call's bounds.
inline Gather within(Gather gather, const Bounds& bounds) {
  gather.bounds = bounds;
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
