// Unary pointwise ops: a table of rows and their registration.
#include <c10/core/Scalar.h>

#include "ops/pointwise/rows.h"

namespace dlb {
namespace {

constexpr std::array kUnary = {
    PointwiseRow{"abs",
                 "out",
                 Promote::Same,
                 {.name = "abs", .on_float = "fabs(x0)", .on_int = "x0 < 0 ? -x0 : x0", .on_bool = "x0"}},
    PointwiseRow{"neg",
                 "out",
                 Promote::Same,
                 {.name = "neg", .on_float = "-x0", .on_int = "-x0", .on_complex = "-x0"}},
    PointwiseRow{"sign",
                 "out",
                 Promote::Same,
                 {.name = "sign",
                  .on_float = "(T)((x0 > 0) - (x0 < 0))",
                  .on_int = "(T)((x0 > 0) - (x0 < 0))",
                  .on_bool = "x0"}},
    PointwiseRow{"ceil", "out", Promote::Same, {.name = "ceil", .on_float = "ceil(x0)", .on_int = "x0"}},
    PointwiseRow{"floor", "out", Promote::Same, {.name = "floor", .on_float = "floor(x0)", .on_int = "x0"}},
    PointwiseRow{"round", "out", Promote::Same, {.name = "round", .on_float = "rint(x0)", .on_int = "x0"}},
    PointwiseRow{"trunc", "out", Promote::Same, {.name = "trunc", .on_float = "trunc(x0)", .on_int = "x0"}},
    PointwiseRow{"frac", "out", Promote::Same, float_op("frac", "x0 - trunc(x0)")},
    PointwiseRow{
        "bitwise_not", "out", Promote::Same, {.name = "bitwise_not", .on_int = "~x0", .on_bool = "!x0"}},
    PointwiseRow{"logical_not", "out", Promote::Bool,
                 truth_op("logical_not", "x0 == 0", "x0.x == 0 && x0.y == 0")},
    PointwiseRow{"isposinf",
                 "out",
                 Promote::Bool,
                 {.name = "isposinf",
                  .on_float = "x0 == INFINITY",
                  .on_int = "0",
                  .on_bool = "0",
                  .bool_result = true}},
    PointwiseRow{"isneginf",
                 "out",
                 Promote::Bool,
                 {.name = "isneginf",
                  .on_float = "x0 == -INFINITY",
                  .on_int = "0",
                  .on_bool = "0",
                  .bool_result = true}},
    PointwiseRow{"signbit",
                 "out",
                 Promote::Bool,
                 {.name = "signbit",
                  .on_float = "signbit(x0) != 0",
                  .on_int = "x0 < 0",
                  .on_bool = "0",
                  .bool_result = true}},
    PointwiseRow{"conj_physical",
                 "out",
                 Promote::Same,
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
    PointwiseRow{"exp", "out", Promote::Float, float_op("exp", "exp(x0)", "dlb_cexp(x0)")},
    PointwiseRow{"exp2", "out", Promote::Float, float_op("exp2", "exp2(x0)")},
    PointwiseRow{"expm1", "out", Promote::Float, float_op("expm1", "expm1(x0)")},
    PointwiseRow{"log", "out", Promote::Float, float_op("log", "log(x0)", "dlb_clog(x0)")},
    PointwiseRow{"log2", "out", Promote::Float, float_op("log2", "log2(x0)")},
    PointwiseRow{"log10", "out", Promote::Float, float_op("log10", "log10(x0)")},
    PointwiseRow{"log1p", "out", Promote::Float, float_op("log1p", "log1p(x0)")},
    PointwiseRow{"sin", "out", Promote::Float, float_op("sin", "sin(x0)")},
    PointwiseRow{"cos", "out", Promote::Float, float_op("cos", "cos(x0)")},
    PointwiseRow{"tan", "out", Promote::Float, float_op("tan", "tan(x0)")},
    PointwiseRow{"asin", "out", Promote::Float, float_op("asin", "asin(x0)")},
    PointwiseRow{"acos", "out", Promote::Float, float_op("acos", "acos(x0)")},
    PointwiseRow{"atan", "out", Promote::Float, float_op("atan", "atan(x0)")},
    PointwiseRow{"sinh", "out", Promote::Float, float_op("sinh", "sinh(x0)")},
    PointwiseRow{"cosh", "out", Promote::Float, float_op("cosh", "cosh(x0)")},
    PointwiseRow{"tanh", "out", Promote::Float, float_op("tanh", "tanh(x0)")},
    PointwiseRow{"asinh", "out", Promote::Float, float_op("asinh", "asinh(x0)")},
    PointwiseRow{"acosh", "out", Promote::Float, float_op("acosh", "acosh(x0)")},
    PointwiseRow{"atanh", "out", Promote::Float, float_op("atanh", "atanh(x0)")},
    PointwiseRow{"erf", "out", Promote::Float, float_op("erf", "erf(x0)")},
    PointwiseRow{"erfc", "out", Promote::Float, float_op("erfc", "erfc(x0)")},
    PointwiseRow{"sigmoid", "out", Promote::Float, float_op("sigmoid", "C(1.0) / (C(1.0) + exp(-x0))")},
    PointwiseRow{"silu", "out", Promote::Same, float_op("silu", "x0 / (C(1.0) + exp(-x0))")},
    PointwiseRow{"hardsigmoid", "out", Promote::Same,
                 float_op("hardsigmoid", "isnan(x0) ? x0 : clamp(x0 + C(3.0), C(0.0), C(6.0)) / C(6.0)")},
};

template <const auto& Table, size_t I>
struct Unary {
  static at::Tensor& call(const at::Tensor& self, at::Tensor& out) {
    auto iter = unary_iterator(Table[I].promote, out, self);
    if (!try_pointwise(Table[I], iter))
      return call_cpu_fallback<at::Tensor&, const at::Tensor&, at::Tensor&>(
          (std::string("aten::") + Table[I].name).c_str(), Table[I].overload, self, out);
    return out;
  }
};

}  // namespace

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  register_rows<Unary, kUnary>(m);
}

}  // namespace dlb
