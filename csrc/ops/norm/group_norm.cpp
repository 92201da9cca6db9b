// Group normalisation.
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <torch/library.h>

#include "primitives/norm/norm.h"

namespace dlb {
namespace {

using at::Tensor;
using norm::Context;
using norm::Finish;
using norm::Form;
using norm::Layout;
using norm::optional_operand;
using OptionalTensor = std::optional<Tensor>;
using Three = std::tuple<Tensor, Tensor, Tensor>;

struct Sizes {
  int64_t samples, channels, length, groups;
};

void check(const Tensor& input, const Tensor& weight, const Tensor& bias, const Sizes& s) {
  TORCH_CHECK(s.groups > 0, "Expected num groups to be greater than 0, got ", s.groups);
  TORCH_CHECK(s.channels % s.groups == 0,
              "Expected number of channels in input to be divisible by num_groups, but got ",
              "input of shape ", input.sizes(), " and num_groups=", s.groups);
  for (const Tensor* t : {&weight, &bias})
    TORCH_CHECK(!t->defined() || (t->dim() == 1 && t->numel() == s.channels), "Expected ",
                t == &weight ? "weight" : "bias",
                " to be a vector of size equal to the number of channels in input, ", "but got shape ",
                t->sizes(), " and input of shape ", input.sizes());
}

Finish finish_of(const Sizes& s) {
  Finish p;
  p.rows = static_cast<uint32_t>(s.samples * s.groups);
  p.groups = static_cast<uint32_t>(s.groups), p.channels = static_cast<uint32_t>(s.channels);
  p.samples = static_cast<uint32_t>(s.samples), p.length = static_cast<uint32_t>(s.length);
  return p;
}

Tensor param(const OptionalTensor& tensor) {
  return tensor && tensor->defined() ? tensor->contiguous() : Tensor();
}

void apply(const Context& context, const Sizes& s, bool interleaved, const Tensor& y, const Tensor& x,
           const Tensor* dy, const Tensor& coefficients) {
  if (interleaved)
    norm::apply(context, norm::ChannelsLast{s.samples, s.length, s.channels}, y, x, dy, coefficients);
  else
    norm::apply(context, norm::Extent{1, s.samples * s.channels, s.length}, y, x, dy, coefficients);
}

Three native_group_norm(const Tensor& input, const OptionalTensor& weight_, const OptionalTensor& bias_,
                        int64_t samples, int64_t channels, int64_t length, int64_t groups, double eps) {
  const Tensor weight = param(weight_), bias = param(bias_);
  const Sizes s{samples, channels, length, groups};
  check(input, weight, bias, s);
  norm::check_dtypes(input, {&weight, &bias}, "group_norm");
  const auto format = input.suggest_memory_format();
  const Tensor x = input.contiguous(format);
  const bool interleaved = format != at::MemoryFormat::Contiguous;
  const Context context(x, weight.defined() ? weight : bias, "group_norm");
  Tensor y = at::empty_like(x, format);
  Tensor mean = at::empty({samples, groups}, x.options().dtype(context.compute_scalar)),
         rstd = at::empty_like(mean);
  if (x.numel() == 0) return {y, mean.zero_(), rstd.zero_()};

  Layout layout;
  layout.rows = static_cast<uint32_t>(samples * groups);
  layout.count = layout.length = static_cast<uint32_t>(channels / groups * length);
  layout.inner_rows = layout.rows, layout.inner_stride = layout.count;
  constexpr int64_t kShortRun = 4;  // shorter ones cost more than a contiguous copy
  const bool runs_per_pixel = interleaved && channels / groups >= kShortRun;
  if (runs_per_pixel) {
    layout.length = static_cast<uint32_t>(channels / groups), layout.segment_stride = channels;
    layout.inner_rows = static_cast<uint32_t>(groups), layout.inner_stride = layout.length;
    layout.outer_stride = channels * length;
  }
  const norm::Partial partial =
      norm::statistics(context, Form::Rows, layout, runs_per_pixel ? x : x.contiguous());
  const Tensor coefficients = context.scratch(3 * samples * channels);
  const Operand partials = operand_of(partial.values), ws = optional_operand(weight),
                bs = optional_operand(bias), ms = operand_of(mean), rs = operand_of(rstd),
                results = operand_of(coefficients);
  Finish p = finish_of(s);
  p.partial = partials.offset, p.coefficients = results.offset, p.mean = ms.offset, p.rstd = rs.offset;
  p.weight = ws.offset, p.bias = bs.offset;
  p.splits = partial.splits, p.count = layout.count, p.per_split = partial.per_split;
  p.set_eps(eps);
  const Team team = context.finish_team(p.rows, partial.splits);
  context.kernel("group_norm_finish")
      .launch(context.stream.queue(), range_of(context.device, team), partials.mem, ws.mem, bs.mem, ms.mem,
              rs.mem, results.mem, p, team);
  apply(context, s, interleaved, y, x, nullptr, coefficients);
  return {std::move(y), std::move(mean), std::move(rstd)};
}

Three native_group_norm_backward(const Tensor& grad_out, const Tensor& input, const Tensor& mean_,
                                 const Tensor& rstd_, const OptionalTensor& weight_, int64_t samples,
                                 int64_t channels, int64_t length, int64_t groups, std::array<bool, 3> mask) {
  const Tensor weight = param(weight_);
  const Sizes s{samples, channels, length, groups};
  check(input, weight, {}, s);
  const auto format = input.suggest_memory_format();
  const bool interleaved = format != at::MemoryFormat::Contiguous;
  const Tensor x = input.contiguous(format), dy = grad_out.contiguous(format);
  const Context context(x, weight, "group_norm_backward");
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
  Layout layout;  // a row per sample and channel
  layout.rows = layout.inner_rows = static_cast<uint32_t>(samples * channels);
  layout.count = layout.length = static_cast<uint32_t>(length);
  layout.inner_stride = length;
  layout.mean_group = static_cast<uint32_t>(channels / groups);
  // A channel of one sample is no run where pixels are; contiguous() copies nothing else.
  const norm::Partial partial =
      norm::gradient_sums(context, Form::Rows, layout, x.contiguous(), dy.contiguous(), mean, rstd);
  // The kernels below read whole sums; few long rows come in several parts.
  const Tensor sums = partial.splits == 1 ? partial.values : partial.values.view({partial.splits, -1}).sum(0);
  const Tensor coefficients = context.scratch(4 * samples * channels);
  const Operand sources = operand_of(sums), ws = optional_operand(weight), ms = operand_of(mean),
                rs = operand_of(rstd), dws = optional_operand(dw), dbs = optional_operand(db),
                results = operand_of(coefficients);
  Finish p = finish_of(s);
  p.partial = sources.offset, p.coefficients = results.offset, p.mean = ms.offset, p.rstd = rs.offset;
  p.weight = ws.offset, p.grad_weight = dws.offset, p.grad_bias = dbs.offset;
  if (mask[1] || mask[2]) {
    const Team team = make_team(context.device, channels, samples, 1);
    context.kernel("group_norm_weight_grad")
        .launch(context.stream.queue(), range_of(context.device, team), sources.mem, rs.mem, dws.mem, dbs.mem,
                p, team);
  }
  if (mask[0]) {
    const Team team = make_team(context.device, p.rows, channels / groups, 1);
    context.kernel("group_norm_backward_finish")
        .launch(context.stream.queue(), range_of(context.device, team), sources.mem, ws.mem, ms.mem, rs.mem,
                results.mem, p, team);
    apply(context, s, interleaved, dx, x, &dy, coefficients);
  }
  return {std::move(dx), std::move(dw), std::move(db)};
}

}  // namespace

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("native_group_norm", native_group_norm);
  m.impl("native_group_norm_backward", native_group_norm_backward);
}

}  // namespace dlb
