// Layer normalisation.
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <c10/util/accumulate.h>
#include <torch/library.h>

#include "ops/norm/norm.h"

namespace dlb {
namespace {

using at::Tensor;
using norm::Context;
using norm::Finish;
using norm::Form;
using norm::optional_operand;
using OptionalTensor = std::optional<Tensor>;
using Three = std::tuple<Tensor, Tensor, Tensor>;

// As layer_params in norm.cl.
struct Params {
  int64_t x = 0, y = 0, dy = 0, mean = -1, rstd = -1, weight = -1, bias = -1;
  int32_t length = 0, centred = 1;
  float eps_high = 0, eps_low = 0;
};

struct Shape {
  int64_t rows, length;
};

Shape check(const Tensor& input, at::IntArrayRef normalized, const Tensor& weight, const Tensor& bias) {
  const auto rank = static_cast<int64_t>(normalized.size());
  TORCH_CHECK(rank >= 1,
              "Expected normalized_shape to be at least 1-dimensional, i.e., containing at least one ",
              "element, but got normalized_shape = ", normalized);
  for (const Tensor* t : {&weight, &bias})
    TORCH_CHECK(!t->defined() || t->sizes().equals(normalized), "Expected ", t == &weight ? "weight" : "bias",
                " to be of same shape as normalized_shape, but got a tensor of shape ", t->sizes(),
                " and normalized_shape = ", normalized);
  TORCH_CHECK(input.dim() >= rank && input.sizes().slice(input.dim() - rank).equals(normalized),
              "Given normalized_shape=", normalized, ", expected input with shape [*, ", normalized,
              "], but got input of size", input.sizes());
  return {c10::multiply_integers(input.sizes().slice(0, input.dim() - rank)),
          c10::multiply_integers(normalized)};
}

Tensor param(const OptionalTensor& tensor, const Tensor& other, const Tensor& input) {
  if (!tensor || !tensor->defined()) return {};
  const c10::ScalarType type = other.defined() ? other.scalar_type() : tensor->scalar_type();
  return tensor->to(type).contiguous();
}

Three native_layer_norm(const Tensor& input, at::IntArrayRef normalized, const OptionalTensor& weight_,
                        const OptionalTensor& bias_, double eps) {
  const Tensor weight = param(weight_, {}, input), bias = param(bias_, weight, input);
  const Shape shape = check(input, normalized, weight, bias);
  const Tensor x = input.contiguous();
  const Context context(x, weight.defined() ? weight : bias, "layer_norm");
  c10::SmallVector<int64_t, 6> stat_sizes(input.sizes().begin(), input.sizes().end());
  for (size_t i = stat_sizes.size() - normalized.size(); i < stat_sizes.size(); ++i) stat_sizes[i] = 1;
  Tensor y = at::empty_like(x, at::MemoryFormat::Contiguous);
  Tensor mean = at::empty(stat_sizes, x.options().dtype(context.compute_scalar)), rstd = at::empty_like(mean);
  if (x.numel() == 0) return {y, mean.zero_(), rstd.zero_()};

  const Operand xs = operand_of(x), ys = operand_of(y), ms = operand_of(mean), rs = operand_of(rstd),
                ws = optional_operand(weight), bs = optional_operand(bias);
  Params p{xs.offset, ys.offset, 0,         ms.offset,
           rs.offset, ws.offset, bs.offset, static_cast<int32_t>(shape.length)};
  p.eps_high = static_cast<float>(eps), p.eps_low = static_cast<float>(eps - p.eps_high);
  const Team team = make_team(context.device, shape.rows, shape.length);
  context.kernel("layer_norm_rows")
      .launch(context.stream.queue(), range_of(context.device, team), xs.mem, ws.mem, bs.mem, ys.mem, ms.mem,
              rs.mem, p, team);
  return {std::move(y), std::move(mean), std::move(rstd)};
}

Three native_layer_norm_backward(const Tensor& grad_out, const Tensor& input, at::IntArrayRef normalized,
                                 const Tensor& mean_, const Tensor& rstd_, const OptionalTensor& weight_,
                                 const OptionalTensor& bias_, std::array<bool, 3> mask) {
  const Tensor weight = param(weight_, {}, input), bias = param(bias_, weight, input);
  const Shape shape = check(input, normalized, weight, bias);
  const Tensor x = input.contiguous(), dy = grad_out.contiguous();
  const Context context(x, weight.defined() ? weight : bias, "layer_norm_backward");
  const Tensor mean = mean_.to(context.compute_scalar).contiguous(),
               rstd = rstd_.to(context.compute_scalar).contiguous();
  auto param_grad = [&](bool wanted, const Tensor& like) {
    if (!wanted) return Tensor();
    return at::empty(normalized, like.defined() ? like.options() : x.options());
  };
  Tensor dx = mask[0] ? at::empty_like(x, at::MemoryFormat::Contiguous) : Tensor();
  Tensor dw = param_grad(mask[1], weight), db = param_grad(mask[2], weight.defined() ? weight : bias);
  if (x.numel() == 0) {
    for (Tensor* t : {&dw, &db})
      if (t->defined()) t->zero_();
    return {dx, dw, db};
  }
  const Operand xs = operand_of(x), dys = operand_of(dy), ms = operand_of(mean), rs = operand_of(rstd),
                ws = optional_operand(weight);
  if (mask[0]) {
    const Operand dxs = operand_of(dx);
    const Params p{xs.offset, dxs.offset, dys.offset, ms.offset,
                   rs.offset, ws.offset,  -1,         static_cast<int32_t>(shape.length)};
    const Team team = make_team(context.device, shape.rows, shape.length);
    context.kernel("layer_norm_rows_backward")
        .launch(context.stream.queue(), range_of(context.device, team), xs.mem, dys.mem, ws.mem, ms.mem,
                rs.mem, dxs.mem, p, team);
  }
  if (mask[1] || mask[2]) {
    norm::Layout layout;
    layout.rows = static_cast<uint32_t>(shape.length), layout.count = static_cast<uint32_t>(shape.rows);
    layout.segment_stride = shape.length, layout.mean_group = 0;
    const norm::Partial partial = norm::gradient_sums(context, Form::Columns, layout, x, dy, mean, rstd);
    const Operand partials = operand_of(partial.values), dws = optional_operand(dw),
                  dbs = optional_operand(db);
    Finish p;
    p.partial = partials.offset, p.grad_weight = dws.offset, p.grad_bias = dbs.offset;
    p.rows = layout.rows, p.splits = partial.splits, p.count = layout.count, p.per_split = partial.per_split;
    const Team team = context.finish_team(shape.length, partial.splits);
    context.kernel("layer_norm_finish")
        .launch(context.stream.queue(), range_of(context.device, team), partials.mem, dws.mem, dbs.mem, p,
                team);
  }
  return {std::move(dx), std::move(dw), std::move(db)};
}

}  // namespace

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("native_layer_norm", native_layer_norm);
  m.impl("native_layer_norm_backward", native_layer_norm_backward);
}

}  // namespace dlb
