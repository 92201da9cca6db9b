// Batch normalisation, training and inference, over contiguous and channels-last inputs.
#include <ATen/EmptyTensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/zeros.h>
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
using norm::Partial;
using OptionalTensor = std::optional<Tensor>;
using Three = std::tuple<Tensor, Tensor, Tensor>;
using Four = std::tuple<Tensor, Tensor, Tensor, Tensor>;

Tensor value(const OptionalTensor& tensor) {
  return tensor ? *tensor : Tensor();
}
Tensor as_dtype(const Tensor& tensor, c10::ScalarType type) {
  return tensor.defined() ? tensor.to(type).contiguous() : tensor;
}

// The input in a layout that the kernels take, and how they see it.
struct Input {
  Tensor x;
  at::MemoryFormat format = at::MemoryFormat::Contiguous;
  Form form = Form::Rows;
  Layout layout;
  norm::Extent extent{};

  explicit Input(const Tensor& input) {
    TORCH_CHECK(input.dim() >= 2, "batch_norm: expected an input of at least 2 dimensions, got ",
                input.dim());
    format = input.suggest_memory_format();
    x = input.contiguous(format);
    const int64_t samples = x.size(0), channels = x.size(1), all = x.numel();
    const int64_t length = all ? all / (samples * channels) : 0;
    layout.rows = static_cast<uint32_t>(channels);
    layout.count = static_cast<uint32_t>(samples * length);
    if (length == 1 || format != at::MemoryFormat::Contiguous) {
      form = Form::Columns;
      layout.segment_stride = channels;
    } else {
      layout.length = static_cast<uint32_t>(length);
      layout.inner_rows = layout.rows;
      layout.inner_stride = length;
      layout.segment_stride = channels * length;
    }
    extent = form == Form::Columns ? norm::Extent{samples * length, channels, 1}
                                   : norm::Extent{samples, channels, length};
  }
};

void check_size(const Tensor& tensor, int64_t channels, const char* name) {
  TORCH_CHECK(!tensor.defined() || tensor.numel() == channels, "batch_norm: ", name, " should contain ",
              channels, " elements, not ", tensor.numel());
}

// Statistics that kernels update in place: they may be strided.
class Running {
 public:
  explicit Running(const Tensor& tensor) : original_(tensor) {
    values = tensor.defined() && !tensor.is_contiguous() ? tensor.contiguous() : tensor;
  }
  void finish() const {
    if (!values.is_same(original_)) original_.copy_(values);
  }
  Tensor values;

 private:
  Tensor original_;
};

