// Unary pointwise ops: tables of rows, and the few with arguments or promotion of their own.
#include <ATen/ops/conj_physical.h>
#include <ATen/ops/empty.h>
#include <c10/core/Scalar.h>

#include <cmath>
#include <limits>

#include "ops/pointwise/rows.h"

namespace dlb {
namespace {

constexpr std::array kUnary = {
    PointwiseRow{"neg",
                 "out",
                 Promote::Fixed,
                 {.name = "neg", .on_float = "-x0", .on_int = "-x0", .on_complex = "-x0"}},
    PointwiseRow{"sign",
                 "out",
                 Promote::Fixed,
                 {.name = "sign",
                  .on_float = "(T)((x0 > 0) - (x0 < 0))",
                  .on_int = "(T)((x0 > 0) - (x0 < 0))",
                  .on_bool = "x0"}},
    PointwiseRow{"sgn",
                 "out",
                 Promote::Fixed,
                 {.name = "sgn",
                  .on_float = "(T)((x0 > 0) - (x0 < 0))",
                  .on_int = "(T)((x0 > 0) - (x0 < 0))",
                  .on_bool = "x0",
                  .on_complex = "dlb_csgn(x0)"}},
    PointwiseRow{"ceil", "out", Promote::Fixed, {.name = "ceil", .on_float = "ceil(x0)", .on_int = "x0"}},
    PointwiseRow{"floor", "out", Promote::Fixed, {.name = "floor", .on_float = "floor(x0)", .on_int = "x0"}},
    PointwiseRow{
        "round", "out", Promote::Fixed, {.name = "round", .on_float = "dlb_rint(x0)", .on_int = "x0"}},
    PointwiseRow{"trunc", "out", Promote::Fixed, {.name = "trunc", .on_float = "trunc(x0)", .on_int = "x0"}},
    PointwiseRow{"frac", "out", Promote::Fixed, float_op("frac", "x0 - trunc(x0)")},
    PointwiseRow{
        "bitwise_not", "out", Promote::Fixed, {.name = "bitwise_not", .on_int = "~x0", .on_bool = "!x0"}},
    PointwiseRow{"logical_not", "out", Promote::Bool,
                 truth_op("logical_not", "x0 == 0", "x0.x == 0 && x0.y == 0")},
    PointwiseRow{"isposinf",
                 "out",
                 Promote::Truth,
                 {.name = "isposinf",
                  .on_float = "x0 == INFINITY",
                  .on_int = "0",
                  .on_bool = "0",
                  .bool_result = true}},
    PointwiseRow{"isneginf",
                 "out",
                 Promote::Truth,
                 {.name = "isneginf",
                  .on_float = "x0 == -INFINITY",
                  .on_int = "0",
                  .on_bool = "0",
                  .bool_result = true}},
    PointwiseRow{"isnan",
                 "",
                 Promote::Bool,
                 {.name = "isnan",
                  .on_float = "x0 != x0",
                  .on_int = "0",
                  .on_bool = "0",
                  .on_complex = "x0.x != x0.x || x0.y != x0.y",
                  .bool_result = true,
                  .takes_float8 = true},
                 kFunctional},
    PointwiseRow{"isinf",
                 "",
                 Promote::Bool,
                 {.name = "isinf",
                  .on_float = "fabs(x0) == INFINITY",
                  .on_int = "0",
                  .on_bool = "0",
                  .on_complex = "fabs(x0.x) == INFINITY || fabs(x0.y) == INFINITY",
                  .bool_result = true,
                  .takes_float8 = true},
                 kFunctional},
    PointwiseRow{"signbit",
                 "out",
                 Promote::Truth,
                 {.name = "signbit",
                  .on_float = "signbit(x0) != 0",
                  .on_int = "x0 < 0",
                  .on_bool = "0",
                  .bool_result = true}},
    PointwiseRow{"conj_physical",
                 "out",
                 Promote::Fixed,
                 {.name = "conj_physical",
                  .on_float = "x0",
                  .on_int = "x0",
                  .on_bool = "x0",
                  .on_complex = "(T)(x0.x, -x0.y)"}},
    PointwiseRow{"reciprocal", "out", Promote::Float,
                 float_op("reciprocal", "C(1.0) / x0", "dlb_cdiv((T)(1, 0), x0)")},
    PointwiseRow{"sqrt", "out", Promote::Float, float_op("sqrt", "sqrt(x0)", "dlb_csqrt(x0)")},
    PointwiseRow{"rsqrt", "out", Promote::Float,
                 float_op("rsqrt", "C(1.0) / sqrt(x0)", "dlb_cdiv((T)(1, 0), dlb_csqrt(x0))")},
    PointwiseRow{"exp", "out", Promote::Float, float_op("exp", "dlb_exp(x0)", "dlb_cexp(x0)")},
    PointwiseRow{"exp2", "out", Promote::Float,
                 float_op("exp2", "dlb_exp2(x0)", "dlb_cexp(x0 * C(0.69314718055994530942))")},
    PointwiseRow{"expm1", "out", Promote::Float, float_op("expm1", "dlb_expm1(x0)", "dlb_cexpm1(x0)")},
    PointwiseRow{"log", "out", Promote::Float, float_op("log", "dlb_log(x0)", "dlb_clog(x0)")},
    PointwiseRow{"log2", "out", Promote::Float,
                 float_op("log2", "dlb_log2(x0)", "dlb_clog(x0) * C(1.44269504088896340736)")},
    PointwiseRow{"log10", "out", Promote::Float,
                 float_op("log10", "dlb_log10(x0)", "dlb_clog(x0) * C(0.43429448190325182765)")},
    PointwiseRow{"log1p", "out", Promote::Float, float_op("log1p", "dlb_log1p(x0)", "dlb_clog1p(x0)")},
    PointwiseRow{"sin", "out", Promote::Float, float_op("sin", "dlb_sin(x0)", "dlb_csin(x0)")},
    PointwiseRow{"cos", "out", Promote::Float, float_op("cos", "dlb_cos(x0)", "dlb_ccos(x0)")},
    PointwiseRow{"tan", "out", Promote::Float, float_op("tan", "dlb_tan(x0)", "dlb_ctan(x0)")},
    PointwiseRow{"asin", "out", Promote::Float, float_op("asin", "dlb_asin(x0)", "dlb_casin(x0)")},
    PointwiseRow{"acos", "out", Promote::Float, float_op("acos", "dlb_acos(x0)", "dlb_cacos(x0)")},
    PointwiseRow{"atan", "out", Promote::Float, float_op("atan", "dlb_atan(x0)", "dlb_catan(x0)")},
    PointwiseRow{"sinh", "out", Promote::Float, float_op("sinh", "dlb_sinh(x0)", "dlb_csinh(x0)")},
    PointwiseRow{"cosh", "out", Promote::Float, float_op("cosh", "dlb_cosh(x0)", "dlb_ccosh(x0)")},
    PointwiseRow{"tanh", "out", Promote::Float, float_op("tanh", "dlb_tanh(x0)", "dlb_ctanh(x0)")},
    PointwiseRow{"asinh", "out", Promote::Float, float_op("asinh", "dlb_asinh(x0)", "dlb_casinh(x0)")},
    PointwiseRow{"acosh", "out", Promote::Float, float_op("acosh", "dlb_acosh(x0)", "dlb_cacosh(x0)")},
    PointwiseRow{"atanh", "out", Promote::Float, float_op("atanh", "dlb_atanh(x0)", "dlb_catanh(x0)")},
    PointwiseRow{"erf", "out", Promote::Float, float_op("erf", "dlb_erf(x0)")},
    PointwiseRow{"erfc", "out", Promote::Float, float_op("erfc", "dlb_erfc(x0)")},
    PointwiseRow{"erfinv", "out", Promote::Float, float_op("erfinv", "dlb_erfinv(x0)")},
    PointwiseRow{"digamma", "out", Promote::Float, float_op("digamma", "dlb_digamma(x0)")},
    PointwiseRow{"special_airy_ai", "out", Promote::Float, float_op("airy_ai", "dlb_airy_ai(x0)")},
    PointwiseRow{"lgamma", "out", Promote::Float, float_op("lgamma", "dlb_lgamma(x0)")},
    PointwiseRow{
        "sinc", "out", Promote::Float,
        float_op("sinc",
                 "const T p = x0 * C(3.14159265358979323846); y0 = x0 == 0 ? C(1.0) : dlb_sin(p) / p;",
                 "const T p = x0 * C(3.14159265358979323846); y0 = x0.x == 0 && x0.y == 0 ? (T)(1, 0) : "
                 "dlb_cdiv(dlb_csin(p), p);")},
    PointwiseRow{
        "special_entr", "out", Promote::Float,
        float_op("entr", "x0 != x0 ? x0 : x0 > 0 ? -x0 * dlb_log(x0) : x0 == 0 ? C(0.0) : -INFINITY")},
    PointwiseRow{"sigmoid", "out", Promote::Float,
                 float_op("sigmoid", "C(1.0) / (C(1.0) + dlb_exp(-x0))",
                          "dlb_cdiv((T)(1, 0), (T)(1, 0) + dlb_cexp(-x0))")},
};

// abs and angle of complex numbers are real; out= may be anything that the real result can be cast to.
constexpr PointwiseRow kAbs = {"abs",
                               "out",
                               Promote::Fixed,
                               {.name = "abs",
                                .on_float = "fabs(x0)",
                                .on_int = "x0 < 0 ? -x0 : x0",
                                .on_bool = "x0",
                                .on_complex = "dlb_cabs(x0)",
                                .real_result = true,
                                .takes_float8 = true}};
constexpr PointwiseRow kAngle = {"angle",
                                 "out",
                                 Promote::Float,
                                 {.name = "angle",
                                  .on_float = "x0 != x0 ? x0 : x0 < 0 ? C(3.14159265358979323846) : C(0.0)",
                                  .on_complex = "atan2(x0.y, x0.x)",
                                  .real_result = true}};

void complex_to_real(const codegen::PointwiseOp& op, const at::Tensor& self, at::Tensor& out) {
  TORCH_CHECK(c10::canCast(c10::toRealValueType(self.scalar_type()), out.scalar_type()), "result type ",
              c10::toRealValueType(self.scalar_type()), " can't be cast to the desired output type ",
              out.scalar_type());
  auto iter = at::TensorIteratorConfig()
                  .set_check_mem_overlap(true)
                  .check_all_same_dtype(false)
                  .add_output(out)
                  .add_const_input(self)
                  .build();
  run_pointwise(op, iter, self.scalar_type());
}

at::Tensor& abs_out(const at::Tensor& self, at::Tensor& out) {
  if (!self.is_complex())
    return Signature<std::index_sequence<>, std::index_sequence<>>::out<kAbs>(self, out);
  complex_to_real(kAbs.op, self, out);
  return out;
}

at::Tensor& angle_out(const at::Tensor& self, at::Tensor& out) {
  if (!self.is_complex())
    return Signature<std::index_sequence<>, std::index_sequence<>>::out<kAngle>(self, out);
  complex_to_real(kAngle.op, self, out);
  return out;
}

at::Tensor angle(const at::Tensor& self) {
  const c10::ScalarType type = c10::isIntegralType(self.scalar_type(), true)
                                   ? c10::get_default_dtype_as_scalartype()
                                   : c10::toRealValueType(self.scalar_type());
  at::Tensor out = at::empty({0}, self.options().dtype(type));
  return angle_out(self, out);
}

// Missing arguments stand for 0 and the largest and smallest finite numbers of the dtype.
constexpr codegen::PointwiseOp kNanToNum = {
    .name = "nan_to_num",
    .on_float = "x0 != x0 ? s0 : x0 == INFINITY ? s1 : x0 == -INFINITY ? s2 : x0",
    .on_int = "x0",
    .on_bool = "x0",
    .on_complex =
        "y0 = x0; if (x0.x != x0.x) y0.x = s0.x; else if (x0.x == INFINITY) y0.x = s1.x; else if (x0.x "
        "== -INFINITY) y0.x = s2.x; if (x0.y != x0.y) y0.y = s0.x; else if (x0.y == INFINITY) y0.y = "
        "s1.x; else if (x0.y == -INFINITY) y0.y = s2.x;",
    .scalars = 3};

double largest(c10::ScalarType type) {
  switch (c10::toRealValueType(type)) {
    case at::kHalf:
      return 65504;
    case at::kBFloat16:
      return std::numeric_limits<c10::BFloat16>::max();
    case at::kDouble:
      return std::numeric_limits<double>::max();
    default:
      return std::numeric_limits<float>::max();
  }
}

at::Tensor& nan_to_num_out(const at::Tensor& self, std::optional<double> nan, std::optional<double> posinf,
                           std::optional<double> neginf, at::Tensor& out) {
  TORCH_CHECK(self.scalar_type() == out.scalar_type(), "nan_to_num: dtype of out: ", out.scalar_type(),
              " should be same as input: ", self.scalar_type());
  auto iter = at::TensorIterator::unary_op(out, self);
  const double most = c10::isIntegralType(self.scalar_type(), true) ? 0 : largest(self.scalar_type());
  run_pointwise(kNanToNum, iter, {nan.value_or(0), posinf.value_or(most), neginf.value_or(-most)});
  return out;
}

constexpr codegen::PointwiseOp kRoundUp = {
    .name = "round_decimals", .on_float = "rint(x0 * s0) / s0", .scalars = 1};
constexpr codegen::PointwiseOp kRoundDown = {
    .name = "round_tens", .on_float = "rint(x0 / s0) * s0", .scalars = 1};

at::Tensor& round_decimals_out(const at::Tensor& self, int64_t decimals, at::Tensor& out) {
  auto iter = at::TensorIterator::unary_op(out, self);
  if (!c10::isFloatingType(iter.common_dtype()))
    return call_cpu_fallback<at::Tensor&, const at::Tensor&, int64_t, at::Tensor&>(
        "aten::round", "decimals_out", self, decimals, out);
  run_pointwise(decimals < 0 ? kRoundDown : kRoundUp, iter, {std::pow(10.0, std::abs(decimals))});
  return out;
}

constexpr codegen::PointwiseOp kLogit = float_op(
    "logit", "const T x = x0 < s0 ? s0 : x0 > s1 ? s1 : x0; y0 = dlb_log(x / (C(1.0) - x));", nullptr, 2);

// Without eps nothing is clamped: every number is within the bounds.
at::Tensor& logit_out(const at::Tensor& self, std::optional<double> eps, at::Tensor& out) {
  auto iter = at::TensorIterator::unary_float_op(out, self);
  if (!has_kernel(kLogit, iter.common_dtype(), iter.device(0)))
    return call_cpu_fallback<at::Tensor&, const at::Tensor&, std::optional<double>, at::Tensor&>(
        "aten::logit", "out", self, eps, out);
  const bool clamps = eps && *eps >= 0;
  const double infinity = std::numeric_limits<double>::infinity();
  run_pointwise(kLogit, iter, {clamps ? *eps : -infinity, clamps ? 1.0 - *eps : infinity});
  return out;
}
at::Tensor& logit_(at::Tensor& self, std::optional<double> eps) {
  return logit_out(self, eps, self);
}
at::Tensor logit(const at::Tensor& self, std::optional<double> eps) {
  const bool integral = c10::isIntegralType(self.scalar_type(), true);
  at::Tensor out = at::empty(
      {0}, self.options().dtype(integral ? c10::get_default_dtype_as_scalartype() : self.scalar_type()));
  return logit_out(self, eps, out);
}

// Complex numbers of real and imaginary part, or of length and angle. They are computed in the complex type,
// in which the inputs arrive with a zero imaginary part.
constexpr codegen::PointwiseOp kComplex = {.name = "complex", .on_complex = "(T)(x0.x, x1.x)"};
constexpr codegen::PointwiseOp kPolar = {.name = "polar",
                                         .on_complex = "(T)(x0.x * cos(x1.x), x0.x * sin(x1.x))"};

template <const codegen::PointwiseOp& Op>
at::Tensor& complex_out(const at::Tensor& a, const at::Tensor& b, at::Tensor& out) {
  auto is_real = [](const at::Tensor& t) {
    return t.scalar_type() == at::kFloat || t.scalar_type() == at::kDouble || t.scalar_type() == at::kHalf;
  };
  TORCH_CHECK(is_real(a) && is_real(b), "Expected both inputs to be Half, Float or Double tensors but got ",
              a.scalar_type(), " and ", b.scalar_type());
  TORCH_CHECK(a.scalar_type() == b.scalar_type(), "Expected object of scalar type ", a.scalar_type(),
              " but got scalar type ", b.scalar_type(), " for second argument");
  TORCH_CHECK(c10::toComplexType(a.scalar_type()) == out.scalar_type(), "Expected object of scalar type ",
              c10::toComplexType(a.scalar_type()), " but got scalar type ", out.scalar_type(),
              " for argument 'out'");
  auto iter = at::TensorIteratorConfig()
                  .add_output(out)
                  .add_const_input(a)
                  .add_const_input(b)
                  .check_all_same_dtype(false)
                  .build();
  run_pointwise(Op, iter, out.scalar_type());
  return out;
}

const codegen::RegisterOps kUnaryOps(codegen::RowKind::Pointwise,
                                     {{kAbs.op, "abs.out", "fixed"},
                                      {kAngle.op, "angle angle.out", "float"},
                                      {kNanToNum, "nan_to_num.out", "fixed"},
                                      {kRoundUp, "round.decimals_out", "fixed"},
                                      {kRoundDown, "round.decimals_out", "fixed"},
                                      {kLogit, "logit logit_ logit.out", "float"},
                                      {kComplex, "complex.out", "result"},
                                      {kPolar, "polar.out", "result"}});

}  // namespace

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  register_rows<kUnary, 1, 0>(m);
  m.impl("abs.out", abs_out);
  // PyTorch's own would call a kernel that only its devices have.
  m.impl("conj_physical_", [](at::Tensor& self) -> at::Tensor& {
    return self.is_complex() ? at::conj_physical_out(self, self) : self;
  });
  m.impl("angle.out", angle_out);
  m.impl("angle", angle);
  m.impl("nan_to_num.out", nan_to_num_out);
  m.impl("round.decimals_out", round_decimals_out);
  m.impl("logit.out", logit_out);
  m.impl("logit", logit);
  m.impl("logit_", logit_);
  m.impl("complex.out", complex_out<kComplex>);
  m.impl("polar.out", complex_out<kPolar>);
}

}  // namespace dlb
