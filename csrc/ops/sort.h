// Order of elements, for ops that are made of it.
#pragma once
#include <ATen/core/Tensor.h>

namespace dlb {

// The places of a vector's elements in ascending order, int32 [n]; equal ones stay in order, NaN comes last.
// Raises NotImplementedError for dtypes without an order. The vector must not be empty.
at::Tensor ascending_places(const at::Tensor& vector);

}  // namespace dlb
