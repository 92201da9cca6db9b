// Element-wise reductions of pieces of host memory, by SIMD.
#pragma once
#include <ATen/ATen.h>
#include <torch/csrc/distributed/c10d/Types.hpp>

namespace dlb::distributed {

// Sets out[i] to sources[0][i] op sources[1][i] op ..., in this order, for `elements` elements. float16 and
// bfloat16 are computed in float32 and rounded once. `out` may be one of the sources.
using HostReduction = void (*)(void* out, const void* const* sources, int count, size_t elements);

// SUM, PRODUCT, MIN and MAX of floating point, integers and bool, and BAND, BOR and BXOR of integers. Null
// for other operations and dtypes.
HostReduction host_reduction(c10::ScalarType dtype, const c10d::ReduceOp& op);

}  // namespace dlb::distributed
