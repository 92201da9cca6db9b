// multi_margin_loss and multilabel_margin_loss with their gradients, made of other ops: they are rare and
// small.
#include <ATen/core/Reduction.h>
#include <ATen/native/Resize.h>
#include <ATen/ops/zeros_like.h>
#include <torch/library.h>

namespace dlb {
namespace {

using at::Scalar;
using at::Tensor;
using OptionalTensor = std::optional<Tensor>;

Tensor reduced(const Tensor& losses, int64_t reduction) {
  if (reduction == at::Reduction::Mean) return losses.mean();
  return reduction == at::Reduction::Sum ? losses.sum() : losses;
}

// The gradient of each row's loss, [rows, 1].
Tensor of_rows(const Tensor& grad, int64_t rows, int64_t reduction) {
  const Tensor each = reduction == at::Reduction::None && grad.dim() ? grad.reshape({rows, 1})
                                                                     : grad.reshape({1, 1}).expand({rows, 1});
  return reduction == at::Reduction::Mean ? each.div(rows) : each;
}

void check_floating(const Tensor& self, const char* op) {
  TORCH_CHECK_NOT_IMPLEMENTED(self.scalar_type() == at::kFloat || self.scalar_type() == at::kDouble, "\"", op,
                              "\" not implemented for '", c10::toString(self.scalar_type()), "'");
}

void check_long(const Tensor& target) {
  TORCH_CHECK(target.scalar_type() == at::kLong, "expected scalar type Long but found ",
              c10::toString(target.scalar_type()));
}

// The operands that loss and gradient of multi_margin_loss share; inputs are [rows, classes].
struct MultiMargin {
  Tensor target;   // [rows, 1]
  Tensor margins;  // max(0, margin - x[target] + x), 0 at the target, [rows, classes]
  Tensor weights;  // of each row's target, [rows, 1]; undefined without
  int64_t rows, classes;

  MultiMargin(const Tensor& self, const Tensor& given, const Scalar& p, const Scalar& margin,
              const OptionalTensor& weight) {
    TORCH_CHECK_VALUE(p.toDouble() == 1 || p.toDouble() == 2, "only p == 1 and p == 2 supported");
    TORCH_CHECK(
        (self.dim() == 2 && self.size(1) != 0) || (self.dim() == 1 && self.size(0) != 0) || self.dim() == 0,
        "Expected non-empty vector or matrix with optional 0-dim batch size, but got: ", self.sizes());
    check_floating(self, "multi_margin_loss");
    check_long(given);
    rows = self.dim() == 2 ? self.size(0) : 1, classes = self.dim() == 2 ? self.size(1) : self.numel();
    TORCH_CHECK(
        given.dim() <= 1 && given.numel() == rows,
        "multi_margin_loss: target tensor should be 1-D with size equal to the number of input samples "
        "(batch size). Expected target size [",
        rows, "], but got ", given.sizes(), ". Input has shape ", self.sizes(), ".");
    const Tensor x = self.reshape({rows, classes});
    target = given.reshape({rows, 1});
    margins = x.sub(x.gather(1, target)).add_(margin).clamp_min_(0).scatter_(1, target, 0);
    if (!weight || !weight->defined()) return;
    TORCH_CHECK(weight->numel() == classes, "inconsistent weight size, expected ", classes, " but got ",
                weight->sizes());
    weights = weight->reshape({-1}).index_select(0, target.view({-1})).view({rows, 1});
  }
};

Tensor multi_margin_loss(const Tensor& self, const Tensor& target, const Scalar& p, const Scalar& margin,
                         const OptionalTensor& weight, int64_t reduction) {
  const MultiMargin m(self, target, p, margin, weight);
  Tensor powers = p.toDouble() == 2 ? m.margins.square() : m.margins;
  if (m.weights.defined()) powers = powers.mul(m.weights);
  const Tensor losses = powers.sum(1).div_(m.classes);
  return reduced(self.dim() == 2 || reduction != at::Reduction::None ? losses : losses.view(target.sizes()),
                 reduction);
}

Tensor& multi_margin_loss_out(const Tensor& self, const Tensor& target, const Scalar& p, const Scalar& margin,
                              const OptionalTensor& weight, int64_t reduction, Tensor& out) {
  const Tensor loss = multi_margin_loss(self, target, p, margin, weight, reduction);
  at::native::resize_output(out, loss.sizes());
  return out.copy_(loss);
}

Tensor multi_margin_loss_backward(const Tensor& grad, const Tensor& self, const Tensor& target,
                                  const Scalar& p, const Scalar& margin, const OptionalTensor& weight,
                                  int64_t reduction) {
  const MultiMargin m(self, target, p, margin, weight);
  Tensor slopes = p.toDouble() == 2 ? m.margins.mul(2) : m.margins.gt(0).to(self.scalar_type());
  Tensor factor = of_rows(grad, m.rows, reduction).div(m.classes);
  if (m.weights.defined()) factor = factor.mul(m.weights);
  slopes = slopes.mul(factor);
  return slopes.scatter(1, m.target, slopes.sum(1, /*keepdim=*/true).neg_()).view(self.sizes());
}

Tensor& multi_margin_loss_backward_out(const Tensor& grad, const Tensor& self, const Tensor& target,
                                       const Scalar& p, const Scalar& margin, const OptionalTensor& weight,
                                       int64_t reduction, Tensor& out) {
  const Tensor dx = multi_margin_loss_backward(grad, self, target, p, margin, weight, reduction);
  at::native::resize_output(out, dx.sizes());
  return out.copy_(dx);
}

// The operands that loss and gradient of multilabel_margin_loss share. A row's targets end at the first
// negative number.
struct MultiLabel {
  Tensor targets;    // [rows, classes], 0 behind the end
  Tensor valid;      // before the end, of the input's dtype
  Tensor is_target;  // a class is among its row's targets
  Tensor margins;  // [rows, targets, classes]: max(0, 1 - x[target] + x[class]) of classes that are no target
  int64_t rows, classes;

