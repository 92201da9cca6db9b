// Sparse CSR tensors: what they are made of and converted to. As for COO, ops that only handle indices and
// values are PyTorch's own for the CPU.
#include <ATen/ops/_convert_indices_from_coo_to_csr_meta.h>
#include <ATen/ops/_convert_indices_from_csr_to_coo.h>
#include <ATen/ops/_convert_indices_from_csr_to_coo_meta.h>
#include <ATen/ops/_sparse_compressed_tensor_unsafe.h>
#include <ATen/ops/_to_sparse_bsc_native.h>
#include <ATen/ops/_to_sparse_bsr_native.h>
#include <ATen/ops/_to_sparse_csc_native.h>
#include <ATen/ops/_to_sparse_csr_native.h>
#include <ATen/ops/add.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/result_type.h>
#include <ATen/ops/searchsorted.h>
#include <torch/library.h>

#include "ops/common/cpu_kernels.h"
#include "ops/common/structured.h"
#include "ops/sparse/parts.h"

namespace dlb::sparse {
namespace {

using Cpu = CpuKernels<c10::DispatchKey::SparseCsrCPU>;

using at::Tensor;

constexpr const char* kOfTheCpu[] = {
    "_conj_physical",
    "_nnz",
    "_to_dense",
    "_to_sparse",
    "_to_sparse.sparse_dim",
    "_to_sparse_bsc",
    "_to_sparse_bsr",
    "_to_sparse_csr",
    "abs",
    "abs.out",
    "abs_",
    "angle",
    "angle.out",
    "asin",
    "asin.out",
    "asin_",
    "asinh",
    "asinh.out",
    "asinh_",
    "atan",
    "atan.out",
    "atan_",
    "atanh",
    "atanh.out",
    "atanh_",
    "ccol_indices",
    "ceil",
    "ceil.out",
    "ceil_",
    "clone",
    "col_indices",
    "conj_physical.out",
    "conj_physical_",
    "copy_",
    "crow_indices",
    "deg2rad",
    "deg2rad.out",
    "deg2rad_",
    "dense_dim",
    "empty.memory_format",
    "empty_like",
    "erf",
    "erf.out",
    "erf_",
    "erfinv",
    "erfinv.out",
    "erfinv_",
    "expm1",
    "expm1.out",
    "expm1_",
    "fill_.Scalar",
    "floor",
    "floor.out",
    "floor_",
    "frac",
    "frac.out",
    "frac_",
    "isinf",
    "isnan",
    "isneginf",
    "isneginf.out",
    "isposinf",
    "isposinf.out",
    "log1p",
    "log1p.out",
    "log1p_",
    "mul.Scalar",
    "mul_.Scalar",
    "neg",
    "neg.out",
    "neg_",
    "normal_",
    "rad2deg",
    "rad2deg.out",
    "rad2deg_",
    "relu",
    "relu_",
    "resize_",
    "resize_as_sparse_",
    "round",
    "round.out",
    "round_",
    "row_indices",
    "select.int",
    "sgn",
    "sgn.out",
    "sgn_",
    "sign",
    "sign.out",
    "sign_",
    "signbit",
    "signbit.out",
    "sin",
    "sin.out",
    "sin_",
    "sinh",
    "sinh.out",
    "sinh_",
    "sparse_dim",
    "sqrt",
    "sqrt.out",
    "sqrt_",
    "sum",
    "tan",
    "tan.out",
    "tan_",
    "tanh",
    "tanh.out",
    "tanh_",
    "threshold_backward",
    "threshold_backward.grad_input",
    "trunc",
    "trunc.out",
    "trunc_",
    "values",
    "zero_",
};

// Sorted row indices to the place where each row begins.
Tensor& coo_to_csr(const Tensor& rows, int64_t size, bool out_int32, Tensor& out) {
  OutOp<at::meta::structured__convert_indices_from_coo_to_csr> op(out);
  op.meta(rows, size, out_int32);
  op.result().copy_(row_begins(rows, size));
  op.finish();
  return out;
}

// The other way: [2, nnz], rows and columns, or columns and rows where `transpose`; for batches [dim, nnz of
// all].
Tensor& csr_to_coo(const Tensor& begins, const Tensor& columns, bool out_int32, bool transpose, Tensor& out) {
  OutOp<at::meta::structured__convert_indices_from_csr_to_coo> op(out);
  op.meta(begins, columns, out_int32, transpose);
  Tensor result = op.result();
  const int64_t batch_dims = begins.dim() - 1, nnz = columns.size(-1), rows = begins.size(-1) - 1;
  const Tensor flat_begins = begins.reshape({-1, rows + 1}).contiguous();
  const int64_t batches = flat_begins.size(0);
  if (result.numel() > 0) {
    const Tensor places = at::arange(nnz, begins.options()).expand({batches, nnz}).contiguous();
    const Tensor ends = flat_begins.narrow(1, 1, rows).contiguous();
    const Tensor row = at::searchsorted(ends, places, /*out_int32=*/false, /*right=*/true);
    result.select(0, batch_dims + (transpose ? 1 : 0)).copy_(row.view({-1}));
    result.select(0, batch_dims + (transpose ? 0 : 1)).copy_(columns.reshape({-1}));
    if (batch_dims)
      result.narrow(0, 0, batch_dims)
          .copy_(unflatten(at::arange(batches, begins.options().dtype(at::kLong)).repeat_interleave(nnz),
                           begins.sizes().slice(0, static_cast<size_t>(batch_dims)), batch_dims));
  }
  op.finish();
  return out;
}

// The values of `self`, dense or sparse, at the elements of `mask`.
Tensor sparse_mask(const Tensor& self, const Tensor& mask) {
  TORCH_CHECK(mask.layout() == at::kSparseCsr, "sparse_mask(): expected a mask in CSR layout, got ",
              mask.layout());
  TORCH_CHECK(self.sizes() == mask.sizes(), "sparse_mask(): operands have incompatible sizes; self has size ",
              self.sizes(), " but mask has size ", mask.sizes());
  TORCH_CHECK_NOT_IMPLEMENTED(mask.dim() == 2,
                              "sparse_mask(): batches of CSR matrices are not supported on ocl");
  const Tensor dense = self.layout() == at::kStrided ? self : self.to_dense();
  const Tensor columns = mask.col_indices();
  const Tensor rows = at::_convert_indices_from_csr_to_coo(mask.crow_indices(), columns).select(0, 0);
  const c10::List<std::optional<Tensor>> places({rows.to(at::kLong), columns.to(at::kLong)});
  return at::_sparse_compressed_tensor_unsafe(mask.crow_indices(), columns, dense.index(places), mask.sizes(),
                                              self.options().layout(at::kSparseCsr));
}

// Sums and products by elements are those of COO tensors.
Tensor as_coo(const Tensor& t) {
  TORCH_CHECK_NOT_IMPLEMENTED(
      t.layout() == at::kSparseCsr || t.layout() == at::kStrided || t.layout() == at::kSparse,
      "of sparse compressed tensors only CSR matrices have sums and products on ocl, not ", t.layout(),
      ": to_sparse() gives a COO tensor");
  TORCH_CHECK_NOT_IMPLEMENTED(t.layout() != at::kSparseCsr || t.dim() == 2,
                              "batches of CSR matrices have no sums and products on ocl");
  return t.layout() == at::kSparseCsr ? t.to_sparse() : t;
}
Tensor as_csr(const Tensor& t) {
  return t.coalesce().to_sparse_csr();
}

Tensor mul(const Tensor& self, const Tensor& other) {
  const bool swapped = self.dim() == 0;
  const Tensor &matrix = swapped ? other : self, &number = swapped ? self : other;
  if (matrix.layout() == at::kSparseCsr && number.dim() == 0)
    return at::_sparse_compressed_tensor_unsafe(matrix.crow_indices(), matrix.col_indices(),
                                                matrix.values().mul(number), matrix.sizes(),
                                                matrix.options().dtype(at::result_type(self, other)));
  return as_csr(as_coo(self).mul(as_coo(other)));
}

Tensor csr_add(const Tensor& self, const Tensor& other, const c10::Scalar& alpha) {
  TORCH_CHECK(self.layout() != at::kSparseCsr || other.layout() == at::kSparseCsr,
              "add(sparse_csr, dense) is not supported. Use add(dense, sparse_csr) instead.");
  const Tensor sum = at::add(as_coo(self), as_coo(other), alpha);
  return sum.is_sparse() ? as_csr(sum) : sum;
}

Tensor& csr_add_(Tensor& self, const Tensor& other, const c10::Scalar& alpha) {
  if (self.layout() == at::kStrided) return self.add_(as_coo(other), alpha);
  const Tensor sum = csr_add(self, other, alpha);
  return self.resize_as_sparse_(sum).copy_(sum);
}

}  // namespace

TORCH_LIBRARY_IMPL(aten, SparseCsrPrivateUse1, m) {
  for (const char* name : kOfTheCpu)
    m.impl(name, torch::CppFunction::makeFromBoxedFunction<&Cpu::as_it_is>());
  m.impl("add.Tensor", csr_add);
  m.impl("add_.Tensor", csr_add_);
  m.impl("mul.Tensor", mul);
  m.impl("sparse_mask", sparse_mask);
}

TORCH_LIBRARY_IMPL(_, SparseCsrPrivateUse1, m) {
  m.fallback(torch::CppFunction::makeFromBoxedFunction<&Cpu::on_copies>());
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("_convert_indices_from_coo_to_csr.out", coo_to_csr);
  m.impl("_convert_indices_from_csr_to_coo.out", csr_to_coo);
  m.impl("_to_sparse_csr", at::native::dense_to_sparse_csr);
  m.impl("_to_sparse_csc", at::native::dense_to_sparse_csc);
  m.impl("_to_sparse_bsr", at::native::dense_to_sparse_bsr);
  m.impl("_to_sparse_bsc", at::native::dense_to_sparse_bsc);
}

}  // namespace dlb::sparse
