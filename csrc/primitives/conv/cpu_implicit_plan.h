// Planning of the convolution solver "cpu_implicit": how the work of a gather is blocked for
// conv/cpu_implicit.cl, and what a blocking costs.
#pragma once
#include <cmath>
#include <vector>

#include "cl/device.h"
#include "primitives/conv/gather.h"

namespace dlb::solver {

// The parameters that can be varied: most positions, output channels and summed channels of a work-item, and
// whether it packs the weights that it needs. Zeros are the best guess.
struct ImplicitBlocking {
  int32_t positions = 0, cols = 0, channels = 0, packs = 0;
  static constexpr const char* kNames[] = {"positions", "cols", "channels", "packs"};
  bool given() const { return positions > 0; }
  bool operator==(const ImplicitBlocking&) const = default;
};

// A gather with its blocking chosen, and what it costs.
struct ImplicitPlan {
  Gather gather;
  ImplicitBlocking blocking = {};
  int64_t scratch = 0;  // floats
  int64_t blocks = 0;   // of positions
  int64_t col_blocks = 0, channel_blocks = 0;
  int slices = 1;            // weight gradient
  double cycles = INFINITY;  // expected, of the slowest core
};

// The plan with this blocking, else the one with the fewest cycles; they are infinite when local memory
// suffices for none.
ImplicitPlan plan_implicit(bool weight_grad, const Gather& gather, const ImplicitBlocking& blocking,
                           const cl::Device& device);

// Blockings worth a measurement beside the best: the best with half as many positions, with fewer
// summed channels, with other columns, with the weights packed elsewhere.
std::vector<ImplicitBlocking> other_blockings(bool weight_grad, const Gather& gather,
                                              const cl::Device& device);

// Floats of the weights that are packed before the kernel runs; none where its work-items pack them.
int64_t floats_before(const Gather& gather);

}  // namespace dlb::solver
