// Layer normalisation.
#include <c10/util/accumulate.h>
#include <torch/library.h>

#include "primitives/norm/norm.h"
#include "runtime/new_tensor.h"

namespace dlb {
namespace {

using at::Tensor;
using OptionalTensor = std::optional<Tensor>;
using Three = std::tuple<Tensor, Tensor, Tensor>;

struct Shape {
  int64_t rows, length;
};

Shape check(const Tensor& input, at::IntArrayRef normalized, const Tensor& weight, const Tensor& bias) {
  norm::check_normalized_shape(input, normalized, {{"weight", &weight}, {"bias", &bias}});
  return {
      c10::multiply_integers(input.sizes().slice(0, static_cast<size_t>(input.dim()) - normalized.size())),
      c10::multiply_integers(normalized)};
}

// In the dtype of `other`, where that is defined.
Tensor param_like(const OptionalTensor& tensor, const Tensor& other = {}) {
  if (!tensor || !tensor->defined()) return {};
  const c10::ScalarType type = other.defined() ? other.scalar_type() : tensor->scalar_type();
  return tensor->to(type).contiguous();
}

Three native_layer_norm(const Tensor& input, at::IntArrayRef normalized, const OptionalTensor& weight_,
                        const OptionalTensor& bias_, double eps) {
  const Tensor weight = param_like(weight_), bias = param_like(bias_);
  const Shape shape = check(input, normalized, weight, bias);
  norm::check_dtypes(input, {&weight, &bias}, "layer_norm");
  const Tensor x = input.contiguous();
  const norm::Context context(x, weight.defined() ? weight : bias, "layer_norm");
  c10::SmallVector<int64_t, 6> stat_sizes(input.sizes().begin(), input.sizes().end());
  for (size_t i = stat_sizes.size() - normalized.size(); i < stat_sizes.size(); ++i) stat_sizes[i] = 1;
  Tensor y = new_tensor(x.sizes(), x.scalar_type(), x.device());
  Tensor mean = new_tensor(stat_sizes, context.compute_scalar, x.device()),
         rstd = new_tensor(stat_sizes, context.compute_scalar, x.device());
  if (x.numel() == 0) return {y, mean.zero_(), rstd.zero_()};

  norm::layer_norm(context, shape.rows, shape.length, {x, weight, bias, y, mean, rstd}, eps);
  return {std::move(y), std::move(mean), std::move(rstd)};
}

Three native_layer_norm_backward(const Tensor& grad_out, const Tensor& input, at::IntArrayRef normalized,
                                 const Tensor& mean_, const Tensor& rstd_, const OptionalTensor& weight_,
                                 const OptionalTensor& bias_, std::array<bool, 3> mask) {
  const Tensor weight = param_like(weight_), bias = param_like(bias_, weight);
  const Shape shape = check(input, normalized, weight, bias);
  const Tensor x = input.contiguous(), dy = grad_out.contiguous();
  const norm::Context context(x, weight.defined() ? weight : bias, "layer_norm_backward");
  const Tensor mean = mean_.to(context.compute_scalar).contiguous(),
               rstd = rstd_.to(context.compute_scalar).contiguous();
  auto param_grad = [&](bool wanted, const Tensor& like) {
    if (!wanted) return Tensor();
    return new_tensor(normalized, like.defined() ? like.scalar_type() : x.scalar_type(), x.device());
  };
  Tensor dx = mask[0] ? new_tensor(x.sizes(), x.scalar_type(), x.device()) : Tensor();
  Tensor dw = param_grad(mask[1], weight), db = param_grad(mask[2], weight.defined() ? weight : bias);
  if (x.numel() == 0) {
    for (Tensor* t : {&dw, &db})
      if (t->defined()) t->zero_();
    return {dx, dw, db};
  }
  norm::layer_norm_backward(context, shape.rows, shape.length, {x, dy, weight, mean, rstd, dx, dw, db});
  return {std::move(dx), std::move(dw), std::move(db)};
}

}  // namespace

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("native_layer_norm", native_layer_norm);
  m.impl("native_layer_norm_backward", native_layer_norm_backward);
}

}  // namespace dlb
