// Writing to tensors whose elements share memory.
#pragma once
#include <ATen/MemoryOverlap.h>
#include <ATen/core/Tensor.h>

namespace dlb {

// Warns as PyTorch does before `op` writes to an expanded tensor; `example` is the assignment that calls it.
inline void warn_of_expanded(const at::Tensor& self, const char* op, const char* example) {
  if (at::has_internal_overlap(self) == at::MemOverlap::Yes)
    TORCH_WARN("Use of ", op,
               " on expanded tensors is deprecated. Please clone() the tensor before performing ",
               "this operation. This also applies to advanced indexing e.g. ", example);
}

}  // namespace dlb
