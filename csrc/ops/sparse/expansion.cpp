// Products of two sparse matrices: each element of the first is expanded to the row of the second that it is
// multiplied with, and products of one place are added up as coalesce() does. N. Bell, S. Dalton, L. Olson,
// "Exposing fine-grained parallelism in algebraic multigrid methods", SIAM J. Sci. Comput. 34 (2012), C123.
#include <ATen/ops/stack.h>
#include <torch/library.h>

#include "ops/sparse/parts.h"

namespace dlb::sparse {
namespace {

using at::Tensor;

void check_pair(const Tensor& a, const Tensor& b) {
  for (const Tensor* t : {&a, &b})
    TORCH_CHECK(t->is_sparse() && t->sparse_dim() == 2 && t->dense_dim() == 0,
                "sparse matmul: expected sparse matrices with two sparse dimensions and no dense one, found ",
                t->sparse_dim(), " sparse and ", t->dense_dim(), " dense ones");
  TORCH_CHECK(a.size(1) == b.size(0), "mat1 and mat2 shapes cannot be multiplied (", a.size(0), "x",
              a.size(1), " and ", b.size(0), "x", b.size(1), ")");
  TORCH_CHECK(a.scalar_type() == b.scalar_type(), "mat1 dtype ", a.scalar_type(),
              " does not match mat2 dtype ", b.scalar_type());
  TORCH_CHECK(a.device() == b.device(), "sparse matmul: expected matrices on one device, but they are on ",
              a.device(), " and ", b.device());
  TORCH_CHECK_NOT_IMPLEMENTED(a.is_floating_point() || a.is_complex(),
                              "\"sparse_matmul\" not implemented for '", c10::toString(a.scalar_type()), "'");
}

}  // namespace

Tensor sparse_product(const Tensor& self, const Tensor& other) {
  check_pair(self, other);
  const Tensor a = self.coalesce(), b = other.coalesce();
  const Tensor rows = a._indices().select(0, 0), inner = a._indices().select(0, 1);
  const std::vector<int64_t> sizes{a.size(0), b.size(1)};
  if (a._nnz() == 0 || b._nnz() == 0)
    return make(a._indices().narrow(1, 0, 0), a._values().narrow(0, 0, 0), sizes, true);
  const Tensor begins = row_begins(b._indices().select(0, 0), b.size(0));
  const auto [of_a, of_b] = expand(begins, inner);
  const Tensor columns = b._indices().select(0, 1).index_select(0, of_b);
  const Tensor values = a._values().index_select(0, of_a).mul(b._values().index_select(0, of_b));
  return coalesce(make(at::stack({rows.index_select(0, of_a), columns}), values, sizes, false));
}

TORCH_LIBRARY_IMPL(aten, SparsePrivateUse1, m) {
  m.impl("_sparse_sparse_matmul", sparse_product);
}

}  // namespace dlb::sparse
