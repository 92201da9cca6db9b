// Products of sparse matrices of any layout with dense ones, and with each other.
#include <ATen/SparseCsrTensorUtils.h>
#include <ATen/native/Resize.h>
#include <ATen/ops/_sparse_csr_tensor_unsafe.h>
#include <ATen/ops/add.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/unique_consecutive.h>
#include <torch/library.h>

#include "ops/sparse/parts.h"

namespace dlb::sparse {
namespace {

using at::Tensor;
using c10::Scalar;

bool is_dense(const Tensor& t) {
  return t.layout() == at::kStrided;
}

void check_matrices(const Tensor& a, const Tensor& b, const char* op) {
  TORCH_CHECK(a.dim() == 2, op, ": mat1 must be a matrix, got ", a.dim(), "-D tensor");
  TORCH_CHECK(b.dim() == 2, op, ": mat2 must be a matrix, got ", b.dim(), "-D tensor");
  TORCH_CHECK(a.size(1) == b.size(0), op, ": mat1 and mat2 shapes cannot be multiplied (", a.size(0), "x",
              a.size(1), " and ", b.size(0), "x", b.size(1), ")");
  TORCH_CHECK(a.scalar_type() == b.scalar_type(), op, ": expected mat1 and mat2 of one dtype, but they are ",
              a.scalar_type(), " and ", b.scalar_type());
  TORCH_CHECK(a.device() == b.device(), op, ": expected mat1 and mat2 on one device, but they are on ",
              a.device(), " and ", b.device());
}

// Integers refuse factors that are not integers.
void check_factors(at::ScalarType type, const Scalar& beta, const Scalar& alpha) {
  TORCH_CHECK(at::isFloatingType(type) || at::isComplexType(type) ||
                  (alpha.isIntegral(true) && beta.isIntegral(true)),
              "For integral input tensors, argument alpha must not be a floating point number.");
}

// c = beta * addend, to which a product is then added; the addend may be c. False, with c left alone, where
// beta is 0: as in dense products the addend does not count then, not even its NaN.
bool begin_sum(const Tensor& addend, const Scalar& beta, const Tensor& c) {
  if (beta.equal(0)) return false;
  if (!c.is_same(addend)) c.copy_(addend);
  if (!beta.equal(1)) c.mul_(beta);
  return true;
}

Rows scaled(const Rows& a, const Scalar& alpha) {
  return alpha.equal(1) ? a : Rows{a.begin, a.column, a.values.mul(alpha)};
}

// beta * addend + alpha * a @ b of sparse a and b, COO unless the addend is dense.
Tensor sparse_sum(const Tensor& addend, const Tensor& a, const Tensor& b, const Scalar& beta,
                  const Scalar& alpha) {
  const Tensor product = sparse_product(as_coo(a), as_coo(b));
  if (beta.equal(0)) return product.mul(alpha);  // nothing of the addend counts then, not even NaN
  const Tensor scaled = (is_dense(addend) ? addend.expand(product.sizes()) : as_coo(addend)).mul(beta);
  return at::add(scaled, product, alpha);
}

Tensor& addmm_out(const Tensor& self, const Tensor& mat1, const Tensor& mat2, const Scalar& beta,
                  const Scalar& alpha, Tensor& out) {
  check_matrices(mat1, mat2, "addmm");
  TORCH_CHECK(self.scalar_type() == mat1.scalar_type() && out.scalar_type() == mat1.scalar_type(),
              "addmm: expected all tensors of dtype ", mat1.scalar_type());
  check_factors(mat1.scalar_type(), beta, alpha);
  if (!is_dense(mat1) && !is_dense(mat2)) {
    const Tensor sum = sparse_sum(self, mat1, mat2, beta, alpha);
    return write(is_dense(sum) ? sum : as_layout_of(sum, out), out);
  }
  TORCH_CHECK(is_dense(self) && is_dense(out),
              "addmm: the sum with a product of a sparse and a dense matrix is dense, but self is ",
              self.layout(), " and the result ", out.layout());
  const std::vector<int64_t> sizes{mat1.size(0), mat2.size(1)};
  const Tensor addend = out.is_same(self) ? out : self.expand(sizes);
  TORCH_CHECK(addend.sizes() == sizes, "addmm: expected self of shape ", at::IntArrayRef(sizes),
              " to be added to in place, but it has ", addend.sizes());
  at::native::resize_output(out, sizes);
  const bool lazy = out.is_conj() || out.is_neg();
  const Tensor c = lazy ? at::empty(sizes, out.options()) : out;
  const bool adds = begin_sum(addend, beta, c);
  if (is_dense(mat2))
    product(scaled(rows_of(mat1), alpha), mat2, c, adds);
  else
    product(scaled(rows_of(mat2.t()), alpha), mat1.t(), c.t(), adds);
  return lazy ? out.copy_(c) : out;
}

Tensor addmm(const Tensor& self, const Tensor& mat1, const Tensor& mat2, const Scalar& beta,
             const Scalar& alpha) {
  if (is_dense(mat1) || is_dense(mat2)) {
    Tensor out = at::empty({0}, self.options().layout(at::kStrided));
    return addmm_out(self, mat1, mat2, beta, alpha, out);
  }
  check_matrices(mat1, mat2, "addmm");
  check_factors(mat1.scalar_type(), beta, alpha);
  const Tensor sum = sparse_sum(self, mat1, mat2, beta, alpha);
  return is_dense(sum) ? sum : as_layout_of(sum, self);
}

Tensor& addmm_(Tensor& self, const Tensor& mat1, const Tensor& mat2, const Scalar& beta,
               const Scalar& alpha) {
  return addmm_out(self, mat1, mat2, beta, alpha, self);
}

Tensor& mm_out(const Tensor& mat1, const Tensor& mat2, Tensor& out) {
  check_matrices(mat1, mat2, "mm");
  if (is_dense(out)) at::native::resize_output(out, {mat1.size(0), mat2.size(1)});
  return addmm_out(out, mat1, mat2, 0, 1, out);
}

// The product of two compressed matrices is a CSR matrix, as in PyTorch.
Tensor csr_mm(const Tensor& mat1, const Tensor& mat2) {
  if (!is_dense(mat1) && !is_dense(mat2)) {
    check_matrices(mat1, mat2, "mm");
    return sparse_product(as_coo(mat1), as_coo(mat2)).to_sparse_csr();
  }
  Tensor out = at::empty({0}, mat1.options().layout(at::kStrided));
  return mm_out(mat1, mat2, out);
}

Tensor& addmv_out(const Tensor& self, const Tensor& matrix, const Tensor& vector, const Scalar& beta,
                  const Scalar& alpha, Tensor& out) {
  TORCH_CHECK(vector.dim() == 1, "addmv: expected a vector, got a ", vector.dim(), "-D tensor");
  TORCH_CHECK(is_dense(vector) && !is_dense(matrix),
              "addmv: expected a sparse matrix and a dense vector, got ", matrix.layout(), " and ",
              vector.layout());
  const Tensor column = vector.unsqueeze(1);
  check_matrices(matrix, column, "addmv");
  check_factors(matrix.scalar_type(), beta, alpha);
  at::native::resize_output(out, {matrix.size(0)});
  const bool adds = begin_sum(out.is_same(self) ? out : self.expand({matrix.size(0)}), beta, out);
  product(scaled(rows_of(matrix), alpha), column, out.unsqueeze(1), adds);
  return out;
}

Tensor& bmm_out(const Tensor& self, const Tensor& mat2, Tensor& out) {
  TORCH_CHECK(!is_dense(self) && self.dim() == 3 && mat2.dim() == 3 && is_dense(mat2),
              "bmm_sparse: expected a sparse batch of matrices and a dense one");
  TORCH_CHECK(self.size(0) == mat2.size(0), "bmm_sparse: 'self.size(0)' and 'mat2.size(0)' must match");
  TORCH_CHECK(self.size(2) == mat2.size(1), "bmm_sparse: 'self.size(2)' and 'mat2.size(1)' must match");
  TORCH_CHECK(self.scalar_type() == mat2.scalar_type(), "bmm_sparse: expected self and mat2 of one dtype, ",
              "but they are ", self.scalar_type(), " and ", mat2.scalar_type());
  at::native::resize_output(out, {self.size(0), self.size(1), mat2.size(2)});
  const Tensor dense = out.is_contiguous() ? out : at::empty(out.sizes(), out.options());
  if (out.numel() > 0)
    product(rows_of(self), mat2.reshape({-1, mat2.size(2)}), dense.view({-1, mat2.size(2)}), false);
  if (!dense.is_same(out)) out.copy_(dense);
  return out;
}

Tensor bmm(const Tensor& self, const Tensor& mat2) {
  Tensor out = at::empty({0}, mat2.options());
  return bmm_out(self, mat2, out);
}

// A CSR matrix repeated for each element of the batch.
Tensor repeated(const Tensor& matrix, at::IntArrayRef batch) {
  if (batch.empty() || matrix.dim() != 2) return matrix;
  const auto wide = [&](const Tensor& t) {
    std::vector<int64_t> sizes = batch.vec();
    sizes.push_back(t.size(0));
    return t.expand(sizes).contiguous();
  };
  std::vector<int64_t> sizes = batch.vec();
  sizes.insert(sizes.end(), matrix.sizes().begin(), matrix.sizes().end());
  return at::_sparse_csr_tensor_unsafe(wide(matrix.crow_indices()), wide(matrix.col_indices()),
                                       wide(matrix.values()), sizes, matrix.options());
}

// beta * self + alpha * (mat1 @ mat2) at the elements of self, a CSR matrix or a batch of them.
Tensor& sampled_addmm_out(const Tensor& addend, const Tensor& mat1, const Tensor& mat2, const Scalar& beta,
                          const Scalar& alpha, Tensor& out) {
  TORCH_CHECK(addend.layout() == at::kSparseCsr && out.layout() == at::kSparseCsr,
              "sampled_addmm: Expected self and out to have sparse csr layout");
  TORCH_CHECK(is_dense(mat1) && is_dense(mat2), "sampled_addmm: Expected mat1 and mat2 to be dense");
  const auto batch = [](const Tensor& t) { return t.sizes().slice(0, static_cast<size_t>(t.dim()) - 2); };
  TORCH_CHECK(mat1.dim() >= 2 && mat2.dim() >= 2,
              "sampled_addmm: Expected mat1 and mat2 to be matrices, got ", mat1.dim(), "-D and ", mat2.dim(),
              "-D tensors");
  const Tensor self = repeated(addend, batch(mat1));
  TORCH_CHECK(batch(mat1) == batch(mat2) && batch(mat1) == batch(self) && mat1.size(-1) == mat2.size(-2) &&
                  self.size(-2) == mat1.size(-2) && self.size(-1) == mat2.size(-1),
              "sampled_addmm: the shapes of self, mat1 and mat2 do not fit: ", self.sizes(), ", ",
              mat1.sizes(), ", ", mat2.sizes());
  TORCH_CHECK(mat1.scalar_type() == mat2.scalar_type() && self.scalar_type() == mat1.scalar_type(),
              "sampled_addmm: Expected mat1, mat2 and self to have the same dtype, but got ",
              mat1.scalar_type(), ", ", mat2.scalar_type(), " and ", self.scalar_type());
  if (!out.is_same(self)) out.resize_as_sparse_(self).copy_(self);
  Tensor values = out.values();
  if (values.numel() == 0) return out;
  const Rows at = rows_of(self);
  const Tensor row = rows_of_elements(at.begin, at.column.size(0));
  const Tensor sums = mat1.flatten(0, -2)
                          .index_select(0, row)
                          .mul(mat2.mT().flatten(0, -2).index_select(0, at.column))
                          .sum(1)
                          .view(values.sizes());
  if (beta.equal(0))
    values.copy_(sums.mul(alpha));
  else
    values.mul_(beta).add_(sums, alpha);
  return out;
}

Tensor sampled_addmm(const Tensor& self, const Tensor& mat1, const Tensor& mat2, const Scalar& beta,
                     const Scalar& alpha) {
  Tensor out = at::empty({0, 0}, self.options());
  return sampled_addmm_out(self, mat1, mat2, beta, alpha, out);
}

// The rows of a product that are not zero, as a COO tensor of one sparse and one dense dimension. Waits for
// the device, which says how many there are.
Tensor hspmm(const Tensor& mat1, const Tensor& mat2) {
  check_matrices(mat1, mat2, "hspmm");
  TORCH_CHECK(mat1.is_sparse() && mat1.sparse_dim() == 2 && mat1.dense_dim() == 0 && is_dense(mat2),
              "hspmm: expected a COO matrix mat1 and a dense matrix mat2, got ", mat1.layout(), " and ",
              mat2.layout());
  const Tensor a = mat1.coalesce();
  const auto [rows, group, counts] =
      at::unique_consecutive(a._indices().select(0, 0), /*return_inverse=*/false, /*return_counts=*/true);
  const Tensor values = at::empty({rows.size(0), mat2.size(1)}, mat2.options());
  product({at::constant_pad_nd(counts.cumsum(0), {1, 0}), a._indices().select(0, 1), a._values()}, mat2,
          values, false);
  return make(rows.unsqueeze(0), values, {mat1.size(0), mat2.size(1)}, true);
}

Tensor& hspmm_out(const Tensor& mat1, const Tensor& mat2, Tensor& out) {
  return write(hspmm(mat1, mat2), out);
}

// beta * self + alpha * mat1 @ mat2 as a COO matrix, with all elements of the rows of mat1 that are not zero.
Tensor& sspaddmm_out(const Tensor& self, const Tensor& mat1, const Tensor& mat2, const Scalar& beta,
                     const Scalar& alpha, Tensor& out) {
  TORCH_CHECK(self.is_sparse() && self.sparse_dim() == 2 && self.dense_dim() == 0,
              "sspaddmm: expected a COO matrix, got ", self.layout());
  const Tensor product = hspmm(mat1, mat2), rows = product._indices().select(0, 0);
  TORCH_CHECK(self.sizes() == product.sizes(), "sspaddmm: expected self of shape ", product.sizes(),
              ", but it has ", self.sizes());
  const Tensor columns = at::arange(mat2.size(1), rows.options());
  const Tensor indices = at::stack({rows.repeat_interleave(mat2.size(1)), columns.repeat({rows.size(0)})});
  return write(
      make(at::cat({self._indices(), indices}, 1),
           at::cat({self._values().mul(beta), product._values().mul(alpha).flatten()}), self.sizes(), false),
      out);
}

}  // namespace

TORCH_LIBRARY_IMPL(aten, SparsePrivateUse1, m) {
  m.impl("addmm", addmm);
  m.impl("addmm_", addmm_);
  m.impl("addmm.out", addmm_out);
  m.impl("mm.out", mm_out);
  m.impl("bmm", bmm);
  m.impl("bmm.out", bmm_out);
  m.impl("hspmm", hspmm);
  m.impl("hspmm.out", hspmm_out);
  m.impl("sspaddmm.out", sspaddmm_out);
}

TORCH_LIBRARY_IMPL(aten, SparseCsrPrivateUse1, m) {
  m.impl("addmm", addmm);
  m.impl("addmm_", addmm_);
  m.impl("addmm.out", addmm_out);
  m.impl("mm", csr_mm);
  m.impl("mm.out", mm_out);
  m.impl("addmv.out", addmv_out);
  m.impl("bmm", bmm);
  m.impl("bmm.out", bmm_out);
  m.impl("sparse_sampled_addmm", sampled_addmm);
  m.impl("sparse_sampled_addmm.out", sampled_addmm_out);
}

}  // namespace dlb::sparse