Three forward(const Tensor& input, const Tensor& weight, const Tensor& bias, const Tensor& running_mean,
              const Tensor& running_var, bool training, double momentum, double eps) {
  const Input in(input);
  const int64_t channels = in.layout.rows;
  check_size(weight, channels, "weight");
  check_size(bias, channels, "bias");
  check_size(running_mean, channels, "running_mean");
  check_size(running_var, channels, "running_var");
  norm::check_dtypes(input, {&weight, &bias, &running_mean, &running_var}, "batch_norm");
  TORCH_CHECK(training || (running_mean.defined() && running_var.defined()),
              "batch_norm: running_mean and running_var must be defined in evaluation mode");
  const Tensor& any = running_mean.defined()  ? running_mean
                      : running_var.defined() ? running_var
                      : weight.defined()      ? weight
                                              : bias;
  const Context context(in.x, any, "batch_norm");
  Tensor y = at::empty_like(in.x);
  Tensor save_mean = context.scratch(training ? channels : 0), save_rstd = at::empty_like(save_mean);
  if (in.x.numel() == 0) return {y, save_mean.zero_(), save_rstd.zero_()};

  const Tensor w = weight.defined() ? weight.contiguous() : weight,
               b = bias.defined() ? bias.contiguous() : bias;
  const Running mean(running_mean), var(running_var);
  Partial partial{{}, 1, 1};
  if (training) partial = norm::statistics(context, in.form, in.layout, in.x);
  const Tensor coefficients = context.scratch(3 * channels);
  const Operand partials = optional_operand(partial.values), ws = optional_operand(w),
                bs = optional_operand(b), means = optional_operand(mean.values),
                vars = optional_operand(var.values), saved_means = optional_operand(save_mean),
                saved_rstds = optional_operand(save_rstd), results = operand_of(coefficients);
  Finish p;
  p.partial = partials.offset, p.coefficients = results.offset;
  p.mean = saved_means.offset, p.rstd = saved_rstds.offset, p.weight = ws.offset, p.bias = bs.offset;
  p.running_mean = means.offset, p.running_var = vars.offset;
  p.rows = in.layout.rows, p.splits = partial.splits, p.count = in.layout.count,
  p.per_split = partial.per_split;
  p.training = training;
  p.set_eps(eps);
  p.set_momentum(momentum);
  const Team team = context.finish_team(channels, partial.splits);
  context.kernel("batch_norm_finish")
      .launch(context.stream.queue(), range_of(context.device, team), partials.mem, ws.mem, bs.mem, means.mem,
              vars.mem, saved_means.mem, saved_rstds.mem, results.mem, p, team);
  if (training) mean.finish(), var.finish();
  norm::apply(context, in.extent, y, in.x, nullptr, coefficients);
  return {std::move(y), std::move(save_mean), std::move(save_rstd)};
}

// mean and rstd [2][channels] from the running statistics.
Tensor running_stats(const Context& context, const Tensor& mean, const Tensor& var, int64_t channels,
                     double eps) {
  const Tensor stats = context.scratch(2 * channels);
  const Tensor m = mean.contiguous(), v = as_dtype(var, mean.scalar_type());
  const Operand means = operand_of(m), vars = operand_of(v), results = operand_of(stats);
  Finish p;
  p.running_mean = means.offset, p.running_var = vars.offset, p.coefficients = results.offset;
  p.rows = static_cast<uint32_t>(channels);
  p.set_eps(eps);
  const Team team = context.finish_team(channels, 1);
  context.kernel("batch_norm_running")
      .launch(context.stream.queue(), range_of(context.device, team), means.mem, vars.mem, results.mem, p,
              team);
  return stats;
}

Three backward(const Tensor& grad_out, const Tensor& input, const Tensor& weight, const Tensor& running_mean,
               const Tensor& running_var, const Tensor& save_mean, const Tensor& save_rstd, bool training,
               double eps, std::array<bool, 3> mask) {
  const Input in(input);
  const int64_t channels = in.layout.rows;
  const Tensor dy = grad_out.contiguous(in.format);
  const Tensor& any = weight.defined() ? weight : running_mean;
  const c10::ScalarType param_type = any.defined() ? any.scalar_type() : in.x.scalar_type();
  const Context context(in.x, any, "batch_norm_backward");
  auto param_grad = [&](bool wanted) {
    return wanted ? at::empty({channels}, in.x.options().dtype(param_type).memory_format(std::nullopt))
                  : Tensor();
  };
  Tensor dx = mask[0] ? at::empty_like(in.x) : Tensor(), dw = param_grad(mask[1]), db = param_grad(mask[2]);
  if (in.x.numel() == 0) {
    for (Tensor* t : {&dw, &db})
      if (t->defined()) t->zero_();
    return {dx, dw, db};
  }
  Tensor mean, rstd;
  if (training) {
    mean = as_dtype(save_mean, context.compute_scalar);
    rstd = as_dtype(save_rstd, context.compute_scalar);
  } else {
    const Tensor stats =
        running_stats(context, as_dtype(running_mean, param_type), running_var, channels, eps);
    mean = stats.narrow(0, 0, channels);
    rstd = stats.narrow(0, channels, channels);
  }
  const Partial partial = norm::gradient_sums(context, in.form, in.layout, in.x, dy, mean, rstd);
  const Tensor coefficients = context.scratch(4 * channels), w = as_dtype(weight, param_type);
  const Operand partials = operand_of(partial.values), ws = optional_operand(w), means = operand_of(mean),
                rstds = operand_of(rstd), dws = optional_operand(dw), dbs = optional_operand(db),
                results = operand_of(coefficients);
  Finish p;
  p.partial = partials.offset, p.coefficients = results.offset, p.mean = means.offset, p.rstd = rstds.offset;
  p.weight = ws.offset, p.grad_weight = dws.offset, p.grad_bias = dbs.offset;
  p.rows = in.layout.rows, p.splits = partial.splits, p.count = in.layout.count,
  p.per_split = partial.per_split;
  p.training = training;
  const Team team = context.finish_team(channels, partial.splits);
  context.kernel("batch_norm_backward_finish")
      .launch(context.stream.queue(), range_of(context.device, team), partials.mem, ws.mem, means.mem,
              rstds.mem, dws.mem, dbs.mem, results.mem, p, team);
  if (mask[0]) norm::apply(context, in.extent, dx, in.x, &dy, coefficients);
  return {std::move(dx), std::move(dw), std::move(db)};
}

