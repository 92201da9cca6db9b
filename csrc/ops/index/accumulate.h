// Adding (multiplying, taking the maximum, minimum or last of) many elements into the places that indices
// name.
#pragma once
#include <ATen/core/Tensor.h>

#include "kernels/index/params.h"

namespace dlb {

enum class Combine : int32_t {
  Sum = params::COMBINE_SUM,
  Product = params::COMBINE_PRODUCT,
  Maximum = params::COMBINE_MAXIMUM,
  Minimum = params::COMBINE_MINIMUM,
  Last = params::COMBINE_LAST  // on GPUs, where a walk of writes (access.h) has no order; moves bits
};

struct Accumulation {
  Combine op = Combine::Sum;
  int32_t site = 0;            // see register_error_site
  bool wraps = false;          // negative indices count from the end
  bool deterministic = false;  // also on devices whose atomics add floats in any order
};

// target[.., index, ..] (op)= source along `dim`. Any strides. `index` (int64 or int32) is a vector over
// `dim` of the source (index_add), or has the dimensions of the source (scatter_add), which then may be
// smaller than the target in the other dimensions. Half and bfloat16 are added up in float. An index out of
// bounds is skipped and reported by the next synchronising call.
void accumulate(const at::Tensor& target, int64_t dim, const at::Tensor& index, const at::Tensor& source,
                const Accumulation& how);

// Whether writes through indices to a tensor are to be sorted, by Combine::Last, so that of two writes to one
// element the last stays, as on the CPU: where deterministic algorithms are asked for, but on CPUs, whose
// walks of writes have that order.
bool sorts_writes(const at::Tensor& target);

}  // namespace dlb
