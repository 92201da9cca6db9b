// Conversions among compressed layouts. Those between rows and columns (CSR and CSC, BSR and BSC) are
// PyTorch's own and need a kernel that makes one index of several. Those into blocks are made of other ops
// here.
#include <ATen/SparseCsrTensorUtils.h>
#include <ATen/native/DispatchStub.h>
#include <ATen/ops/_convert_indices_from_coo_to_csr.h>
#include <ATen/ops/_sparse_compressed_tensor_unsafe.h>
#include <ATen/ops/_to_sparse_bsc_native.h>
#include <ATen/ops/_to_sparse_bsr_native.h>
#include <ATen/ops/_to_sparse_native.h>
#include <ATen/ops/_unique2.h>
#include <ATen/ops/zeros.h>
#include <torch/library.h>

#include "ops/sparse/parts.h"

namespace dlb::sparse {
namespace {

using at::Tensor;

Tensor flatten_indices(const Tensor& indices, at::IntArrayRef sizes) {
  return flat_indices(indices.to(at::kLong), sizes);
}

void check_blocks(const Tensor& self, at::IntArrayRef block, const std::optional<int64_t>& dense_dim,
                  c10::Layout layout) {
  TORCH_CHECK(self.dim() == 2 + self.dense_dim(), "conversion from ", self.layout(), " to ", layout,
              " for batched inputs is not supported");
  TORCH_CHECK(block.size() == 2, "blocksize needs to be a tuple of size 2, but got ", block.size());
  TORCH_CHECK(block[0] > 0 && block[1] > 0, "blocksize needs to be positive, but got ", block);
  TORCH_CHECK(self.size(0) % block[0] == 0 && self.size(1) % block[1] == 0, "tensor sparse size (",
              self.size(0), ",", self.size(1), ") must be divisible by given blocksize (", block[0], ",",
              block[1], ")");
  TORCH_CHECK(!dense_dim, "conversion from ", self.layout(), " to ", layout,
              " with dense_dim argument given is not supported");
}

// Waits for the device, which says how many blocks there are.
Tensor to_blocks(const Tensor& self, at::IntArrayRef block, c10::Layout layout) {
  const Tensor coo = as_coo(self), values = coo._values();
  const Tensor row = coo._indices().select(0, 0), column = coo._indices().select(0, 1);
  const Tensor down = row.div(block[0], "floor"), across = column.div(block[1], "floor");
  const bool by_rows = layout == at::kSparseBsr;
  const int64_t blocks[] = {self.size(0) / block[0], self.size(1) / block[1]};
  const int64_t lines = blocks[by_rows ? 0 : 1], per_line = std::max<int64_t>(1, blocks[by_rows ? 1 : 0]);
  const auto [kept, place, counts] =
      at::_unique2(by_rows ? across.add(down, per_line) : down.add(across, per_line), /*sorted=*/true,
                   /*return_inverse=*/true);
  std::vector<int64_t> sizes{kept.size(0), block[0], block[1]};
  sizes.insert(sizes.end(), values.sizes().begin() + 1, values.sizes().end());
  Tensor filled = at::zeros(sizes, values.options());
  filled.index_put_({place, row.remainder(block[0]), column.remainder(block[1])}, values);
  const at::ScalarType type = at::sparse_csr::getIndexDtype(self);
  return at::_sparse_compressed_tensor_unsafe(
      at::_convert_indices_from_coo_to_csr(kept.div(per_line, "floor"), lines, type == at::kInt),
      kept.remainder(per_line).to(type), filled, self.sizes(), self.options().layout(layout));
}

Tensor to_bsr(const Tensor& self, at::IntArrayRef block, std::optional<int64_t> dense_dim) {
  if (self.layout() != at::kSparseCsr)
    return at::native::sparse_compressed_to_sparse_bsr(self, block, dense_dim);
  check_blocks(self, block, dense_dim, at::kSparseBsr);
  return to_blocks(self, block, at::kSparseBsr);
}

Tensor to_bsc(const Tensor& self, at::IntArrayRef block, std::optional<int64_t> dense_dim) {
  if (self.layout() != at::kSparseCsc)
    return at::native::sparse_compressed_to_sparse_bsc(self, block, dense_dim);
  check_blocks(self, block, dense_dim, at::kSparseBsc);
  return to_blocks(self, block, at::kSparseBsc);
}

// PyTorch's own calls its kernels for blocks without the dispatcher.
Tensor to_layout(const Tensor& self, std::optional<c10::Layout> layout, at::OptionalIntArrayRef block,
                 std::optional<int64_t> dense_dim) {
  if (block && layout == at::kSparseBsr) return self.to_sparse_bsr(*block, dense_dim);
  if (block && layout == at::kSparseBsc) return self.to_sparse_bsc(*block, dense_dim);
  return at::native::sparse_compressed_to_sparse(self, layout, block, dense_dim);
}

}  // namespace

TORCH_LIBRARY_IMPL(aten, SparseCsrPrivateUse1, m) {
  m.impl("_to_sparse", to_layout);
  m.impl("_to_sparse_bsr", to_bsr);
  m.impl("_to_sparse_bsc", to_bsc);
}

}  // namespace dlb::sparse

namespace at::native {
// PyTorch exports this stub, but no header declares it.
DECLARE_DISPATCH(Tensor (*)(const Tensor&, IntArrayRef), flatten_indices_stub)
REGISTER_PRIVATEUSE1_DISPATCH(flatten_indices_stub, &dlb::sparse::flatten_indices)
}  // namespace at::native
