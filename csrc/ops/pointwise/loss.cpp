// Pointwise losses. Rows compute them for each element; a mean or sum over them is part of the same launch.
#include <ATen/ExpandUtils.h>
#include <ATen/core/Reduction.h>
#include <ATen/native/TypeProperties.h>
#include <ATen/ops/binary_cross_entropy_with_logits_compositeexplicitautograd_dispatch.h>
#include <ATen/ops/mse_loss_meta.h>
#include <ATen/ops/smooth_l1_loss_meta.h>

#include <deque>
#include <functional>

#include "ops/common/fused.h"
#include "ops/pointwise/rows.h"
#include "ops/pointwise/structured.h"

namespace dlb {
namespace {

// A loss: its row, and the row with a reduction behind it.
struct Loss {
  explicit Loss(const codegen::PointwiseOp& op)
      : each(op), mean(followed_by("mean")), sum(followed_by("sum")) {}

  const codegen::PointwiseOp& each;
  const FusedRows mean, sum;

 private:
  FusedRows followed_by(const std::string& reduction) const {
    std::string arguments = "x0, x1";
    for (int i = 0; i < each.scalars; ++i) arguments += ", s" + std::to_string(i);
    return FusedRows(std::string("v = ") + each.name + ".T(" + arguments + "); y0 = " + reduction + ".T(v)");
  }
};

// Whether a mean or a sum of that dtype is one of losses: of others PyTorch's reductions have their own
// errors and dtypes.
bool has_reduced_form(c10::ScalarType type) {
  return at::isFloatingType(type) || at::isComplexType(type);
}

bool on_one_device(at::TensorList tensors) {
  return std::all_of(tensors.begin(), tensors.end(), [&](const at::Tensor& t) {
    return t.device().type() == kDeviceType && t.device() == tensors[0].device();
  });
}

// Computes the loss of each element, or their mean or sum, into `out`, which is made where it is undefined.
at::Tensor& reduced(const Loss& loss, int64_t reduction, at::Tensor& out, Inputs inputs,
                    Scalars scalars = {}) {
  if (reduction == at::Reduction::None) {
    run_or_raise(loss.each, out, inputs, scalars);
    return out;
  }
  c10::SmallVector<at::Tensor, 2> operands;
  for (const at::Tensor* input : inputs) operands.push_back(*input);
  const c10::ScalarType type = at::native::result_type(operands);
  const auto check = [&](c10::ScalarType result) {
    TORCH_CHECK(!out.defined() || c10::canCast(result, out.scalar_type()), "result type ", result,
                " can't be cast to the desired output type ", out.scalar_type());
  };
  if (has_reduced_form(type) && on_one_device(operands)) {
    check(type);
    const FusedOp& op = (reduction == at::Reduction::Mean ? loss.mean : loss.sum).of(type);
    if (!out.defined()) return out = run_fused(op, {operands, scalars})[0];
    out.resize_({});
    run_fused_out(op, {operands, scalars}, out);
    return out;
  }
  at::Tensor each;
  run_or_raise(loss.each, each, inputs, scalars);
  const at::Tensor result = reduction == at::Reduction::Mean ? each.mean() : each.sum();
  if (!out.defined()) return out = result;
  check(result.scalar_type());
  out.resize_({});
  return out.copy_(result);
}

// The factor of a gradient: the mean divides it among the elements.
double share(int64_t reduction, const at::Tensor& input) {
  return reduction == at::Reduction::Mean ? 1.0 / static_cast<double>(input.numel()) : 1.0;
}

constexpr codegen::PointwiseOp kMse = {.name = "mse",
                                       .on_float = "const T d = x0 - x1; y0 = d * d;",
                                       .on_int = "const T d = x0 - x1; y0 = d * d;",
                                       .on_complex = "const T d = x0 - x1; y0 = dlb_cmul(d, d);"};
constexpr codegen::PointwiseOp kMseBackward = {.name = "mse_backward",
                                               .on_float = "s0 * (x1 - x2) * x0",
                                               .on_complex = "dlb_cmul(dlb_cmul(s0, x1 - x2), x0)",
                                               .scalars = 1};

// Losses that are quadratic near zero. A gradient's x0 is the gradient of the result, x1 the input, x2 the
// target.
#define DLB_NEAR(near, far) "const T z = fabs(x0 - x1); y0 = z < s0 ? " near " : " far ";"
#define DLB_NEAR_GRAD(near, far) \
  "const T d = x1 - x2; y0 = d <= -s1 ? -" far " : d >= s1 ? " far " : " near ";"
constexpr codegen::PointwiseOp kSmoothL1 =
    float_op("smooth_l1", DLB_NEAR("C(0.5) * z * z / s0", "z - C(0.5) * s0"), nullptr, 1);
constexpr codegen::PointwiseOp kSmoothL1Backward =
    float_op("smooth_l1_backward", DLB_NEAR_GRAD("s0 * d * x0 / s1", "s0 * x0"), nullptr, 2);
constexpr codegen::PointwiseOp kHuber =
    float_op("huber", DLB_NEAR("C(0.5) * z * z", "s0 * (z - C(0.5) * s0)"), nullptr, 1);
constexpr codegen::PointwiseOp kHuberBackward =
    float_op("huber_backward", DLB_NEAR_GRAD("s0 * d * x0", "s0 * x0 * s1"), nullptr, 2);

const Loss kMseLoss(kMse), kSmoothL1Loss(kSmoothL1), kHuberLoss(kHuber);

// The logarithms are bounded below by -100, as PyTorch documents.
constexpr codegen::PointwiseOp kBce = {
    .name = "bce",
    .on_float =
        "bad = !(x0 >= 0 && x0 <= C(1.0)); const T p = dlb_log(x0), q = dlb_log1p(-x0); y0 = (x1 - C(1.0)) * "
        "(q "
        "< C(-100.0) ? C(-100.0) : q) - x1 * (p < C(-100.0) ? C(-100.0) : p);",
    .error = "all elements of input should be between 0 and 1"};
constexpr codegen::PointwiseOp kBceBackward = {
    .name = "bce_backward",
    .on_float = "const T v = (C(1.0) - x1) * x1; y0 = s0 * x0 * (x1 - x2) / (v < C(1e-12) ? C(1e-12) : v);",
    .scalars = 1};
at::Tensor& mse_out(const at::Tensor& self, const at::Tensor& target, int64_t reduction, at::Tensor& out) {
  return reduced(kMseLoss, reduction, out, {&self, &target});
}
at::Tensor& mse_backward_out(const at::Tensor& grad, const at::Tensor& self, const at::Tensor& target,
                             int64_t reduction, at::Tensor& out) {
  run_or_raise(kMseBackward, out, {&grad, &self, &target}, c10::Scalar(2.0 * share(reduction, self)));
  return out;
}
at::Tensor mse_backward(const at::Tensor& grad, const at::Tensor& self, const at::Tensor& target,
                        int64_t reduction) {
  at::Tensor out;
  return mse_backward_out(grad, self, target, reduction, out);
}

at::Tensor& smooth_l1_out(const at::Tensor& self, const at::Tensor& target, int64_t reduction, double beta,
                          at::Tensor& out) {
  TORCH_CHECK(beta >= 0, "smooth_l1_loss does not support negative values for beta.");
  return reduced(kSmoothL1Loss, reduction, out, {&self, &target}, c10::Scalar(beta));
}
at::Tensor& smooth_l1_backward_out(const at::Tensor& grad, const at::Tensor& self, const at::Tensor& target,
                                   int64_t reduction, double beta, at::Tensor& out) {
  run_or_raise(kSmoothL1Backward, out, {&grad, &self, &target}, {share(reduction, self), beta});
  return out;
}

at::Tensor& huber_out(const at::Tensor& self, const at::Tensor& target, int64_t reduction, double delta,
                      at::Tensor& out) {
  TORCH_CHECK(delta > 0, "huber_loss does not support non-positive values for delta.");
  return reduced(kHuberLoss, reduction, out, {&self, &target}, c10::Scalar(delta));
}
at::Tensor huber(const at::Tensor& self, const at::Tensor& target, int64_t reduction, double delta) {
  at::Tensor out;
  return huber_out(self, target, reduction, delta, out);
}
at::Tensor& huber_backward_out(const at::Tensor& grad, const at::Tensor& self, const at::Tensor& target,
                               int64_t reduction, double delta, at::Tensor& out) {
  run_or_raise(kHuberBackward, out, {&grad, &self, &target}, {share(reduction, self), delta});
  return out;
}

// Of scores before the sigmoid: (1 - target) * x - (1 + (positive - 1) * target) * log_sigmoid(x), which
// PyTorch composes of six ops. The positive class's weight is x2.
#define DLB_LOG_SIGMOID "const T l = (x0 < 0 ? x0 : x0 != x0 ? x0 : C(0.0)) - dlb_log1p(dlb_exp(-fabs(x0))); "
constexpr codegen::PointwiseOp kBceLogits =
    float_op("bce_logits", DLB_LOG_SIGMOID "y0 = (C(1.0) - x1) * x0 - l;");
constexpr codegen::PointwiseOp kBceLogitsPositive = float_op(
    "bce_logits_positive", DLB_LOG_SIGMOID "y0 = (C(1.0) - x1) * x0 - ((x2 - C(1.0)) * x1 + C(1.0)) * l;");

using Weight = const std::optional<at::Tensor>&;

// The rows of each combination of a positive class's weight, a weight, and a reduction.
const FusedRows& bce_logits_rows(bool positive, bool weighted, int64_t reduction) {
  static const auto* all = [] {
    auto* made = new std::deque<FusedRows>;
    for (const bool with_positive : {false, true})
      for (const bool with_weight : {false, true})
        for (const char* then : {"", "mean", "sum"}) {
          std::string text =
              with_positive ? "v = bce_logits_positive.T(x0, x1, x2); " : "v = bce_logits.T(x0, x1); ";
          std::string last = "v";
          if (with_weight)
            text += std::string("w = mul.T(v, ") + (with_positive ? "x3" : "x2") + "); ", last = "w";
          made->emplace_back(text + "y0 = " + (*then ? std::string(then) + ".T(" + last + ")" : last));
        }
    return made;
  }();
  return (*all)[static_cast<size_t>((positive * 2 + weighted) * 3 + reduction)];
}

at::Tensor bce_logits(const at::Tensor& self, const at::Tensor& target, Weight weight, Weight positive,
                      int64_t reduction) {
  c10::SmallVector<at::Tensor, 4> inputs{self, target};
  for (Weight optional : {std::cref(positive), std::cref(weight)})
    if (optional && optional->defined()) inputs.push_back(*optional);
  const bool alike = std::all_of(inputs.begin(), inputs.end(),
                                 [&](const at::Tensor& t) { return t.scalar_type() == self.scalar_type(); });
  const bool known = reduction >= at::Reduction::None && reduction <= at::Reduction::Sum;
  const auto broadcasts = [&](const at::Tensor& t) { return at::is_expandable_to(t.sizes(), self.sizes()); };
  if (!alike || !known || !at::isFloatingType(self.scalar_type()) || self.sizes() != target.sizes() ||
      self.numel() == 0 || !on_one_device(inputs) || !std::all_of(inputs.begin(), inputs.end(), broadcasts))
    return at::compositeexplicitautograd::binary_cross_entropy_with_logits(self, target, weight, positive,
                                                                           reduction);
  const bool has_positive = positive && positive->defined(), has_weight = weight && weight->defined();
  return run_fused(bce_logits_rows(has_positive, has_weight, reduction).of(self.scalar_type()), {inputs})[0];
}

at::Tensor& finish_weighted(at::Tensor& each, Weight weight, int64_t reduction, at::Tensor& out) {
  if (weight && weight->defined()) each.mul_(*weight);
  if (reduction == at::Reduction::None && out.defined() && out.is_same(each)) return out;
  const at::Tensor result = reduction == at::Reduction::None   ? each
                            : reduction == at::Reduction::Mean ? each.mean()
                                                               : each.sum();
  if (!out.defined()) return out = result;
  out.resize_(result.sizes());
  return out.copy_(result);
}

at::Tensor& bce_out(const at::Tensor& self, const at::Tensor& target, Weight weight, int64_t reduction,
                    at::Tensor& out) {
  at::Tensor each;
  run_or_raise(kBce, each, {&self, &target});
  return finish_weighted(each, weight, reduction, out);
}
at::Tensor bce(const at::Tensor& self, const at::Tensor& target, Weight weight, int64_t reduction) {
  at::Tensor out;
  return bce_out(self, target, weight, reduction, out);
}
at::Tensor& bce_backward_out(const at::Tensor& grad, const at::Tensor& self, const at::Tensor& target,
                             Weight weight, int64_t reduction, at::Tensor& out) {
  run_or_raise(kBceBackward, out, {&grad, &self, &target}, c10::Scalar(share(reduction, self)));
  if (weight && weight->defined()) out.mul_(*weight);
  return out;
}
at::Tensor bce_backward(const at::Tensor& grad, const at::Tensor& self, const at::Tensor& target,
                        Weight weight, int64_t reduction) {
  at::Tensor out;
  return bce_backward_out(grad, self, target, weight, reduction, out);
}

const codegen::RegisterOps kLossOps(
    codegen::RowKind::Pointwise,
    {{kMse, "mse_loss.out", "common"},
     {kMseBackward, "mse_loss_backward mse_loss_backward.grad_input", "common"},
     {kSmoothL1, "smooth_l1_loss.out", "common"},
     {kSmoothL1Backward, "smooth_l1_loss_backward.grad_input", "common"},
     {kHuber, "huber_loss huber_loss.out", "common"},
     {kHuberBackward, "huber_loss_backward.out", "common"},
     {kBceLogits, "binary_cross_entropy_with_logits", "common"},
     {kBceLogitsPositive, "binary_cross_entropy_with_logits", "common"},
     {kBce, "binary_cross_entropy binary_cross_entropy.out", "common"},
     {kBceBackward, "binary_cross_entropy_backward binary_cross_entropy_backward.grad_input", "common"}});

}  // namespace

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("mse_loss.out", mse_out);
  m.impl("mse_loss_backward", mse_backward);
  m.impl("mse_loss_backward.grad_input", mse_backward_out);
  m.impl("smooth_l1_loss.out", smooth_l1_out);
  m.impl("smooth_l1_loss_backward.grad_input", smooth_l1_backward_out);
  m.impl("huber_loss", huber);
  m.impl("huber_loss.out", huber_out);
  m.impl("huber_loss_backward.out", huber_backward_out);
  m.impl("binary_cross_entropy_with_logits", bce_logits);
  m.impl("binary_cross_entropy", bce);
  m.impl("binary_cross_entropy.out", bce_out);
  m.impl("binary_cross_entropy_backward", bce_backward);
  m.impl("binary_cross_entropy_backward.grad_input", bce_backward_out);
}

}  // namespace dlb
