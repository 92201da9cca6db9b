// Choosing slices of sparse COO tensors, and adding into them, which is the gradient.
#include <ATen/WrapDimUtils.h>
#include <ATen/ops/aminmax.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/repeat_interleave.h>
#include <ATen/ops/sort.h>
#include <ATen/ops/where.h>
#include <torch/library.h>

#include "ops/sparse/parts.h"

namespace dlb::sparse {

using at::Tensor;

std::pair<Tensor, Tensor> expand(const Tensor& begins, const Tensor& chosen) {
  const Tensor first = begins.index_select(0, chosen),
               counts = begins.index_select(0, chosen.add(1)).sub(first);
  const Tensor of = at::repeat_interleave(counts);
  const Tensor skipped = first.sub(counts.cumsum(0)).add(counts);  // from a place in the result to an element
  return {of, at::arange(of.size(0), of.options()).add(skipped.index_select(0, of))};
}

namespace {

// `indices` with another row in the place of `dim`'s.
Tensor with_row(const Tensor& indices, int64_t dim, const Tensor& row) {
  Tensor changed = indices.clone();
  changed.select(0, dim).copy_(row);
  return changed;
}

// Non-negative, as the CPU takes them for sparse tensors. Waits for the device.
Tensor checked_index(const Tensor& self, int64_t dim, const Tensor& index) {
  TORCH_CHECK_INDEX(index.dim() == 1 && index.scalar_type() == at::kLong && index.layout() == at::kStrided,
                    "index_select() argument index must be 1-D strided (non-sparse) long-tensor.");
  TORCH_CHECK(index.device() == self.device(), "index_select(): expected the tensor and the index on one ",
              "device, but they are on ", self.device(), " and ", index.device());
  if (index.numel() == 0) return index;
  const int64_t size = self.size(dim);
  const auto [low, high] = at::aminmax(index);
  for (const int64_t extreme : {low.item<int64_t>(), high.item<int64_t>()})
    TORCH_CHECK_INDEX(extreme >= -size && extreme < size, "index_select(): index contains ", extreme,
                      " that is out of range for tensor of size ", self.sizes(), " at dimension ", dim);
  return at::where(index.lt(0), index.add(size), index);
}

Tensor index_select(const Tensor& self, int64_t dim, const Tensor& index) {
  TORCH_CHECK_INDEX(self.dim() > 0, "index_select() cannot be applied to a 0-dim tensor.");
  dim = at::maybe_wrap_dim(dim, self.dim());
  const Tensor at = checked_index(self, dim, index);
  std::vector<int64_t> sizes = self.sizes().vec();
  sizes[static_cast<size_t>(dim)] = at.size(0);
  const Tensor indices = self._indices(), values = self._values();
  if (dim >= self.sparse_dim())
    return make(indices.clone(), values.index_select(dim - self.sparse_dim() + 1, at), sizes,
                self.is_coalesced());
  const auto [sorted, order] = at::sort(indices.select(0, dim), /*stable=*/true, 0, false);
  const auto [of_index, place] = expand(row_begins(sorted, self.size(dim)), at);
  const Tensor element = order.index_select(0, place);
  // Elements come in the order of `index`, which is their own where all share the other indices.
  return make(with_row(indices.index_select(1, element), dim, of_index), values.index_select(0, element),
              sizes, element.size(0) < 2 || (self.is_coalesced() && dim == 0));
}

// PyTorch has none for sparse tensors on the CPU, so that index_select has no gradient there.
Tensor& index_add_(Tensor& self, int64_t dim, const Tensor& index, const Tensor& source,
                   const c10::Scalar& alpha) {
  if (source.is_sparse() && self._nnz() == 0)  // gradients begin as zeros without dense dimensions
    self.sparse_resize_and_clear_(self.sizes(), source.sparse_dim(), source.dense_dim());
  TORCH_CHECK(source.is_sparse() && source.sparse_dim() == self.sparse_dim(),
              "index_add_(): expected a sparse source of as many sparse dimensions as self");
  dim = at::maybe_wrap_dim(dim, self.dim());
  const Tensor at = checked_index(self, dim, index);
  std::vector<int64_t> sizes = self.sizes().vec();
  sizes[static_cast<size_t>(dim)] = at.size(0);
  TORCH_CHECK(source.sizes() == sizes, "index_add_(): expected a source of shape ", at::IntArrayRef(sizes),
              ", but it has ", source.sizes());
  const Tensor indices = source._indices(), values = source._values();
  if (dim < self.sparse_dim())
    return self.add_(
        make(with_row(indices, dim, at.index_select(0, indices.select(0, dim))), values, self.sizes(), false),
        alpha);
  sizes = self.sizes().slice(static_cast<size_t>(self.sparse_dim())).vec();
  sizes.insert(sizes.begin(), values.size(0));
  const Tensor wide = values.new_zeros(sizes).index_add_(dim - self.sparse_dim() + 1, at, values);
  return self.add_(make(indices, wide, self.sizes(), false), alpha);
}

}  // namespace

TORCH_LIBRARY_IMPL(aten, SparsePrivateUse1, m) {
  m.impl("index_select", index_select);
  m.impl("index_add_", index_add_);
}

}  // namespace dlb::sparse