  MultiLabel(const Tensor& self, const Tensor& given) {
    TORCH_CHECK(
        (self.dim() == 2 && self.size(1) != 0) || (self.dim() == 1 && self.size(0) != 0) || self.dim() == 0,
        "Expected non-empty vector or matrix with optional 0-dim batch size, but got: ", self.sizes());
    TORCH_CHECK(given.sizes() == self.sizes() ||
                    (self.dim() <= 1 && given.dim() <= 1 && given.numel() == self.numel()),
                "inconsistent target size: ", given.sizes(), " for input of size: ", self.sizes());
    check_floating(self, "multilabel_margin_loss");
    check_long(given);
    rows = self.dim() == 2 ? self.size(0) : 1, classes = self.dim() == 2 ? self.size(1) : self.numel();
    const Tensor x = self.reshape({rows, classes}), all = given.reshape({rows, classes});
    valid = all.lt(0).cumsum(1).eq(0).to(self.scalar_type());
    targets = all.mul(valid.to(at::kLong));
    is_target = at::zeros_like(x).scatter_add_(1, targets, valid).clamp_max_(1);
    const Tensor of_target = x.gather(1, targets).unsqueeze(2),
                 others = is_target.eq(0).to(self.scalar_type());
    margins = x.unsqueeze(1)
                  .sub(of_target)
                  .add_(1)
                  .clamp_min_(0)
                  .mul_(valid.unsqueeze(2))
                  .mul_(others.unsqueeze(1));
  }
};

std::tuple<Tensor, Tensor> multilabel_forward(const Tensor& self, const Tensor& target, int64_t reduction) {
  const MultiLabel m(self, target);
  const Tensor losses = m.margins.sum({1, 2}).div_(m.classes);
  return {reduced(self.dim() == 2 ? losses : losses.squeeze(0), reduction), m.is_target.view(target.sizes())};
}

std::tuple<Tensor&, Tensor&> multilabel_forward_out(const Tensor& self, const Tensor& target,
                                                    int64_t reduction, Tensor& output, Tensor& is_target) {
  const auto [loss, among] = multilabel_forward(self, target, reduction);
  at::native::resize_output(output, loss.sizes());
  at::native::resize_output(is_target, among.sizes());
  output.copy_(loss), is_target.copy_(among);
  return {output, is_target};
}

Tensor multilabel_backward(const Tensor& grad, const Tensor& self, const Tensor& target, int64_t reduction,
                           const Tensor& /*is_target*/) {
  const MultiLabel m(self, target);
  const Tensor slopes = m.margins.gt(0).to(self.scalar_type());
  const Tensor dx = slopes.sum(1).scatter_add_(1, m.targets, slopes.sum(2).neg_());
  return dx.mul_(of_rows(grad, m.rows, reduction).div(m.classes)).view(self.sizes());
}

Tensor& multilabel_backward_out(const Tensor& grad, const Tensor& self, const Tensor& target,
                                int64_t reduction, const Tensor& is_target, Tensor& out) {
  const Tensor dx = multilabel_backward(grad, self, target, reduction, is_target);
  at::native::resize_output(out, dx.sizes());
  return out.copy_(dx);
}

}  // namespace

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("multi_margin_loss", multi_margin_loss);
  m.impl("multi_margin_loss.out", multi_margin_loss_out);
  m.impl("multi_margin_loss_backward", multi_margin_loss_backward);
  m.impl("multi_margin_loss_backward.grad_input", multi_margin_loss_backward_out);
  m.impl("multilabel_margin_loss_forward", multilabel_forward);
  m.impl("multilabel_margin_loss_forward.output", multilabel_forward_out);
  m.impl("multilabel_margin_loss_backward", multilabel_backward);
  m.impl("multilabel_margin_loss_backward.grad_input", multilabel_backward_out);
}

}  // namespace dlb
