// Group normalisation.
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <torch/library.h>

#include "primitives/norm/norm.h"

namespace dlb {
namespace {

using at::Tensor;
using OptionalTensor = std::optional<Tensor>;
using Three = std::tuple<Tensor, Tensor, Tensor>;

void check(const Tensor& input, const Tensor& weight, const Tensor& bias, int64_t channels, int64_t groups) {
  TORCH_CHECK(groups > 0, "Expected num groups to be greater than 0, got ", groups);
  TORCH_CHECK(channels % groups == 0,
              "Expected number of channels in input to be divisible by num_groups, but got ",
              "input of shape ", input.sizes(), " and num_groups=", groups);
  for (const Tensor* t : {&weight, &bias})
    TORCH_CHECK(!t->defined() || (t->dim() == 1 && t->numel() == channels), "Expected ",
                t == &weight ? "weight" : "bias",
                " to be a vector of size equal to the number of channels in input, ", "but got shape ",
                t->sizes(), " and input of shape ", input.sizes());
}

void check_size(const Tensor& x, int64_t samples, int64_t channels, int64_t length) {
  TORCH_CHECK(x.numel() == samples * channels * length, "group_norm: expected ", samples, " x ", channels,
              " x ", length, " elements, but got a tensor of size ", x.sizes());
}

Tensor param(const OptionalTensor& tensor) {
  return tensor && tensor->defined() ? tensor->contiguous() : Tensor();
}

Three native_group_norm(const Tensor& input, const OptionalTensor& weight_, const OptionalTensor& bias_,
                        int64_t samples, int64_t channels, int64_t length, int64_t groups, double eps) {
  const Tensor weight = param(weight_), bias = param(bias_);
  check(input, weight, bias, channels, groups);
  check_size(input, samples, channels, length);
  norm::check_dtypes(input, {&weight, &bias}, "group_norm");
  const auto format = input.suggest_memory_format();
  const Tensor x = input.contiguous(format);
  const norm::Context context(x, weight.defined() ? weight : bias, "group_norm");
  Tensor y = at::empty_like(x, format);
  Tensor mean = at::empty({samples, groups}, x.options().dtype(context.compute_scalar)),
         rstd = at::empty_like(mean);
  if (x.numel() == 0) return {y, mean.zero_(), rstd.zero_()};

  norm::group_norm(context, {samples, channels, length, format != at::MemoryFormat::Contiguous}, groups,
                   {x, weight, bias, y, mean, rstd}, eps);
  return {std::move(y), std::move(mean), std::move(rstd)};
}

Three native_group_norm_backward(const Tensor& grad_out, const Tensor& input, const Tensor& mean_,
                                 const Tensor& rstd_, const OptionalTensor& weight_, int64_t samples,
                                 int64_t channels, int64_t length, int64_t groups, std::array<bool, 3> mask) {
  const Tensor weight = param(weight_);
  check(input, weight, {}, channels, groups);
  check_size(input, samples, channels, length);
  check_size(grad_out, samples, channels, length);
  check_size(mean_, samples, groups, 1);
  check_size(rstd_, samples, groups, 1);
  const auto format = input.suggest_memory_format();
  const Tensor x = input.contiguous(format), dy = grad_out.contiguous(format);
  const norm::Context context(x, weight, "group_norm_backward");
  const Tensor mean = mean_.to(context.compute_scalar).contiguous(),
               rstd = rstd_.to(context.compute_scalar).contiguous();
  auto param_grad = [&](bool wanted) {
    return wanted ? at::empty({channels}, weight.defined() ? weight.options() : x.options()) : Tensor();
  };
  Tensor dx = mask[0] ? at::empty_like(x, format) : Tensor();
  Tensor dw = param_grad(mask[1]), db = param_grad(mask[2]);
  if (x.numel() == 0) {
    for (Tensor* t : {&dw, &db})
      if (t->defined()) t->zero_();
    return {dx, dw, db};
  }
  norm::group_norm_backward(context, {samples, channels, length, format != at::MemoryFormat::Contiguous},
                            groups, {x, dy, weight, mean, rstd, dx, dw, db});
  return {std::move(dx), std::move(dw), std::move(db)};
}

}  // namespace

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("native_group_norm", native_group_norm);
  m.impl("native_group_norm_backward", native_group_norm_backward);
}

}  // namespace dlb
