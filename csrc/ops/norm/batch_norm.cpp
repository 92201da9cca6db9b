// Batch normalisation, training and inference, over contiguous and channels-last inputs.
#include <ATen/ops/empty.h>
#include <torch/library.h>

#include "ops/common/structured.h"
#include "primitives/norm/norm.h"
#include "runtime/new_tensor.h"

namespace dlb {
namespace {

using at::Tensor;
using OptionalTensor = std::optional<Tensor>;
using Three = std::tuple<Tensor, Tensor, Tensor>;
using Four = std::tuple<Tensor, Tensor, Tensor, Tensor>;

Tensor value(const OptionalTensor& tensor) {
  return tensor ? *tensor : Tensor();
}
Tensor contiguous(const Tensor& tensor) {
  return tensor.defined() ? tensor.contiguous() : tensor;
}
Tensor as_dtype(const Tensor& tensor, c10::ScalarType type) {
  return tensor.defined() ? tensor.to(type).contiguous() : tensor;
}

// The input in a layout that the primitive takes.
struct Input {
  Tensor x;
  at::MemoryFormat format = at::MemoryFormat::Contiguous;
  norm::Shape shape;

  explicit Input(const Tensor& input) {
    TORCH_CHECK(input.dim() >= 2, "batch_norm: expected an input of at least 2 dimensions, got ",
                input.dim());
    format = input.suggest_memory_format();
    x = input.contiguous(format);
    shape = {x.size(0), x.size(1)};
    shape.length = x.numel() ? x.numel() / (shape.samples * shape.channels) : 0;
    shape.channels_last = format != at::MemoryFormat::Contiguous;
  }
  Tensor like() const { return new_tensor(x.sizes(), x.scalar_type(), x.device(), format); }
};

void check_size(const Tensor& tensor, int64_t channels, const char* name) {
  TORCH_CHECK(!tensor.defined() || tensor.numel() == channels, "batch_norm: ", name, " should contain ",
              channels, " elements, not ", tensor.numel());
}

// Statistics that kernels update in place: they may be strided.
class Updated {
 public:
  explicit Updated(const Tensor& tensor) : original_(tensor) {
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
  const int64_t channels = in.shape.channels;
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
  const norm::Context context(in.x, any, "batch_norm");
  Tensor y = in.like();
  Tensor save_mean = context.scratch(training ? channels : 0),
         save_rstd = context.scratch(training ? channels : 0);
  if (in.x.numel() == 0) return {y, save_mean.zero_(), save_rstd.zero_()};

  const Updated mean(running_mean), var(running_var);
  norm::batch_norm(context, in.shape, {in.x, contiguous(weight), contiguous(bias), y, save_mean, save_rstd},
                   {mean.values, var.values}, training, momentum, eps);
  if (training) mean.finish(), var.finish();
  return {std::move(y), std::move(save_mean), std::move(save_rstd)};
}

Three backward(const Tensor& grad_out, const Tensor& input, const Tensor& weight, const Tensor& running_mean,
               const Tensor& running_var, const Tensor& save_mean, const Tensor& save_rstd, bool training,
               double eps, std::array<bool, 3> mask) {
  const Input in(input);
  const int64_t channels = in.shape.channels;
  const Tensor dy = grad_out.contiguous(in.format);
  const Tensor& any = weight.defined() ? weight : running_mean;
  const c10::ScalarType param_type = any.defined() ? any.scalar_type() : in.x.scalar_type();
  const norm::Context context(in.x, any, "batch_norm_backward");
  auto param_grad = [&](bool wanted) {
    return wanted ? new_tensor({channels}, param_type, in.x.device()) : Tensor();
  };
  Tensor dx = mask[0] ? in.like() : Tensor(), dw = param_grad(mask[1]), db = param_grad(mask[2]);
  if (in.x.numel() == 0) {
    for (Tensor* t : {&dw, &db})
      if (t->defined()) t->zero_();
    return {dx, dw, db};
  }
  const auto wanted = [](bool is, const Tensor& tensor, c10::ScalarType type) {
    return is ? as_dtype(tensor, type) : Tensor();
  };
  const Tensor mean = wanted(training, save_mean, context.compute_scalar),
               rstd = wanted(training, save_rstd, context.compute_scalar),
               running = wanted(!training, running_mean, param_type),
               variance = wanted(!training, running_var, param_type);
  norm::batch_norm_backward(context, in.shape,
                            {in.x, dy, as_dtype(weight, param_type), mean, rstd, dx, dw, db},
                            {running, variance}, training, eps);
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
// PyTorch's kernel for all devices would call that of the CPU.
Four no_update(const Tensor& input, const OptionalTensor& weight, const OptionalTensor& bias,
               const OptionalTensor& running_mean, const OptionalTensor& running_var, double momentum,
               double eps) {
  auto [y, mean, rstd] =
      native_batch_norm(input, weight, bias, running_mean, running_var, false, momentum, eps);
  return {y, mean, rstd, at::empty({0}, input.options().dtype(at::kByte))};
}

// The out= forms, which PyTorch does not make of the others.
using ThreeRefs = std::tuple<Tensor&, Tensor&, Tensor&>;
ThreeRefs give(const Three& results, Tensor& out, Tensor& save_mean, Tensor& save_rstd) {
  const auto give_one = [](const Tensor& result, Tensor& to) {
    check_out(to, result.options());
    at::native::resize_output(to, result.sizes());
    to.copy_(result);
  };
  give_one(std::get<0>(results), out);
  give_one(std::get<1>(results), save_mean);
  give_one(std::get<2>(results), save_rstd);
  return {out, save_mean, save_rstd};
}
ThreeRefs native_batch_norm_out(const Tensor& input, const OptionalTensor& weight, const OptionalTensor& bias,
                                const OptionalTensor& running_mean, const OptionalTensor& running_var,
                                bool training, double momentum, double eps, Tensor& out, Tensor& save_mean,
                                Tensor& save_rstd) {
  return give(native_batch_norm(input, weight, bias, running_mean, running_var, training, momentum, eps), out,
              save_mean, save_rstd);
}
ThreeRefs legit_out(const Tensor& input, const OptionalTensor& weight, const OptionalTensor& bias,
                    Tensor& running_mean, Tensor& running_var, bool training, double momentum, double eps,
                    Tensor& out, Tensor& save_mean, Tensor& save_rstd) {
  return give(legit(input, weight, bias, running_mean, running_var, training, momentum, eps), out, save_mean,
              save_rstd);
}
ThreeRefs legit_no_stats_out(const Tensor& input, const OptionalTensor& weight, const OptionalTensor& bias,
                             bool training, double momentum, double eps, Tensor& out, Tensor& save_mean,
                             Tensor& save_rstd) {
  return give(legit_no_stats(input, weight, bias, training, momentum, eps), out, save_mean, save_rstd);
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
  m.impl("native_batch_norm.out", native_batch_norm_out);
  m.impl("_native_batch_norm_legit.out", legit_out);
  m.impl("_native_batch_norm_legit.no_stats_out", legit_no_stats_out);
  m.impl("_native_batch_norm_legit", legit);
  m.impl("_native_batch_norm_legit.no_stats", legit_no_stats);
  m.impl("_batch_norm_with_update", with_update);
  m.impl("_batch_norm_no_update", no_update);
  m.impl("batch_norm_backward", new_backward);
}

}  // namespace dlb
