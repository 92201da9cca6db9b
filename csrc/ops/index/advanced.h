// x[i, :, mask, ...]: several index tensors, masks and whole dimensions together, as NumPy's advanced
// indexing.
#pragma once
#include <ATen/core/List.h>
#include <ATen/core/Tensor.h>

#include <vector>

#include "ops/index/access.h"

namespace dlb {

class AdvancedIndexing {
 public:
  // Checks and broadcasts the indices (int64, int32, bool or uint8 masks, which wait for the device to be
  // counted). Raises IndexError as CPU PyTorch does for what the shapes tell. `op` must be a string literal.
  AdvancedIndexing(const at::Tensor& self, const c10::List<std::optional<at::Tensor>>& indices,
                   const char* op);

  // Shape of the result: dimensions before the indexed ones, those of the indices, dimensions after.
  at::IntArrayRef sizes() const { return sizes_; }

  // Strides of a result that is allocated, as CPU PyTorch's iterator over self and the indices gives them:
  // the dimensions of a channels_last self stay in their order.
  at::DimVector result_strides() const;

  // The walk with everything but its plain side.
  IndexAccess access() const;

  // The same as one index into rows, for accumulating: `target` viewed as [bound, inner] after the
  // permutation that brings indexed dimensions to the front, and values [index elements, inner].
  at::Tensor permuted_self() const;
  at::Tensor row_index() const;  // [n]; of one index itself, whose negative numbers count from the end
  at::Tensor permuted_values(
      const at::Tensor& values) const;  // expanded to sizes(): the same order of dimensions
  int64_t rows() const;

 private:
  at::DimVector front_order(size_t index_dims) const;

  at::Tensor self_;
  std::vector<at::Tensor> indices_;  // of one shape
  size_t before_ = 0;                // dimensions before the first indexed one
  at::DimVector bounds_, strides_, sizes_;
  int32_t site_;
};

}  // namespace dlb
