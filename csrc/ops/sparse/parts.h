// Functions that the kernels for sparse COO tensors share. A sparse tensor of `sparse_dim` s and `dense_dim`
// d has indices [s, nnz] (int64) and values [nnz, sizes of the last d dimensions].
#pragma once
#include <ATen/core/Tensor.h>

namespace dlb::sparse {

// The indices [nnz] into the tensor's first dimensions taken as one, row by row.
at::Tensor flat_indices(const at::Tensor& indices, at::IntArrayRef sizes);

// The inverse: indices [sparse_dim, nnz] of flat ones.
at::Tensor unflatten(const at::Tensor& flat, at::IntArrayRef sizes, int64_t sparse_dim);

// One index tensor a dimension, as indexing and index_put_ take them.
c10::List<std::optional<at::Tensor>> index_list(const at::Tensor& indices);

at::Tensor make(const at::Tensor& indices, const at::Tensor& values, at::IntArrayRef sizes, bool coalesced);

// Adds up the values of equal indices, and sorts them. Waits for the device, which says how many are left.
at::Tensor coalesce(const at::Tensor& self);

// Where the elements of `flat` stand in `among`, which is sorted without repeats: places, and whether there
// is one.
std::pair<at::Tensor, at::Tensor> find(const at::Tensor& flat, const at::Tensor& among);

// The COO tensor of a sparse one of any layout.
at::Tensor as_coo(const at::Tensor& sparse);

// A COO tensor in the layout of `like`, with blocks of its size.
at::Tensor as_layout_of(const at::Tensor& coo, const at::Tensor& like);

// Writes `result` to `out`, which has the same layout and keeps its dtype.
at::Tensor& write(const at::Tensor& result, at::Tensor& out);

// Where each of `rows` rows begins in sorted row indices [nnz], and the end: [rows + 1].
at::Tensor row_begins(const at::Tensor& sorted_rows, int64_t rows);

// Takes the elements of the chosen rows, one row after the other; the rows begin at the places `begins` [rows
// + 1]. Gives for each element the place of its row among the chosen ones, and its own among all elements.
// Waits for the device.
std::pair<at::Tensor, at::Tensor> expand(const at::Tensor& begins, const at::Tensor& chosen);

// A matrix as rows of elements, of which row r has those from begin[r] to begin[r + 1].
struct Rows {
  at::Tensor begin;   // int64 [rows + 1]
  at::Tensor column;  // int64 [elements], in no order within a row
  at::Tensor values;  // [elements]
};

// The rows of a sparse matrix of any layout. A batch of matrices [.., m, k] counts as one matrix [.. * m, ..
// * k] with them along its diagonal.
Rows rows_of(const at::Tensor& matrix);

// The row of each of `count` elements [count] that are in rows which begin at these places [rows + 1].
at::Tensor rows_of_elements(const at::Tensor& begin, int64_t count);

// c = a @ b, or c += a @ b, for all of one dtype; b [k, n] and c [m, n] of any strides, c not lazily
// conjugated.
void product(const Rows& a, const at::Tensor& b, const at::Tensor& c, bool adds);

// The product of two COO matrices of one dtype, coalesced. Waits for the device, which says how many elements
// it has.
at::Tensor sparse_product(const at::Tensor& self, const at::Tensor& other);

}  // namespace dlb::sparse