Three native_batch_norm(const Tensor& input, const OptionalTensor& weight, const OptionalTensor& bias,
                        const OptionalTensor& running_mean, const OptionalTensor& running_var, bool training,
                        double momentum, double eps) {
  return forward(input, value(weight), value(bias), value(running_mean), value(running_var), training,
                 momentum, eps);
}
Three legit(const Tensor& input, const OptionalTensor& weight, const OptionalTensor& bias,
            Tensor& running_mean, Tensor& running_var, bool training, double momentum, double eps) {
  return forward(input, value(weight), value(bias), running_mean, running_var, training, momentum, eps);
}
Three legit_no_stats(const Tensor& input, const OptionalTensor& weight, const OptionalTensor& bias,
                     bool training, double momentum, double eps) {
  return forward(input, value(weight), value(bias), {}, {}, training, momentum, eps);
}
Four with_update(const Tensor& input, const OptionalTensor& weight, const OptionalTensor& bias,
                 Tensor& running_mean, Tensor& running_var, double momentum, double eps) {
  auto [y, mean, rstd] =
      forward(input, value(weight), value(bias), running_mean, running_var, true, momentum, eps);
  return {y, mean, rstd, at::empty({0}, input.options().dtype(at::kByte))};
}

Three native_batch_norm_backward(const Tensor& grad_out, const Tensor& input, const OptionalTensor& weight,
                                 const OptionalTensor& running_mean, const OptionalTensor& running_var,
                                 const OptionalTensor& save_mean, const OptionalTensor& save_rstd,
                                 bool training, double eps, std::array<bool, 3> mask) {
  return backward(grad_out, input, value(weight), value(running_mean), value(running_var), value(save_mean),
                  value(save_rstd), training, eps, mask);
}
Three new_backward(const Tensor& grad_out, const Tensor& input, const Tensor& weight,
                   const OptionalTensor& running_mean, const OptionalTensor& running_var,
                   const OptionalTensor& save_mean, const OptionalTensor& save_rstd, bool update, double eps,
                   std::array<bool, 3> mask, const Tensor& reserve) {
  return backward(grad_out, input, weight, value(running_mean), value(running_var), value(save_mean),
                  value(save_rstd), update, eps, mask);
}

}  // namespace

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("native_batch_norm", native_batch_norm);
  m.impl("native_batch_norm_backward", native_batch_norm_backward);
  m.impl("_native_batch_norm_legit", legit);
  m.impl("_native_batch_norm_legit.no_stats", legit_no_stats);
  m.impl("_batch_norm_with_update", with_update);
  m.impl("batch_norm_backward", new_backward);
}

}  // namespace dlb
