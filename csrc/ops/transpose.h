// Copies between matrices whose rows lie together and ones whose columns do.
#pragma once
#include <ATen/core/Tensor.h>

namespace dlb {

// Copies on one CPU device where both tensors have the same dtype and sizes, and are batches of matrices, one
// side transposed. False, and nothing is done, where that is not so, or they are small or share memory.
bool copy_transposed(const at::Tensor& source, const at::Tensor& destination);

}  // namespace dlb
