// torch.sparse.mm with a reduce: products of a CSR and a dense matrix whose sums over a row's elements are
// means or extrema instead, made of other ops, and their gradients.
#include <ATen/ops/_convert_indices_from_csr_to_coo.h>
#include <ATen/ops/_sparse_compressed_tensor_unsafe.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <torch/library.h>

#include "ops/sparse/parts.h"

namespace dlb::sparse {
namespace {

using at::Tensor;

enum class Reduce { kSum, kMean, kMax, kMin };

Reduce reduce_of(c10::string_view name) {
  if (name == "sum") return Reduce::kSum;
  if (name == "mean") return Reduce::kMean;
  if (name == "amax") return Reduce::kMax;
  TORCH_CHECK(name == "amin", "torch.sparse.mm: reduce must be sum, mean, amax or amin, not ", name);
  return Reduce::kMin;
}

bool is_extremum(Reduce reduce) {
  return reduce == Reduce::kMax || reduce == Reduce::kMin;
}

// The elements of a CSR matrix and the rows of the dense one that they are multiplied with.
struct Elements {
  Tensor row, column, values, factors;  // [nnz] each; factors [nnz, n]

  Elements(const Tensor& matrix, const Tensor& dense)
      : row(at::_convert_indices_from_csr_to_coo(matrix.crow_indices(), matrix.col_indices())
                .select(0, 0)
                .to(at::kLong)),
        column(matrix.col_indices().to(at::kLong)),
        values(matrix.values()),
        factors(dense.index_select(0, column)) {}
};

// How many elements each row has, empty ones 1: [rows, 1] of `dtype`.
Tensor counts_of(const Tensor& matrix, at::ScalarType dtype) {
  const Tensor begins = matrix.crow_indices();
  return begins.narrow(0, 1, matrix.size(0))
      .sub(begins.narrow(0, 0, matrix.size(0)))
      .clamp_min_(1)
      .unsqueeze(1)
      .to(dtype);
}

void check(const Tensor& self, const Tensor& other) {
  TORCH_CHECK(self.layout() == at::kSparseCsr && other.layout() == at::kStrided,
              "torch.sparse.mm with a reduce: expected a CSR and a dense matrix, got ", self.layout(),
              " and ", other.layout());
  TORCH_CHECK(self.dim() == 2 && other.dim() == 2 && self.size(1) == other.size(0),
              "torch.sparse.mm: shapes ", self.sizes(), " and ", other.sizes(), " cannot be multiplied");
  TORCH_CHECK(self.scalar_type() == other.scalar_type(),
              "torch.sparse.mm: expected matrices of one dtype, got ", self.scalar_type(), " and ",
              other.scalar_type());
}

// The result, and for extrema which element gave it, where none did their number.
std::tuple<Tensor, Tensor> forward(const Tensor& self, const Tensor& other, c10::string_view name) {
  check(self, other);
  const Reduce reduce = reduce_of(name);
  const auto options = self.col_indices().options().dtype(at::kLong);
  if (!is_extremum(reduce)) {
    const Tensor sums = at::mm(self, other);
    return {reduce == Reduce::kMean ? sums.div(counts_of(self, sums.scalar_type())) : sums,
            at::empty({0}, options)};
  }
  const int64_t count = self._nnz();
  const Tensor zeros = at::zeros({self.size(0), other.size(1)}, other.options()),
               none = at::full(zeros.sizes(), count, options);
  if (count == 0 || zeros.numel() == 0) return {zeros, none};
  const Elements e(self, other);
  const Tensor products = e.factors.mul(e.values.unsqueeze(1));
  const Tensor index = e.row.unsqueeze(1).expand_as(products);
  const Tensor out = zeros.scatter_reduce(0, index, products, name, /*include_self=*/false);
  const Tensor places = at::arange(count, options).unsqueeze(1).expand_as(products);
  const Tensor candidates = at::where(products.eq(out.index_select(0, e.row)), places, count);
  return {out, none.scatter_reduce(0, index, candidates, "amin")};
}

// Gradients of the elements' values [nnz] and of `other`.
std::tuple<Tensor, Tensor> of_sums(const Tensor& self, const Tensor& grad, const Tensor& other) {
  const Elements e(self, other);
  const Tensor of_values = grad.index_select(0, e.row).mul(e.factors).sum(1);
  return {of_values, at::mm(self.to_sparse().t(), grad)};
}

std::tuple<Tensor, Tensor> of_extrema(const Tensor& self, const Tensor& grad, const Tensor& other,
                                      const Tensor& arg) {
  const Tensor values = self.values(), from = arg.clamp_max(self._nnz() - 1).flatten();
  const Tensor used = grad.masked_fill(arg.eq(self._nnz()), 0);
  const Tensor column = self.col_indices().to(at::kLong).index_select(0, from).view(arg.sizes());
  const Tensor of_values =
      at::zeros_like(values).index_add(0, from, used.mul(other.gather(0, column)).flatten());
  const Tensor of_factors = used.mul(values.index_select(0, from).view(arg.sizes()));
  return {of_values, at::zeros_like(other).scatter_add(0, column, of_factors)};
}

std::tuple<Tensor, Tensor> backward(const Tensor& self, const Tensor& grad_, const Tensor& other,
                                    c10::string_view name, const Tensor& arg, std::array<bool, 2> mask) {
  const Reduce reduce = reduce_of(name);
  const Tensor grad = reduce == Reduce::kMean ? grad_.div(counts_of(self, grad_.scalar_type())) : grad_;
  Tensor of_values = at::zeros_like(self.values()), of_other = at::zeros_like(other);
  if (self._nnz() > 0 && grad.numel() > 0)
    std::tie(of_values, of_other) =
        is_extremum(reduce) ? of_extrema(self, grad, other, arg) : of_sums(self, grad, other);
  const auto as_self = [&] {
    return at::_sparse_compressed_tensor_unsafe(self.crow_indices(), self.col_indices(), of_values,
                                                self.sizes(), self.options());
  };
  return {mask[0] ? as_self() : Tensor(), mask[1] ? of_other : Tensor()};
}

}  // namespace

TORCH_LIBRARY_IMPL(aten, SparseCsrPrivateUse1, m) {
  m.impl("_sparse_mm_reduce_impl", forward);
  m.impl("_sparse_mm_reduce_impl_backward", backward);
}

}  // namespace dlb::sparse
