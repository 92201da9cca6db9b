// Sums and products along the dimensions of CSR matrices, of the elements that are there: CSR matrices again.
#include <ATen/WrapDimUtilsMulti.h>
#include <ATen/ops/_convert_indices_from_coo_to_csr.h>
#include <ATen/ops/_convert_indices_from_csr_to_coo.h>
#include <ATen/ops/_sparse_csr_tensor_unsafe.h>
#include <ATen/ops/_unique2.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/sort.h>
#include <ATen/ops/zeros_like.h>
#include <torch/library.h>

#include "ops/sparse/parts.h"

namespace dlb::sparse {
namespace {

using at::Tensor;

enum class Fold { kSum, kProduct };

// The product in each group, of numbers that index_reduce does not take: each group is a row of a matrix,
// which is filled up with ones. Waits for the device, which says how long the longest is.
Tensor complex_products(const Tensor& values, const Tensor& of, int64_t groups) {
  if (groups == 0) return values;
  const auto [sorted, order] = at::sort(of, /*stable=*/true, 0, false);
  const Tensor begin = row_begins(sorted, groups);
  const Tensor rank = at::arange(of.size(0), of.options()).sub(begin.index_select(0, sorted));
  Tensor rows = at::ones({groups, begin.diff().max().item<int64_t>()}, values.options());
  return rows.index_put_({sorted, rank}, values.index_select(0, order)).prod(1);
}

// Reduces the values of each of `groups` groups; `of` [elements] has the number of each value's group.
template <Fold Kind>
Tensor reduced(const Tensor& values, const Tensor& of, int64_t groups) {
  if (Kind == Fold::kProduct && values.is_complex()) return complex_products(values, of, groups);
  const bool half = values.scalar_type() == at::kHalf || values.scalar_type() == at::kBFloat16;
  const Tensor wide = half ? values.to(at::kFloat) : values;
  const Tensor begin = at::full({groups}, Kind == Fold::kSum ? 0 : 1, wide.options());
  return (Kind == Fold::kSum ? begin.index_add(0, of, wide) : begin.index_reduce(0, of, wide, "prod"))
      .to(values.scalar_type());
}

// Waits for the device, which says how many elements the result has.
template <Fold Kind>
Tensor reduce(const Tensor& self, at::IntArrayRef dim, bool keepdim, std::optional<at::ScalarType> dtype) {
  TORCH_CHECK(keepdim, "reduction operations on CSR tensors with keepdim=False is unsupported");
  TORCH_CHECK(self.layout() == at::kSparseCsr && self.dim() == 2 && self.dense_dim() == 0,
              "only CSR matrices can be reduced along a dimension, not a ", self.dim(),
              "-D tensor of layout ", self.layout());
  const auto type = self.scalar_type();
  TORCH_CHECK_NOT_IMPLEMENTED(dtype.value_or(type) != at::kBool,
                              "reductions of CSR matrices are not implemented for 'Bool'");
  const auto dims = at::dim_list_to_bitset(dim, 2);
  const bool rows = dim.empty() || dims[0], columns = dim.empty() || dims[1];  // whether reduced
  const Tensor values = self.values().to(dtype.value_or(at::isIntegralType(type, false) ? at::kLong : type));
  const Tensor indices = at::_convert_indices_from_csr_to_coo(self.crow_indices(), self.col_indices(),
                                                              self.crow_indices().scalar_type() == at::kInt);
  const Tensor key = rows && columns ? at::zeros_like(self.col_indices()) : indices.select(0, rows ? 1 : 0);
  const auto [kept, group, counts] = at::_unique2(key, /*sorted=*/true, /*return_inverse=*/true);
  const Tensor zeros = at::zeros_like(kept);
  const std::vector<int64_t> sizes{rows ? 1 : self.size(0),
                                   columns ? rows ? std::min<int64_t>(1, self.size(1)) : 1 : self.size(1)};
  const Tensor result = reduced<Kind>(values, group, kept.size(0));
  return at::_sparse_csr_tensor_unsafe(
      at::_convert_indices_from_coo_to_csr(rows ? zeros : kept, sizes[0], kept.scalar_type() == at::kInt),
      columns ? zeros : kept, result, sizes, result.options().layout(at::kSparseCsr));
}

}  // namespace

TORCH_LIBRARY_IMPL(aten, SparseCsrPrivateUse1, m) {
  m.impl("_sparse_csr_sum.dim_dtype", reduce<Fold::kSum>);
  m.impl("_sparse_csr_prod.dim_dtype", reduce<Fold::kProduct>);
}

}  // namespace dlb::sparse
