// Writes through an index that has a tensor's own shape.
#pragma once
#include <ATen/core/Tensor.h>

#include "ops/index/accumulate.h"

namespace dlb {

// out[.., index, ..] (op)= source along `dim`, for each element of `index`. `source` (any shape that covers
// the index's, or 0-dim) has out's dtype. An index out of bounds is skipped and reported by the next
// synchronising call under `site`.
void scatter_combine(const at::Tensor& out, int64_t dim, const at::Tensor& index, const at::Tensor& source,
                     Combine op, int32_t site);

}  // namespace dlb
