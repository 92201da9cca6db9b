// The kernels behind a pass: they merge its splits and make of the results what a normalisation wants.
#pragma once
#include "kernels/norm/params.h"
#include "primitives/common/team.h"
#include "primitives/norm/pass.h"

namespace dlb::norm {

// A kernel by file and name, which must be string literals: fetch_kernel() compares their addresses.
struct FinishKernel {
  const char *file, *name;
};

// An argument of such a kernel, and where in the parameters its offset goes: -1 where it is undefined or
// empty.
struct FinishBuffer {
  const at::Tensor& tensor;
  int64_t params::NormFinish::*offset;
};

// The parameters for so many rows of a pass, of `count` elements each.
params::NormFinish finish_of(const Partial& partial, int64_t rows, int64_t count);

// Launches one. The kernel takes the buffers in this order, then the parameters, with offsets set, and the
// team.
void launch_finish(const Context& context, const FinishKernel& kernel, params::NormFinish params,
                   const Team& team, std::initializer_list<FinishBuffer> buffers);
// The same for batch_norm_apply.cl, whose work is divided into tiles.
void launch_finish(const Context& context, const FinishKernel& kernel, params::NormFinish params,
                   const params::NormTiles& tiles, std::initializer_list<FinishBuffer> buffers);

// A team for one of them that merges.
inline Team merging_team(const Context& context, const params::NormFinish& params) {
  return make_team(context.device, params.rows, params.splits, 32);
}

}  // namespace dlb::norm
