// Activations forward and backward: tables of rows, and the ones whose signatures fit no table.
#include <ATen/WrapDimUtils.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>

#include <cmath>

#include "ops/pointwise/rows.h"

namespace dlb {
namespace {

// Raised before anything is computed, as on the CPU.
template <size_t Length>
struct Text {
  char text[Length];
  constexpr Text(const char (&literal)[Length]) { std::copy(literal, literal + Length, text); }
};
template <Text Message>
void check_not_bool(Inputs in, Scalars, c10::ScalarType) {
  TORCH_CHECK(in[0]->scalar_type() != at::kBool, Message.text);
}

// Ops of floating point numbers raise for others before they look at scalars.
template <Check Then>
void check_floats(Inputs in, Scalars scalars, c10::ScalarType common) {
  if (at::isFloatingType(common)) Then(in, scalars, common);
}

#define DLB_SIGMOID(x) "C(1.0) / (C(1.0) + dlb_exp(-(" x ")))"

constexpr std::array kActivations = {
    PointwiseRow{"relu", "out", Promote::Same, real_op("relu", "x0 < 0 ? (T)0 : x0"), kFunctional | kInplace,
                 "", check_not_bool<"Boolean inputs not supported for relu">},
    PointwiseRow{"silu", "out", Promote::Fixed,
                 float_op("silu", "x0 / (C(1.0) + dlb_exp(-x0))", "dlb_cdiv(x0, (T)(1, 0) + dlb_cexp(-x0))")},
    // tanh(log1p(e)) = (e^2 + 2e) / (e^2 + 2e + 2); above 20 the quotient is 1.
    PointwiseRow{
        "mish", "out", Promote::Fixed,
        float_op(
            "mish",
            "const T e = dlb_exp(x0 > C(20.0) ? C(20.0) : x0), n = e * (e + C(2.0)); y0 = x0 * (n / (n + "
            "C(2.0)));")},
    PointwiseRow{
        "hardsigmoid", "out", Promote::Fixed,
        float_op("hardsigmoid",
                 "const T t = x0 + C(3.0); y0 = (t < 0 ? C(0.0) : t > C(6.0) ? C(6.0) : t) / C(6.0);")},
    PointwiseRow{
        "hardswish", "out", Promote::Fixed,
        float_op("hardswish",
                 "const T t = x0 + C(3.0); y0 = x0 * (t < 0 ? C(0.0) : t > C(6.0) ? C(6.0) : t) / C(6.0);"),
        kAll},
};

// An op whose numbers are rounded to the elements' dtype before they are compared.
constexpr codegen::PointwiseOp rounding(codegen::PointwiseOp op) {
  op.rounded_scalars = true;
  return op;
}

constexpr std::array kActivations1 = {
    PointwiseRow{"leaky_relu", "out", Promote::Fixed,
                 float_op("leaky_relu", "x0 > 0 ? x0 : x0 * s0", nullptr, 1), kOut, "",
                 check_floats<check_scalars_fit_compute>},
    PointwiseRow{"hardshrink", "out", Promote::Fixed,
                 rounding(float_op("hardshrink", "x0 >= -s0 && x0 <= s0 ? C(0.0) : x0", nullptr, 1)), kOut,
                 "", check_floats<check_scalars_fit>},
    PointwiseRow{
        "softshrink", "out", Promote::Fixed,
        float_op("softshrink", "x0 != x0 ? x0 : x0 > s0 ? x0 - s0 : x0 < -s0 ? x0 + s0 : C(0.0)", nullptr, 1),
        kOut, "",
        [](Inputs, Scalars s, c10::ScalarType) {
          TORCH_CHECK(s[0].toDouble() >= 0, "lambda must be greater or equal to 0, but found to be ",
                      s[0].toDouble(), ".");
        }},
};

void check_hardtanh(Inputs in, Scalars s, c10::ScalarType type) {
  TORCH_CHECK(in[0]->scalar_type() != at::kBool, "Bool inputs not supported for hardtanh");
  if (c10::isIntegralType(in[0]->scalar_type(), false))
    TORCH_CHECK(in[0]->scalar_type() != at::kByte || s[0].toLong() >= 0,
                "cannot do hardtanh on an unsigned type with negative limits");
  TORCH_CHECK(s[0].toDouble() <= s[1].toDouble(), "min_val cannot be greater than max_val");
  check_scalars_fit(in, s, type);
}
// 16-bit numbers are compared as floats.
void check_threshold(Inputs, Scalars s, c10::ScalarType type) {
  check_scalar_fits_compute(s[0], type);
  check_scalar_fits(s[1], type);
}

constexpr std::array kActivations2 = {
    PointwiseRow{"threshold", "out", Promote::Same, real_op("threshold", "x0 <= s0 ? s1 : x0", 2), kOut, "",
                 check_threshold, /*may_overlap=*/true},
    PointwiseRow{"softplus", "out", Promote::Fixed,
                 float_op("softplus", "const T t = x0 * s0; y0 = t > s1 ? x0 : dlb_log1p(dlb_exp(t)) / s0;",
                          nullptr, 2),
                 kOut, "", check_floats<check_scalars_fit_compute>},
    PointwiseRow{"hardtanh", "out", Promote::Fixed,
                 real_op("hardtanh", "x0 < s0 ? s0 : x0 > s1 ? s1 : x0", 2), kAll, "", check_hardtanh},
};

// alpha, scale, input_scale
constexpr std::array kActivations3 = {
    PointwiseRow{"elu", "out", Promote::Fixed,
                 float_op("elu", "x0 < 0 ? dlb_expm1(x0 * s2) * s0 * s1 : x0 * s1", nullptr, 3), kOut, "",
                 check_floats<check_scalars_fit_compute>},
};

// x0 is the gradient of the result; x1 the result for sigmoid and tanh, else the input.
constexpr std::array kBackward = {
    PointwiseRow{"sigmoid_backward", "grad_input", Promote::Same,
                 float_op("sigmoid_backward", "x0 * (C(1.0) - x1) * x1",
                          "dlb_cmul(x0, dlb_cmul((T)(1 - x1.x, x1.y), (T)(x1.x, -x1.y)))")},
    PointwiseRow{"tanh_backward", "grad_input", Promote::Same,
                 float_op("tanh_backward", "x0 * (C(1.0) - x1 * x1)",
                          "const T q = dlb_cmul(x1, x1); y0 = dlb_cmul(x0, (T)(1 - q.x, q.y));")},
    PointwiseRow{"silu_backward", "grad_input", Promote::Same,
                 float_op("silu_backward",
                          "const T s = " DLB_SIGMOID("x1") "; y0 = x0 * s * (C(1.0) + x1 * (C(1.0) - s));",
                          "const T one = (T)(1, 0), s = dlb_cdiv(one, one + dlb_cexp(-x1)); "
                          "y0 = dlb_cmul(dlb_cmul(x0, s), one + dlb_cmul(x1, one - s));"),
                 kOut | kFunctional},
    PointwiseRow{
        "mish_backward", "", Promote::Same,
        float_op(
            "mish_backward",
            "const T e = dlb_exp(x1 > C(20.0) ? C(20.0) : x1), n = e * (e + C(2.0)), t = n / (n + C(2.0)); "
            "y0 = x0 * (t + x1 * (e / (C(1.0) + e)) * (C(1.0) - t * t));"),
        kFunctional},
    PointwiseRow{"hardsigmoid_backward", "grad_input", Promote::Same,
                 float_op("hardsigmoid_backward", "x1 > C(-3.0) && x1 < C(3.0) ? x0 / C(6.0) : C(0.0)")},
    PointwiseRow{"hardswish_backward", "", Promote::Same,
                 float_op("hardswish_backward",
                          "x1 <= C(-3.0) ? C(0.0) : x1 < C(3.0) ? x0 * (x1 / C(3.0) + C(0.5)) : x0"),
                 kFunctional},
    PointwiseRow{"_prelu_kernel", "", Promote::Fixed, float_op("prelu", "x0 > 0 ? x0 : x1 * x0"),
                 kFunctional},
};

constexpr std::array kBackward1 = {
    PointwiseRow{"threshold_backward", "grad_input", Promote::Same,
                 real_op("threshold_backward", "x1 <= s0 ? (T)0 : x0", 1)},
    PointwiseRow{
        "hardshrink_backward", "grad_input", Promote::Same,
        rounding(float_op("hardshrink_backward", "x1 >= -s0 && x1 <= s0 ? C(0.0) : x0", nullptr, 1))},
    PointwiseRow{"softshrink_backward", "grad_input", Promote::Same,
                 float_op("softshrink_backward", "x1 >= -s0 && x1 <= s0 ? C(0.0) : x0", nullptr, 1)},
};

constexpr std::array kBackward2 = {
    PointwiseRow{"softplus_backward", "grad_input", Promote::Same,
                 float_op("softplus_backward",
                          "const T t = x1 * s0, z = dlb_exp(t); y0 = t > s1 ? x0 : x0 * z / (z + C(1.0));",
                          nullptr, 2)},
    PointwiseRow{"hardtanh_backward", "grad_input", Promote::Same,
                 float_op("hardtanh_backward", "x1 <= s0 || x1 >= s1 ? C(0.0) : x0", nullptr, 2),
                 kOut | kFunctional},
};

constexpr codegen::PointwiseOp kGelu = float_op("gelu", "x0 * dlb_normal_cdf(x0)");
#define DLB_GELU_INNER(x) "C(0.79788456080286535588) * (" x " + C(0.044715) * " x " * " x " * " x ")"
constexpr codegen::PointwiseOp kGeluTanh =
    float_op("gelu_tanh", "C(0.5) * x0 * (C(1.0) + dlb_tanh(" DLB_GELU_INNER("x0") "))");
constexpr codegen::PointwiseOp kGeluBackward =
    float_op("gelu_backward",
             "y0 = x0 * (dlb_normal_cdf(x1) + x1 * C(0.39894228040143267794) * dlb_exp(C(-0.5) * x1 * x1));");
constexpr codegen::PointwiseOp kGeluTanhBackward = float_op(
    "gelu_tanh_backward", "const T t = dlb_tanh(" DLB_GELU_INNER(
                              "x1") "); y0 = x0 * (C(0.5) * (C(1.0) + t) + C(0.5) * x1 * (C(1.0) - t * t) * "
                                    "C(0.79788456080286535588) * (C(1.0) + C(0.134145) * x1 * x1));");

bool is_tanh(std::string_view approximate) {
  TORCH_CHECK(approximate == "none" || approximate == "tanh",
              "approximate argument must be either none or tanh.");
  return approximate == "tanh";
}
at::Tensor& gelu_out(const at::Tensor& self, std::string_view approximate, at::Tensor& out) {
  return run_or_raise(is_tanh(approximate) ? kGeluTanh : kGelu, out, {&self}, {}, Promote::Fixed);
}
at::Tensor& gelu_backward_out(const at::Tensor& grad, const at::Tensor& self, std::string_view approximate,
                              at::Tensor& out) {
  return run_or_raise(is_tanh(approximate) ? kGeluTanhBackward : kGeluBackward, out, {&grad, &self});
}

constexpr codegen::PointwiseOp kLeakyReluBackward =
    float_op("leaky_relu_backward", "x1 > 0 ? x0 : x0 * s0", nullptr, 1);
at::Tensor& leaky_relu_backward_out(const at::Tensor& grad, const at::Tensor& self, const c10::Scalar& slope,
                                    bool is_result, at::Tensor& out) {
  TORCH_CHECK(
      !is_result || slope.toDouble() >= 0.0,
      "In-place leakyReLu backward calculation is triggered with a negative slope which is not supported. "
      "This is caused by calling in-place forward function with a negative slope, please call out-of-place "
      "version instead.");
  return run_or_raise(kLeakyReluBackward, out, {&grad, &self}, slope);
}

constexpr codegen::PointwiseOp kEluBackward =
    float_op("elu_backward", "x1 <= 0 ? x0 * s2 * s0 * s1 * dlb_exp(x1 * s2) : x0 * s1", nullptr, 3);
constexpr codegen::PointwiseOp kEluBackwardResult =
    float_op("elu_backward_result", "x1 <= 0 ? x0 * s2 * (x1 + s0 * s1) : x0 * s1", nullptr, 3);
at::Tensor& elu_backward_out(const at::Tensor& grad, const c10::Scalar& alpha, const c10::Scalar& scale,
                             const c10::Scalar& input_scale, bool is_result, const at::Tensor& self,
                             at::Tensor& out) {
  TORCH_CHECK(
      !is_result || alpha.toDouble() >= 0.0,
      "In-place elu backward calculation is triggered with a negative slope which is not supported. This is "
      "caused by calling in-place forward function with a negative slope, please call out-of-place version "
      "instead.");
  return run_or_raise(is_result ? kEluBackwardResult : kEluBackward, out, {&grad, &self},
                      {alpha, scale, input_scale});
}

constexpr codegen::PointwiseOp kLogitBackward =
    float_op("logit_backward", "x1 < s0 || x1 > s1 ? s2 : x0 / (x1 * (C(1.0) - x1))", nullptr, 3);
at::Tensor& logit_backward_out(const at::Tensor& grad, const at::Tensor& self, std::optional<double> eps,
                               at::Tensor& out) {
  const bool clamps = eps && *eps >= 0;
  return run_or_raise(kLogitBackward, out, {&grad, &self},
                      {clamps ? *eps : 0.0, clamps ? 1.0 - *eps : 1.0, clamps ? 0.0 : NAN});
}

// The buffer that the CPU keeps for the backward stays empty, as on other accelerators.
constexpr codegen::PointwiseOp kLogSigmoid =
    float_op("log_sigmoid", "(x0 < 0 ? x0 : x0 != x0 ? x0 : C(0.0)) - dlb_log1p(dlb_exp(-fabs(x0)))");
constexpr codegen::PointwiseOp kLogSigmoidBackward =
    float_op("log_sigmoid_backward",
             "const T z = dlb_exp(-fabs(x1)), f = z / (C(1.0) + z); y0 = x0 * (x1 < 0 ? C(1.0) - f : f);");
std::tuple<at::Tensor&, at::Tensor&> log_sigmoid_out(const at::Tensor& self, at::Tensor& out,
                                                     at::Tensor& buffer) {
  run_or_raise(kLogSigmoid, out, {&self}, {}, Promote::Fixed);
  return {out, buffer};
}
std::tuple<at::Tensor, at::Tensor> log_sigmoid(const at::Tensor& self) {
  at::Tensor out, buffer = at::empty({0}, self.options());
  run_or_raise(kLogSigmoid, out, {&self});
  return {out, buffer};
}
at::Tensor& log_sigmoid_backward_out(const at::Tensor& grad, const at::Tensor& self, const at::Tensor&,
                                     at::Tensor& out) {
  return run_or_raise(kLogSigmoidBackward, out, {&grad, &self});
}
at::Tensor log_sigmoid_backward(const at::Tensor& grad, const at::Tensor& self, const at::Tensor&) {
  at::Tensor out;
  return run_or_raise(kLogSigmoidBackward, out, {&grad, &self});
}

// A two-output op over inputs of one shape.
void run_pair(const codegen::PointwiseOp& op, const at::Tensor& y0, const at::Tensor& y1, Inputs inputs,
              Scalars scalars = {}) {
  at::TensorIteratorConfig config;
  config.add_output(y0).add_output(y1);
  for (const at::Tensor* input : inputs) config.add_const_input(*input);
  auto iter = config.build();
  TORCH_CHECK_NOT_IMPLEMENTED(has_body(op, y0.scalar_type()), "\"", op.name, "\" not implemented for '",
                              y0.scalar_type(), "'");
  run_pointwise(op, iter, y0.scalar_type(), scalars);
}

constexpr codegen::PointwiseOp kPreluBackward = {
    .name = "prelu_backward", .on_float = "y0 = x1 > 0 ? x0 : x2 * x0; y1 = x1 > 0 ? C(0.0) : x1 * x0;"};
std::tuple<at::Tensor, at::Tensor> prelu_backward(const at::Tensor& grad, const at::Tensor& self,
                                                  const at::Tensor& weight) {
  at::Tensor grad_self = at::empty_like(self), grad_weight = at::empty(self.sizes(), weight.options());
  run_pair(kPreluBackward, grad_self, grad_weight, {&grad, &self, &weight});
  return {grad_self, grad_weight};
}

// glu: the first half of a dimension times the sigmoid of the second.
constexpr codegen::PointwiseOp kGlu = float_op("glu", "x0 / (C(1.0) + dlb_exp(-x1))");
constexpr codegen::PointwiseOp kGluBackward = float_op(
    "glu_backward", "const T s = " DLB_SIGMOID("x2") "; y0 = s * x0; y1 = (C(1.0) - s) * s * x0 * x1;");

int64_t glu_dim(const at::Tensor& self, int64_t dim) {
  TORCH_CHECK(self.dim() > 0, "glu does not support 0-dimensional tensors");
  dim = at::maybe_wrap_dim(dim, self.dim());
  TORCH_CHECK(self.size(dim) % 2 == 0, "Halving dimension must be even, but dimension ", dim, " is size ",
              self.size(dim));
  return dim;
}
at::Tensor& glu_out(const at::Tensor& self, int64_t dim, at::Tensor& out) {
  dim = glu_dim(self, dim);
  const int64_t half = self.size(dim) / 2;
  const at::Tensor a = self.narrow(dim, 0, half), b = self.narrow(dim, half, half);
  return run_or_raise(kGlu, out, {&a, &b});
}
at::Tensor& glu_backward_out(const at::Tensor& grad, const at::Tensor& self, int64_t dim, at::Tensor& out) {
  dim = glu_dim(self, dim);
  const int64_t half = self.size(dim) / 2;
  out.resize_as_(self);
  const at::Tensor a = self.narrow(dim, 0, half), b = self.narrow(dim, half, half);
  run_pair(kGluBackward, out.narrow(dim, 0, half), out.narrow(dim, half, half), {&grad, &a, &b});
  return out;
}
// Forward mode: da s(b) + glu (1 - s(b)) db.
at::Tensor glu_jvp(const at::Tensor& glu, const at::Tensor& self, const at::Tensor& tangent, int64_t dim) {
  dim = glu_dim(self, dim);
  const int64_t half = self.size(dim) / 2;
  const at::Tensor gate = self.narrow(dim, half, half).sigmoid(), db = tangent.narrow(dim, half, half);
  return tangent.narrow(dim, 0, half).mul(gate).add(glu.mul(db.sub(gate.mul(db))));
}

at::Tensor glu_backward(const at::Tensor& grad, const at::Tensor& self, int64_t dim) {
  at::Tensor out = at::empty({0}, self.options());
  return glu_backward_out(grad, self, dim, out);
}

// In training the slope of each negative element is random, and kept in `noise` (1 elsewhere).
constexpr codegen::PointwiseOp kRrelu = {
    .name = "rrelu", .on_float = "y0 = x0 <= 0 ? x0 * x1 : x0; y1 = x0 <= 0 ? x1 : C(1.0);"};

at::Tensor& rrelu_out(const at::Tensor& self, at::Tensor& noise, const c10::Scalar& lower,
                      const c10::Scalar& upper, bool training, std::optional<at::Generator> generator,
                      at::Tensor& out) {
  if (!training)
    return run_or_raise(row_op(kActivations1, "leaky_relu"), out, {&self},
                        c10::Scalar((lower.toDouble() + upper.toDouble()) / 2), Promote::Fixed);
  TORCH_CHECK(self.sym_sizes() == noise.sym_sizes(),
              "noise tensor shape must match self tensor shape. Got self.shape = ", self.sym_sizes(),
              " noise.shape = ", noise.sym_sizes());
  noise.uniform_(lower.toDouble(), upper.toDouble(), std::move(generator));
  if (!out.defined()) out = at::empty_like(self);
  if (!out.is_same(self)) out.resize_as_(self);
  run_pair(kRrelu, out, noise, {&self, &noise});
  return out;
}
at::Tensor rrelu(const at::Tensor& self, at::Tensor& noise, const c10::Scalar& lower,
                 const c10::Scalar& upper, bool training, std::optional<at::Generator> generator) {
  at::Tensor out;
  return rrelu_out(self, noise, lower, upper, training, std::move(generator), out);
}
at::Tensor& rrelu_(at::Tensor& self, at::Tensor& noise, const c10::Scalar& lower, const c10::Scalar& upper,
                   bool training, std::optional<at::Generator> generator) {
  return rrelu_out(self, noise, lower, upper, training, std::move(generator), self);
}

// add() with its result brought to [low, high], a residual connection's ReLU in the same pass; NaN stays.
// Without autograd. Raises RuntimeError for low above high, NotImplementedError for what is no floating point
// dtype.
constexpr PointwiseRow kAddBounded{"add_bounded",
                                   "",
                                   Promote::Same,
                                   {.name = "add_bounded",
                                    .on_float = "const T r = x0 + x1; y0 = r < s0 ? s0 : r > s1 ? s1 : r;",
                                    .scalars = 2}};

at::Tensor add_bounded(const at::Tensor& self, const at::Tensor& other, double low, double high) {
  TORCH_CHECK(low <= high, "add_bounded: low (", low, ") must not be above high (", high, ")");
  const at::Tensor* inputs[] = {&self, &other};
  const std::array<c10::Scalar, 2> bounds{low, high};
  at::Tensor result;
  TORCH_CHECK_NOT_IMPLEMENTED(
      run_row_flat(kAddBounded, inputs, bounds, result) || run_row(kAddBounded, inputs, bounds, result),
      "\"add_bounded\" not implemented for ", self.scalar_type(), " and ", other.scalar_type());
  return result;
}

const codegen::RegisterOps kActivationOps(
    codegen::RowKind::Pointwise,
    {{kGelu, "gelu.out", "fixed"},
     {kGeluTanh, "gelu.out", "fixed"},
     {kGeluBackward, "gelu_backward.grad_input", "common"},
     {kGeluTanhBackward, "gelu_backward.grad_input", "common"},
     {kLeakyReluBackward, "leaky_relu_backward.grad_input", "common"},
     {kEluBackward, "elu_backward.grad_input", "common"},
     {kEluBackwardResult, "elu_backward.grad_input", "common"},
     {kLogitBackward, "logit_backward.grad_input", "common"},
     {kLogSigmoid, "log_sigmoid_forward log_sigmoid_forward.output", "fixed"},
     {kLogSigmoidBackward, "log_sigmoid_backward log_sigmoid_backward.grad_input", "common"},
     {kPreluBackward, "_prelu_kernel_backward", "fixed"},
     {kGlu, "glu.out", "common"},
     {kGluBackward, "glu_backward glu_backward.grad_input", "fixed"},
     {kRrelu, "rrelu_with_noise rrelu_with_noise_ rrelu_with_noise.out", "fixed"},
     {kAddBounded.op, "dlbackend::add_bounded", "common"}});

}  // namespace

TORCH_LIBRARY_FRAGMENT(dlbackend, m) {
  m.def("add_bounded(Tensor self, Tensor other, float low, float high) -> Tensor",
        {at::Tag::pt2_compliant_tag});
}
TORCH_LIBRARY_IMPL(dlbackend, PrivateUse1, m) {
  m.impl("add_bounded", add_bounded);
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("glu_jvp", glu_jvp);
  register_rows<kActivations, 1, 0>(m);
  register_rows<kActivations1, 1, 1>(m);
  register_rows<kActivations2, 1, 2>(m);
  register_rows<kActivations3, 1, 3>(m);
  register_rows<kBackward, 2, 0>(m);
  register_rows<kBackward1, 2, 1>(m);
  register_rows<kBackward2, 2, 2>(m);
  m.impl("gelu.out", gelu_out);
  m.impl("gelu_backward.grad_input", gelu_backward_out);
  m.impl("leaky_relu_backward.grad_input", leaky_relu_backward_out);
  m.impl("elu_backward.grad_input", elu_backward_out);
  m.impl("logit_backward.grad_input", logit_backward_out);
  m.impl("log_sigmoid_forward", log_sigmoid);
  m.impl("log_sigmoid_forward.output", log_sigmoid_out);
  m.impl("log_sigmoid_backward", log_sigmoid_backward);
  m.impl("log_sigmoid_backward.grad_input", log_sigmoid_backward_out);
  m.impl("_prelu_kernel_backward", prelu_backward);
  m.impl("glu.out", glu_out);
  m.impl("glu_backward", glu_backward);
  m.impl("glu_backward.grad_input", glu_backward_out);
  m.impl("rrelu_with_noise", rrelu);
  m.impl("rrelu_with_noise_", rrelu_);
  m.impl("rrelu_with_noise.out", rrelu_out);
}

}  // namespace dlb
