// Products of sparse COO and CSR matrices with dense ones.
#include <ATen/native/Resize.h>
#include <ATen/ops/_convert_indices_from_csr_to_coo.h>
#include <ATen/ops/add.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/mm.h>
#include <torch/library.h>

#include "ops/sparse/parts.h"

namespace dlb::sparse {
namespace {

using at::Tensor;
using c10::Scalar;

// A sparse matrix as rows of elements.
struct Rows {
  Tensor begin, column, values;
};

Rows rows_of(const Tensor& matrix) {
  if (matrix.layout() == at::kSparseCsr)
    return {matrix.crow_indices().to(at::kLong).contiguous(), matrix.col_indices().to(at::kLong),
            matrix.values()};
  TORCH_CHECK(matrix.is_sparse() && matrix.sparse_dim() == 2 && matrix.dense_dim() == 0,
              "addmm: expected a sparse matrix with two sparse dimensions and no dense one as mat1, found ",
              matrix.sparse_dim(), " sparse and ", matrix.dense_dim(), " dense ones");
  const Tensor a = matrix.coalesce(), indices = a._indices();
  return {row_begins(indices.select(0, 0), a.size(0)), indices.select(0, 1), a._values()};
}

void check_matrices(const Tensor& a, const Tensor& b, const char* op) {
  TORCH_CHECK(a.dim() == 2 && b.dim() == 2, op, ": 2-D matrices expected, got ", a.dim(), "-D and ", b.dim(),
              "-D tensors");
  TORCH_CHECK(b.layout() == at::kStrided, op, ": only a sparse mat1 and a dense mat2 are supported, mat2 is ",
              b.layout());
  TORCH_CHECK(a.layout() != at::kStrided, op, ": expected a sparse mat1, but it is dense");
  TORCH_CHECK(a.size(1) == b.size(0), op, ": mat1 and mat2 shapes cannot be multiplied (", a.size(0), "x",
              a.size(1), " and ", b.size(0), "x", b.size(1), ")");
  TORCH_CHECK(a.scalar_type() == b.scalar_type(), op, ": expected mat1 and mat2 of one dtype, but they are ",
              a.scalar_type(), " and ", b.scalar_type());
  TORCH_CHECK(a.device() == b.device(), op, ": expected mat1 and mat2 on one device, but they are on ",
              a.device(), " and ", b.device());
}

Tensor& addmm_out(const Tensor& self, const Tensor& mat1, const Tensor& mat2, const Scalar& beta,
                  const Scalar& alpha, Tensor& out) {
  check_matrices(mat1, mat2, "addmm");
  TORCH_CHECK(self.layout() == at::kStrided && out.layout() == at::kStrided,
              "addmm: with a dense mat2 the sum and the result are dense");
  const Tensor d = self.expand({mat1.size(0), mat2.size(1)});
  TORCH_CHECK(d.scalar_type() == mat1.scalar_type() && out.scalar_type() == mat1.scalar_type(),
              "addmm: expected all tensors of dtype ", mat1.scalar_type());
  at::native::resize_output(out, d.sizes());
  const Rows a = rows_of(mat1);
  scaled_product(a.begin, a.column, a.values, mat2, d, beta, alpha, out);
  return out;
}

Tensor addmm(const Tensor& self, const Tensor& mat1, const Tensor& mat2, const Scalar& beta,
             const Scalar& alpha) {
  if (mat1.layout() != at::kStrided && mat2.layout() != at::kStrided) {
    const Tensor product = at::mm(mat1, mat2);
    if (beta.toComplexDouble() != 0.) return at::add(self.mul(beta), product, alpha);
    // Nothing of `self` counts then, not even NaN.
    const Tensor scaled = product.mul(alpha);
    return self.layout() == at::kStrided ? scaled.to_dense() : scaled;
  }
  Tensor out = at::empty({0}, mat2.options());
  return addmm_out(self, mat1, mat2, beta, alpha, out);
}

Tensor& addmm_(Tensor& self, const Tensor& mat1, const Tensor& mat2, const Scalar& beta,
               const Scalar& alpha) {
  return addmm_out(self, mat1, mat2, beta, alpha, self);
}

// The transposed of a sparse matrix as rows of elements.
Rows transposed_rows_of(const Tensor& matrix) {
  return rows_of((matrix.is_sparse() ? matrix : matrix.to_sparse()).t());
}

Tensor& mm_out(const Tensor& mat1, const Tensor& mat2, Tensor& out) {
  if (mat1.layout() == at::kStrided && mat2.layout() != at::kStrided) {  // gradients of CSR matrices need it
    check_matrices(mat2.t(), mat1.t(), "mm");
    at::native::resize_output(out, {mat1.size(0), mat2.size(1)});
    const Rows b = transposed_rows_of(mat2);
    product(b.begin, b.column, b.values, mat1.t(), out.t(), false);
    return out;
  }
  check_matrices(mat1, mat2, "mm");
  at::native::resize_output(out, {mat1.size(0), mat2.size(1)});
  const Rows a = rows_of(mat1);
  product(a.begin, a.column, a.values, mat2, out, false);
  return out;
}

Tensor csr_mm(const Tensor& mat1, const Tensor& mat2) {
  if (mat1.layout() == at::kSparseCsr && mat2.layout() == at::kSparseCsr)
    return sparse_product(mat1.to_sparse(), mat2.to_sparse()).to_sparse_csr();
  Tensor out = at::empty({0}, mat2.options().layout(at::kStrided));
  return mm_out(mat1, mat2, out);
}

Tensor& addmv_out(const Tensor& self, const Tensor& matrix, const Tensor& vector, const Scalar& beta,
                  const Scalar& alpha, Tensor& out) {
  TORCH_CHECK(vector.dim() == 1, "addmv: expected a vector, got a ", vector.dim(), "-D tensor");
  const Tensor column = vector.unsqueeze(1);
  check_matrices(matrix, column, "addmv");
  at::native::resize_output(out, {matrix.size(0)});
  const Rows a = rows_of(matrix);
  scaled_product(a.begin, a.column, a.values, column, self.expand({matrix.size(0)}).unsqueeze(1), beta, alpha,
                 out.unsqueeze(1));
  return out;
}

// All matrices of a batch as one, whose columns are those of all second factors, one after the other.
Tensor& bmm_out(const Tensor& self, const Tensor& mat2, Tensor& out) {
  TORCH_CHECK(self.is_sparse() && self.sparse_dim() == 3 && self.dense_dim() == 0 && mat2.dim() == 3 &&
                  mat2.layout() == at::kStrided,
              "bmm_sparse: expected a sparse batch of matrices and a dense one");
  TORCH_CHECK(self.size(0) == mat2.size(0), "bmm_sparse: 'self.size(0)' and 'mat2.size(0)' must match");
  TORCH_CHECK(self.size(2) == mat2.size(1), "bmm_sparse: 'self.size(2)' and 'mat2.size(1)' must match");
  at::native::resize_output(out, {self.size(0), self.size(1), mat2.size(2)});
  const Tensor a = self.coalesce(), indices = a._indices();
  const Tensor batch = indices.select(0, 0), rows = indices.select(0, 1).add(batch, self.size(1));
  const Tensor dense = out.is_contiguous() ? out : at::empty(out.sizes(), out.options());
  product(row_begins(rows, self.size(0) * self.size(1)), indices.select(0, 2).add(batch, self.size(2)),
          a._values(), mat2.reshape({-1, mat2.size(2)}), dense.view({-1, mat2.size(2)}), false);
  if (!dense.is_same(out)) out.copy_(dense);
  return out;
}

Tensor bmm(const Tensor& self, const Tensor& mat2) {
  Tensor out = at::empty({0}, mat2.options());
  return bmm_out(self, mat2, out);
}

// beta * self + alpha * (mat1 @ mat2) at the elements of self, a CSR matrix.
Tensor& sampled_addmm_out(const Tensor& self, const Tensor& mat1, const Tensor& mat2, const Scalar& beta,
                          const Scalar& alpha, Tensor& out) {
  TORCH_CHECK(self.layout() == at::kSparseCsr && out.layout() == at::kSparseCsr,
              "sampled_addmm: Expected self and out to have sparse csr layout");
  TORCH_CHECK(mat1.layout() == at::kStrided && mat2.layout() == at::kStrided,
              "sampled_addmm: Expected mat1 and mat2 to be dense");
  TORCH_CHECK(self.dim() == 2 && mat1.dim() == 2 && mat2.dim() == 2 && mat1.size(1) == mat2.size(0) &&
                  self.size(0) == mat1.size(0) && self.size(1) == mat2.size(1),
              "sampled_addmm: the shapes of self, mat1 and mat2 do not fit: ", self.sizes(), ", ",
              mat1.sizes(), ", ", mat2.sizes());
  if (!out.is_same(self)) out.resize_as_sparse_(self).copy_(self);
  const Tensor row =
      at::_convert_indices_from_csr_to_coo(self.crow_indices(), self.col_indices()).select(0, 0);
  const Tensor sums = mat1.index_select(0, row).mul(mat2.t().index_select(0, self.col_indices())).sum(1);
  out.values().mul_(beta).add_(sums, alpha);
  return out;
}

Tensor sampled_addmm(const Tensor& self, const Tensor& mat1, const Tensor& mat2, const Scalar& beta,
                     const Scalar& alpha) {
  Tensor out = self.clone();
  return sampled_addmm_out(out, mat1, mat2, beta, alpha, out);
}

}  // namespace

TORCH_LIBRARY_IMPL(aten, SparsePrivateUse1, m) {
  m.impl("addmm", addmm);
  m.impl("addmm_", addmm_);
  m.impl("addmm.out", addmm_out);
  m.impl("mm.out", mm_out);
  m.impl("bmm", bmm);
  m.impl("bmm.out", bmm_out);
}

TORCH_LIBRARY_IMPL(aten, SparseCsrPrivateUse1, m) {
  m.impl("addmm", addmm);
  m.impl("addmm_", addmm_);
  m.impl("addmm.out", addmm_out);
  m.impl("mm", csr_mm);
  m.impl("mm.out", mm_out);
  m.impl("addmv.out", addmv_out);
  m.impl("sparse_sampled_addmm", sampled_addmm);
  m.impl("sparse_sampled_addmm.out", sampled_addmm_out);
}

}  // namespace dlb::sparse
