// Order of elements, for ops that are made of it.
#pragma once
#include <ATen/core/Tensor.h>

namespace dlb {

struct SortedPlaces {
  at::Tensor values;
  at::Tensor places;  // where they were, int32
};

// A vector in ascending order; equal elements stay in order, NaN comes last. Raises NotImplementedError for
// dtypes without an order. The vector must not be empty.
SortedPlaces sorted_vector(const at::Tensor& vector);

}  // namespace dlb
