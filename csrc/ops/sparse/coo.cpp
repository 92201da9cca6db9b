// Sparse COO tensors: the ops that train embeddings and sparse layers. Ops that only handle indices and
// values are PyTorch's own for the CPU, which call ops that dispatch anew. Ops that are neither there nor
// here run on the CPU.
#include <ATen/ExpandUtils.h>
#include <ATen/native/Resize.h>
#include <ATen/ops/_sparse_broadcast_to.h>
#include <ATen/ops/_to_sparse_native.h>
#include <ATen/ops/add.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/result_type.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>
#include <c10/util/accumulate.h>
#include <torch/library.h>

#include "ops/common/cpu_kernels.h"
#include "ops/sparse/parts.h"

namespace dlb::sparse {
namespace {

using CpuCoo = CpuKernels<c10::DispatchKey::SparseCPU>;

using at::Tensor;

constexpr const char* kCpuCooOps[] = {
    "_coalesced_",
    "_dimI",
    "_dimV",
    "_indices",
    "_nnz",
    "_sparse_broadcast_to",
    "_sparse_coo_tensor_with_dims",
    "_sparse_coo_tensor_with_dims_and_tensors",
    "_to_dense",
    "_to_sparse",
    "_to_sparse.sparse_dim",
    "_to_sparse_bsc",
    "_to_sparse_bsr",
    "_to_sparse_csc",
    "_to_sparse_csr",
    "_values",
    "abs",
    "abs.out",
    "abs_",
    "add.Tensor",
    "add_.Tensor",
    "any",
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
    "cat",
    "ceil",
    "ceil.out",
    "ceil_",
    "clone",
    "conj_physical.out",
    "copy_",
    "copy_sparse_to_sparse_",
    "deg2rad",
    "deg2rad.out",
    "deg2rad_",
    "dense_dim",
    "div.Tensor",
    "div.Tensor_mode",
    "div.out",
    "div.out_mode",
    "div_.Tensor",
    "div_.Tensor_mode",
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
    "floor",
    "floor.out",
    "floor_",
    "floor_divide",
    "floor_divide.out",
    "floor_divide_.Tensor",
    "frac",
    "frac.out",
    "frac_",
    "indices",
    "is_coalesced",
    "isinf",
    "isnan",
    "isneginf",
    "isneginf.out",
    "isposinf",
    "isposinf.out",
    "log1p",
    "log1p.out",
    "log1p_",
    "mm",
    "mul.Tensor",
    "mul_.Tensor",
    "mv",
    "nan_to_num",
    "nan_to_num.out",
    "nan_to_num_",
    "narrow_copy",
    "native_norm",
    "native_norm.ScalarOpt_dim_dtype",
    "neg",
    "neg.out",
    "neg_",
    "norm.ScalarOpt_dim",
    "norm.ScalarOpt_dim_dtype",
    "permute",
    "pow.Tensor_Scalar",
    "pow.Tensor_Scalar_out",
    "rad2deg",
    "rad2deg.out",
    "rad2deg_",
    "relu",
    "relu_",
    "resize_as_sparse_",
    "round",
    "round.out",
    "round_",
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
    "sparse_resize_",
    "sparse_resize_and_clear_",
    "sqrt",
    "sqrt.out",
    "sqrt_",
    "sub.Tensor",
    "sub.out",
    "sub_.Tensor",
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
    "unsqueeze",
    "values",
    "view_as_complex",
    "view_as_real",
    "zero_",
    "zeros.out",
};

void check_like(const Tensor& a, const Tensor& b, const char* op) {
  TORCH_CHECK(a.sizes() == b.sizes(), op, ": expected sizes of 'self' and 'other' to match, but ", a.sizes(),
              " != ", b.sizes());
  TORCH_CHECK(a.device() == b.device(), op, ": expected both tensors on one device, but they are on ",
              a.device(), " and ", b.device());
}

// dense + alpha * other, in place where `out` is `dense`.
Tensor& add_to_dense(Tensor& out, const Tensor& dense, const Tensor& other, const c10::Scalar& alpha) {
  TORCH_CHECK(dense.sizes() == other.sizes(),
              "add: expected 'self' and 'other' to have same size, but self has size ", dense.sizes(),
              " while other has size ", other.sizes(),
              " (sums of dense and sparse tensors do not broadcast)");
  check_like(dense, other, "add");
  const at::ScalarType common = at::result_type(dense, other);
  TORCH_CHECK(c10::canCast(common, out.scalar_type()), "Can't convert result type ", common, " to output ",
              out.scalar_type(), " in add operation");
  if (!out.is_same(dense)) {
    at::native::resize_output(out, dense.sizes());
    out.copy_(dense);
  }
  if (other._nnz() == 0 || out.numel() == 0) return out;
  const Tensor values = other._values().to(out.scalar_type());
  if (other.sparse_dim() == 0) return out.add_(values.sum(0).to(out.scalar_type()), alpha);
  const Tensor scaled = alpha.equal(1) ? values : values.mul(alpha);
  out.index_put_(index_list(other._indices()), scaled, /*accumulate=*/true);
  return out;
}

Tensor& add_coo_out(const Tensor& self, const Tensor& other, const c10::Scalar& alpha, Tensor& out) {
  TORCH_CHECK(other.is_sparse(), "add(sparse, dense) is not supported. Use add(dense, sparse) instead.");
  if (!self.is_sparse()) return add_to_dense(out, self, other, alpha);
  check_like(self, other, "add");
  TORCH_CHECK(out.is_sparse(), "add: a sum of sparse tensors needs a sparse out tensor");
  const at::ScalarType common = at::result_type(self, other);
  TORCH_CHECK(c10::canCast(common, out.scalar_type()), "result type ", common,
              " can't be cast to the desired output type ", out.scalar_type());
  const auto scaled_values = [&](const Tensor& t) {
    const Tensor values = t._values().to(common);  // first: unsigned ones have no negative multiples
    return alpha.equal(1) ? values : values.mul(alpha).to(common);
  };
  if (other._nnz() == 0) return write(self, out);
  if (self._nnz() == 0)
    return write(make(other._indices(), scaled_values(other), other.sizes(), other.is_coalesced()), out);
  // As many dense dimensions as in both.
  const Tensor b =
      other.sparse_dim() == self.sparse_dim() ? other : other.to_dense().to_sparse(self.sparse_dim());
  const Tensor sum = make(at::cat({self._indices(), b._indices()}, 1),
                          at::cat({self._values().to(common), scaled_values(b)}, 0), self.sizes(), false);
  // As on the CPU, the sum of coalesced tensors is coalesced. Other sums are coalesced once they have more
  // elements than there are places, so that sums in place do not grow with each addend.
  const auto places = self.sizes().slice(0, static_cast<size_t>(self.sparse_dim()));
  const bool all = self.is_coalesced() && b.is_coalesced();
  return write(all || sum._nnz() > c10::multiply_integers(places) ? coalesce(sum) : sum, out);
}

// The products of elements that both tensors have. They have equally many sparse dimensions; dense ones
// broadcast. The dtype is the common one of both.
Tensor intersection(const Tensor& self, const Tensor& other) {
  const auto split = static_cast<size_t>(self.sparse_dim());
  TORCH_CHECK(self.sparse_dim() == other.sparse_dim() &&
                  self.sizes().slice(0, split) == other.sizes().slice(0, split),
              "mul: expected sizes of 'self' and 'other' to match in sparse dimensions, but they are ",
              self.sizes(), " and ", other.sizes(), " with ", self.sparse_dim(), " and ", other.sparse_dim(),
              " sparse ones");
  const Tensor a = self.coalesce(), b = other.coalesce();
  const bool none = a._nnz() == 0 || b._nnz() == 0;
  Tensor kept = at::empty({0}, a._indices().options()), place = kept;
  if (!none) {
    const auto [places, found] =
        find(flat_indices(a._indices(), a.sizes()), flat_indices(b._indices(), b.sizes()));
    kept = found.nonzero().squeeze(1);
    place = places.index_select(0, kept);
  }
  const Tensor values = at::mul(a._values().index_select(0, kept), b._values().index_select(0, place));
  std::vector<int64_t> sizes = self.sizes().slice(0, split).vec();
  sizes.insert(sizes.end(), values.sizes().begin() + 1, values.sizes().end());
  return make(a._indices().index_select(1, kept), values, sizes, true);
}

Tensor product_of(const Tensor& sparse, const Tensor& other) {
  if (other.dim() == 0) {
    const Tensor factor = other.is_sparse() ? other.to_dense() : other;
    return make(sparse._indices(), at::mul(sparse._values(), factor), sparse.sizes(), sparse.is_coalesced());
  }
  if (other.is_sparse()) {
    return intersection(sparse, other);
  }
  const auto sizes = at::infer_size(sparse.sizes(), other.sizes());
  if (sparse.sizes() != sizes)  // what broadcasts calls numbers coalesced
    return product_of(at::_sparse_broadcast_to(sparse.dim() ? sparse : sparse.coalesce(), sizes), other);
  const Tensor dense = other.expand(sizes);
  const Tensor factors =
      sparse.sparse_dim() ? dense.index(index_list(sparse._indices())) : dense.unsqueeze(0);
  return make(sparse._indices(), at::mul(sparse._values(), factors), sparse.sizes(), sparse.is_coalesced());
}

Tensor& mul_out(const Tensor& self, const Tensor& other, Tensor& out) {
  // A number multiplies the other tensor; of two sparse tensors the one with fewer elements looks up the
  // other's.
  const bool both = self.is_sparse() && other.is_sparse();
  const bool swap =
      both ? self.dim() == 0 && (other.dim() > 0 || self._nnz() < other._nnz()) : !self.is_sparse();
  return write(swap ? product_of(other, self) : product_of(self, other), out);
}

// The values of `self`, dense or sparse, at the elements of `mask`.
Tensor mask_coo(const Tensor& self, const Tensor& mask) {
  TORCH_CHECK(mask.is_sparse(), "sparse_mask(): expected a sparse mask");
  check_like(self, mask, "sparse_mask");
  const Tensor indices = mask._indices();
  if (!self.is_sparse())
    return make(indices.clone(),
                mask.sparse_dim() ? self.index(index_list(indices)) : self.unsqueeze(0).clone(), mask.sizes(),
                mask.is_coalesced());
  TORCH_CHECK(self.sparse_dim() == mask.sparse_dim(), "sparse_mask(): self and mask differ in sparse_dim, ",
              self.sparse_dim(), " and ", mask.sparse_dim());
  const Tensor a = self.coalesce();
  std::vector<int64_t> sizes = a._values().sizes().vec();
  sizes[0] = mask._nnz();
  if (a._nnz() == 0 || mask._nnz() == 0)
    return make(indices.clone(), at::zeros(sizes, a._values().options()), mask.sizes(), mask.is_coalesced());
  const auto [place, found] =
      find(flat_indices(indices, mask.sizes()), flat_indices(a._indices(), a.sizes()));
  std::vector<int64_t> broadcast(sizes.size(), 1);
  broadcast[0] = sizes[0];
  const Tensor values = a._values().index_select(0, place);
  return make(indices.clone(), values.masked_fill(found.view(broadcast).logical_not(), 0), mask.sizes(),
              mask.is_coalesced());
}

// The gradient of sparse_mask: the elements of `self`, with zeros where `mask` has none. Where matches
// accumulate, each element is multiplied by how often the mask has it.
Tensor mask_projection(const Tensor& self, const Tensor& mask, bool accumulate_matches) {
  check_like(self, mask, "_sparse_mask_projection");
  const auto ones = [&](const Tensor& t) {
    return make(t._indices(), at::ones({t._nnz()}, t._indices().options()),
                self.sizes().slice(0, static_cast<size_t>(t.sparse_dim())), t.is_coalesced());
  };
  const Tensor values = self._values(), counts = mask_coo(ones(mask).coalesce(), ones(self))._values();
  std::vector<int64_t> broadcast(static_cast<size_t>(values.dim()), 1);
  broadcast[0] = values.size(0);
  const Tensor factors = (accumulate_matches ? counts : counts.ne(0)).view(broadcast);
  return make(self._indices().clone(), values.mul(factors).to(values.scalar_type()), self.sizes(),
              self.is_coalesced());
}

// The gradient of sum(dim): that of the reduced tensor, at the elements of `self`, each once.
Tensor sum_backward(const Tensor& grad, const Tensor& self, at::IntArrayRef dims) {
  std::vector<int64_t> kept = self.sizes().vec();
  for (const int64_t dim : dims) kept[static_cast<size_t>(at::maybe_wrap_dim(dim, self.dim()))] = 1;
  const Tensor dense = (grad.is_sparse() ? grad.to_dense() : grad).reshape(kept).expand(self.sizes());
  return mask_coo(dense, self.coalesce());
}

}  // namespace

TORCH_LIBRARY_IMPL(aten, SparsePrivateUse1, m) {
  for (const char* name : kCpuCooOps)
    m.impl(name, torch::CppFunction::makeFromBoxedFunction<&CpuCoo::as_it_is>());
  m.impl("_coalesce", coalesce);
  m.impl("add.out", add_coo_out);
  m.impl("mul.out", mul_out);
  m.impl("sparse_mask", mask_coo);
  m.impl("_sparse_mask_projection", mask_projection);
  m.impl("_sparse_sum_backward", sum_backward);
}

TORCH_LIBRARY_IMPL(_, SparsePrivateUse1, m) {
  m.fallback(torch::CppFunction::makeFromBoxedFunction<&CpuCoo::on_copies>());
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("_to_sparse",
         static_cast<Tensor (*)(const Tensor&, std::optional<at::Layout>, at::OptionalIntArrayRef,
                                std::optional<int64_t>)>(at::native::dense_to_sparse));
  m.impl("_to_sparse.sparse_dim",
         static_cast<Tensor (*)(const Tensor&, int64_t)>(at::native::dense_to_sparse));
}

}  // namespace dlb::sparse
