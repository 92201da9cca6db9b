// Sparse compressed tensors (CSR, CSC, BSR, BSC): what they are made of, and sums. As for COO, ops that only
// handle indices and values are PyTorch's own for the CPU.
#include <ATen/SparseCsrTensorUtils.h>
#include <ATen/ops/_convert_indices_from_coo_to_csr_meta.h>
#include <ATen/ops/_convert_indices_from_csr_to_coo_meta.h>
#include <ATen/ops/_sparse_compressed_tensor_unsafe.h>
#include <ATen/ops/_to_sparse_bsc_native.h>
#include <ATen/ops/_to_sparse_bsr_native.h>
#include <ATen/ops/_to_sparse_csc_native.h>
#include <ATen/ops/_to_sparse_csr_native.h>
#include <ATen/ops/add.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/searchsorted.h>
#include <ATen/ops/sparse_mask_native.h>
#include <torch/library.h>

#include "ops/common/cpu_kernels.h"
#include "ops/common/structured.h"
#include "ops/sparse/parts.h"

namespace dlb::sparse {
namespace {

using CpuCsr = CpuKernels<c10::DispatchKey::SparseCsrCPU>;

using at::Tensor;

constexpr const char* kCpuCsrOps[] = {
    "_conj_physical",
    "_nnz",
    "_to_dense",
    "_to_sparse.sparse_dim",
    "_to_sparse_csc",
    "_to_sparse_csr",
    "abs",
    "abs.out",
    "abs_",
    "add.Tensor",
    "add_.Tensor",
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
    "mul.Tensor",
    "mul.out",
    "mul_.Scalar",
    "mul_.Tensor",
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
    "select_copy.int",
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
    "sum.dim_IntList",
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

// A dense tensor's values at the elements of `mask`. PyTorch's own kernel, for other tensors, makes a dense
// mask.
Tensor mask_csr(const Tensor& self, const Tensor& mask) {
  if (self.layout() != at::kStrided || self.sizes() != mask.sizes() ||
      !at::sparse_csr::is_sparse_compressed(mask))
    return at::native::sparse_mask_sparse_compressed(self, mask);
  const auto [compressed, plain] = at::sparse_csr::getCompressedPlainIndices(mask);
  const Tensor values = self.index(index_list(as_coo(mask)._indices())).view(mask.values().sizes());
  return at::_sparse_compressed_tensor_unsafe(compressed.clone(), plain.clone(), values, mask.sizes(),
                                              values.options().layout(mask.layout()));
}

// Two sparse tensors are added as COO ones, and the sum has the layout of `out`. The sum of a sparse and a
// dense tensor is dense; alpha multiplies the sparse one in either place, as on the CPU.
Tensor& add_csr_out(const Tensor& self, const Tensor& other, const c10::Scalar& alpha, Tensor& out) {
  TORCH_CHECK(self.sizes() == other.sizes(),
              "torch.add: Expected input tensors to have the same shape, but got tensor `self` with shape ",
              self.sizes(), " and tensor `other` with shape ", other.sizes());
  const bool both = self.layout() != at::kStrided && other.layout() != at::kStrided;
  TORCH_CHECK((out.layout() == at::kStrided) != both, "add: the sum of tensors of layouts ", self.layout(),
              " and ", other.layout(), " needs a ", both ? "sparse" : "dense", " out tensor, got ",
              out.layout());
  if (!both) {
    if (self.layout() == at::kStrided) return at::add_out(out, self, as_coo(other), alpha);
    return at::add_out(out, other, as_coo(self), alpha);
  }
  if (at::sparse_csr::is_sparse_compressed(self) && at::sparse_csr::is_sparse_compressed(other) &&
      at::sparse_csr::is_sparse_compressed(out) &&
      at::sparse_csr::only_sparse_compressed_add_trivial_cases(self, other, alpha, out))
    return out;
  return write(as_layout_of(at::add(as_coo(self), as_coo(other), alpha), out), out);
}

}  // namespace

TORCH_LIBRARY_IMPL(aten, SparseCsrPrivateUse1, m) {
  for (const char* name : kCpuCsrOps)
    m.impl(name, torch::CppFunction::makeFromBoxedFunction<&CpuCsr::as_it_is>());
  m.impl("add.out", add_csr_out);
  m.impl("sparse_mask", mask_csr);
}

TORCH_LIBRARY_IMPL(_, SparseCsrPrivateUse1, m) {
  m.fallback(torch::CppFunction::makeFromBoxedFunction<&CpuCsr::on_copies>());
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
