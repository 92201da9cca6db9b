// _weight_norm_interface: a weight of given lengths along its first or last dimension, w = v * (g / norm of
// v).
#include <ATen/AccumulateType.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <torch/library.h>

namespace dlb {
namespace {

using at::Tensor;

// All dimensions but `dim`.
at::DimVector others_of(const Tensor& v, int64_t dim) {
  TORCH_CHECK(dim == 0 || dim == v.dim() - 1,
              "_weight_norm_interface: expected the first or the last dimension, got ", dim);
  at::DimVector others;
  for (int64_t d = 0; d < v.dim(); ++d)
    if (d != dim) others.push_back(d);
  return others;
}

// The dtype of norms: 16-bit numbers have float ones.
at::ScalarType norm_type(const Tensor& v) {
  return at::isReducedFloatingType(v.scalar_type()) ? at::kFloat : v.scalar_type();
}

std::tuple<Tensor, Tensor> weight_norm(const Tensor& v, const Tensor& g, int64_t dim) {
  const Tensor norms = at::linalg_vector_norm(v, 2, others_of(v, dim), /*keepdim=*/true, norm_type(v));
  return {v.mul(g.div(norms)).to(v.scalar_type()), norms};
}

std::tuple<Tensor, Tensor> weight_norm_backward(const Tensor& grad, const Tensor& v, const Tensor& g,
                                                const Tensor& norms, int64_t dim) {
  const at::DimVector others = others_of(v, dim);
  const at::ScalarType type = norm_type(v);
  const Tensor products = grad.to(type).mul(v);
  const Tensor sums = others.empty() ? products : products.sum(others, /*keepdim=*/true);
  const Tensor dv = grad.sub(v.mul(sums.div(norms.square()))).mul(g.div(norms)).to(v.scalar_type());
  return {dv, sums.div(norms).to(g.scalar_type())};
}

}  // namespace

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("_weight_norm_interface", weight_norm);
  m.impl("_weight_norm_interface_backward", weight_norm_backward);
}

}  // namespace dlb
