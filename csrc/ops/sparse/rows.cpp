// Conversions between layouts that sums and products of any layout share.
#include <ATen/SparseCsrTensorUtils.h>
#include <ATen/native/Resize.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/searchsorted.h>
#include <c10/util/accumulate.h>

#include "ops/sparse/parts.h"

namespace dlb::sparse {

using at::Tensor;

Tensor as_coo(const Tensor& sparse) {
  return sparse.is_sparse() ? sparse : sparse.to_sparse();
}

Tensor as_layout_of(const Tensor& coo, const Tensor& like) {
  switch (like.layout()) {
    case at::kStrided:
      return coo.to_dense();
    case at::kSparse:
      return coo;
    case at::kSparseBsr:
    case at::kSparseBsc:
      return coo.to_sparse(like.layout(), at::IntArrayRef(at::sparse_csr::getBlockSize(like)));
    default:
      return coo.to_sparse(like.layout());
  }
}

Tensor& write(const Tensor& result, Tensor& out) {
  TORCH_CHECK(c10::canCast(result.scalar_type(), out.scalar_type()), "result type ", result.scalar_type(),
              " can't be cast to the desired output type ", out.scalar_type());
  if (out.layout() == at::kStrided) {
    at::native::resize_output(out, result.sizes());
    return out.copy_(result);
  }
  if (!out.is_sparse()) return out.resize_as_sparse_(result).copy_(result);
  out.resize_as_(result);
  out.copy_(result);
  return out._coalesced_(result.is_coalesced());
}

Tensor rows_of_elements(const Tensor& begin, int64_t count) {
  return at::searchsorted(begin.narrow(0, 1, begin.size(0) - 1), at::arange(count, begin.options()),
                          /*out_int32=*/false, /*right=*/true);
}

namespace {

// Where rows begin that end at these places [rows]: [rows + 1].
Tensor begins_of(const Tensor& ends) {
  return at::constant_pad_nd(ends, {1, 0});
}

// One matrix with all matrices of a batch, CSR or BSR, along its diagonal.
Rows joined(const Tensor& begins, const Tensor& columns, const Tensor& values, int64_t width) {
  const Tensor begin = begins.to(at::kLong), column = columns.to(at::kLong);
  if (begin.dim() == 1) return {begin.contiguous(), column, values};
  const Tensor flat = begin.reshape({-1, begin.size(-1)});
  const int64_t batches = flat.size(0), rows = flat.size(1) - 1, count = column.size(-1);
  const Tensor number = at::arange(batches, flat.options()).unsqueeze(1);
  return {begins_of(flat.narrow(1, 1, rows).add(number, count).flatten()),
          column.reshape({batches, count}).add(number, width).flatten(), values.flatten(0, begin.dim() - 1)};
}

// A matrix whose elements are blocks [elements, r, c], as one of numbers: each row of blocks becomes r rows.
Rows without_blocks(const Rows& blocks) {
  const int64_t count = blocks.values.size(0), r = blocks.values.size(1), c = blocks.values.size(2);
  const auto options = blocks.begin.options();
  const int64_t rows = blocks.begin.size(0) - 1;
  const Tensor first = blocks.begin.narrow(0, 0, rows), width = blocks.begin.diff();
  const Tensor ends =
      first.mul(r * c).unsqueeze(1).add(width.mul(c).unsqueeze(1).mul(at::arange(1, r + 1, options)));
  // A number comes after all rows of blocks above its own, the rows above it within its own row of blocks,
  // and the blocks to its left.
  const Tensor row = rows_of_elements(blocks.begin, count);
  const Tensor before = first.index_select(0, row), number = at::arange(count, options).sub(before);
  const Tensor place = before.mul(r * c)
                           .add(number, c)
                           .unsqueeze(1)
                           .add(width.index_select(0, row).mul(c).unsqueeze(1).mul(at::arange(r, options)))
                           .unsqueeze(2)
                           .add(at::arange(c, options));
  const Tensor column = blocks.column.mul(c).unsqueeze(1).add(at::arange(c, options)).unsqueeze(1);
  const auto moved = [&](const Tensor& values) {
    return at::empty({count * r * c}, values.options())
        .scatter_(0, place.flatten(), values.expand_as(place).flatten());
  };
  return {begins_of(ends.flatten()), moved(column), moved(blocks.values)};
}

Rows rows_of_coo(const Tensor& matrix) {
  const Tensor a = matrix.coalesce(), indices = a._indices();
  const int64_t batch_dims = a.sparse_dim() - 2;
  const Tensor row = flat_indices(indices.narrow(0, 0, batch_dims + 1), a.sizes());
  const int64_t rows = c10::multiply_integers(a.sizes().slice(0, static_cast<size_t>(batch_dims) + 1));
  Tensor column = indices.select(0, batch_dims + 1);
  if (batch_dims)
    column = column.add(flat_indices(indices.narrow(0, 0, batch_dims), a.sizes()), a.size(batch_dims + 1));
  return {row_begins(row, rows), column, a._values()};
}

}  // namespace

Rows rows_of(const Tensor& matrix) {
  TORCH_CHECK(matrix.dense_dim() == 0 && matrix.dim() >= 2,
              "expected a sparse matrix without dense dimensions, but got a tensor of layout ",
              matrix.layout(), " with ", matrix.sparse_dim(), " sparse and ", matrix.dense_dim(),
              " dense dimensions");
  switch (matrix.layout()) {
    case at::kSparse:
      return rows_of_coo(matrix);
    case at::kSparseCsc:
      return rows_of(matrix.to_sparse_csr());
    case at::kSparseBsc:
      return rows_of(matrix.to_sparse_bsr(at::sparse_csr::getBlockSize(matrix)));
    default:
      break;
  }
  const bool blocked = matrix.layout() == at::kSparseBsr;
  const Tensor values = matrix.values();
  const int64_t width = matrix.size(-1) / (blocked ? values.size(-1) : 1);
  const Rows rows = joined(matrix.crow_indices(), matrix.col_indices(), values, width);
  return blocked ? without_blocks(rows) : rows;
}

}  // namespace dlb::sparse
