#include "ops/sparse/parts.h"

#include <ATen/ops/_sparse_coo_tensor_unsafe.h>
#include <ATen/ops/_unique2.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/floor_divide.h>
#include <ATen/ops/remainder.h>
#include <ATen/ops/searchsorted.h>
#include <ATen/ops/sort.h>
#include <ATen/ops/unique_consecutive.h>
#include <ATen/ops/zeros.h>
#include <c10/core/DeviceGuard.h>

#include "kernels/sparse/params.h"
#include "runtime/fetch_kernel.h"
#include "runtime/tensor.h"

namespace dlb::sparse {

using at::Tensor;

Tensor flat_indices(const Tensor& indices, at::IntArrayRef sizes) {
  if (indices.size(0) == 0) return at::zeros({indices.size(1)}, indices.options());
  Tensor flat = indices.select(0, 0);
  for (int64_t d = 1; d < indices.size(0); ++d)
    flat = indices.select(0, d).add(flat, sizes[static_cast<size_t>(d)]);
  return flat;
}

Tensor unflatten(const Tensor& flat, at::IntArrayRef sizes, int64_t sparse_dim) {
  if (sparse_dim == 1) return flat.unsqueeze(0);
  Tensor indices = at::empty({sparse_dim, flat.size(0)}, flat.options()), rest = flat;
  for (int64_t d = sparse_dim - 1; d >= 0; --d) {
    const int64_t size = std::max<int64_t>(1, sizes[static_cast<size_t>(d)]);
    Tensor row = indices.select(0, d);
    at::remainder_out(row, rest, size);
    if (d > 0) rest = at::floor_divide(rest, size);
  }
  return indices;
}

c10::List<std::optional<Tensor>> index_list(const Tensor& indices) {
  c10::List<std::optional<Tensor>> list;
  for (const Tensor& row : indices.unbind(0)) list.push_back(row);
  return list;
}

Tensor make(const Tensor& indices, const Tensor& values, at::IntArrayRef sizes, bool coalesced) {
  return at::_sparse_coo_tensor_unsafe(indices, values, sizes, values.options().layout(at::kSparse))
      ._coalesced_(coalesced);
}

Tensor coalesce(const Tensor& self) {
  const Tensor indices = self._indices(), values = self._values();
  if (self._nnz() < 2) return make(indices.clone(), values.clone(), self.sizes(), true);
  const c10::DeviceGuard guard(self.device());
  const auto [sorted, order] = at::sort(flat_indices(indices, self.sizes()), /*stable=*/true, 0, false);
  const auto [flat, place, counts] = at::unique_consecutive(sorted, /*return_inverse=*/true);
  std::vector<int64_t> sizes = values.sizes().vec();
  sizes[0] = flat.size(0);
  // A sum of booleans is whether any is true, so they are counted.
  const bool boolean = values.scalar_type() == at::kBool;
  const Tensor parts = (boolean ? values.to(at::kInt) : values).index_select(0, order);
  const Tensor sums = at::zeros(sizes, parts.options()).index_add_(0, place, parts);
  return make(unflatten(flat, self.sizes(), self.sparse_dim()), boolean ? sums.ne(0) : sums, self.sizes(),
              true);
}

std::pair<Tensor, Tensor> find(const Tensor& flat, const Tensor& among) {
  const Tensor place = at::searchsorted(among, flat).clamp_max_(among.size(0) - 1);
  return {place, among.index_select(0, place).eq(flat)};
}

Tensor row_begins(const Tensor& sorted_rows, int64_t rows) {
  return at::searchsorted(sorted_rows.contiguous(), at::arange(rows + 1, sorted_rows.options()));
}

void product(const Rows& rows, const Tensor& maybe_lazy, const Tensor& c, bool adds) {
  if (c.numel() == 0) return;
  const Tensor b = maybe_lazy.resolve_conj().resolve_neg();
  const auto type = dtype_of(c.scalar_type(), "sparse product");
  Stream& stream = current_stream(c.device().index());
  check_device_supports(stream.device(), type, "sparse product");
  const Tensor column = rows.column.contiguous(), values = rows.values.contiguous();
  const Buffer begin = buffer_of(rows.begin), to = buffer_of(c);
  const auto or_begin = [&](const Tensor& t) { return t.numel() ? buffer_of(t) : begin; };
  const Buffer at_column = or_begin(column), a = or_begin(values), from = or_begin(b);
  params::SparseProduct p{};
  p.row_begin = begin.offset, p.column = at_column.offset, p.a = a.offset, p.b = from.offset, p.c = to.offset;
  p.columns = c.size(1), p.b_row = b.stride(0), p.b_column = b.stride(1);
  p.c_row = c.stride(0), p.c_column = c.stride(1), p.adds = adds;
  const bool cpu = stream.device().cls == cl::DeviceClass::kCpu;
  const size_t group = cpu ? 1 : 64, per_item = cpu ? params::SPARSE_COLUMNS_CPU : 1;
  const size_t items = (static_cast<size_t>(p.columns) + per_item - 1) / per_item;
  const cl::Range range{
      2, {(items + group - 1) / group * group, static_cast<size_t>(c.size(0)), 1}, {group, 1, 1}};
  fetch_kernel(stream.device(), "sparse/product.cl", "dlb_sparse_product", codegen::compute_type(type),
               {type}, codegen::class_of(type) == codegen::DClass::Complex ? "-DIS_COMPLEX" : "")
      .launch(stream.queue(), range, begin.mem, at_column.mem, a.mem, from.mem, to.mem, p);
}

}  // namespace dlb::sparse
