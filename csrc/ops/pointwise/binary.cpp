// Binary pointwise ops: arithmetic, comparison, logic. Tables of rows and their registration.
#include <ATen/ScalarOps.h>
#include <ATen/native/BinaryOps.h>
#include <ATen/ops/div_meta.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/heaviside_meta.h>
#include <ATen/ops/nextafter_meta.h>
#include <ATen/ops/remainder.h>
#include <ATen/ops/result_type.h>

#include "ops/pointwise/rows.h"
#include "ops/pointwise/structured.h"

namespace dlb {
namespace {

// NaN wins over any number, as in PyTorch and unlike fmax.
#define DLB_MAX "x0 > x1 || x0 != x0 ? x0 : x1"
#define DLB_MIN "x0 < x1 || x0 != x0 ? x0 : x1"

// PyTorch on the CPU raises this for integers. Here the device alone knows the divisor, and reports it.
#define DLB_ZERO_DIVISION "ZeroDivisionError"
// OpenCL leaves x / 0 and MIN / -1 undefined: the divisor is 1 then, and for -1 the negation wraps. (For
// unsigned types (T)-1 is the largest number, which divides as any other.)
#define DLB_DIVISOR \
  "const int negates = x1 == (T)-1 && (T)-1 < 0; bad = x1 == 0; const T d = bad || negates ? (T)1 : x1; "
#define DLB_TRUNC_DIV "const T q = negates ? (T)-x0 : (T)(x0 / d); "
#define DLB_REMAINDER_INT "const T r = negates ? (T)0 : (T)(x0 % d); "

// As Python's //: rounds the exact quotient down, by the remainder, so that it agrees with %.
#define DLB_FLOOR_DIV_FLOAT                                                                             \
  "const T m = dlb_fmod(x0, x1); T q = (x0 - m) / x1; if (m != 0 && (x1 < 0) != (m < 0)) q -= C(1.0); " \
  "T f = floor(q); if (q - f > C(0.5)) f += C(1.0); "                                                   \
  "y0 = x1 == 0 ? x0 / x1 : q != 0 ? f : copysign(C(0.0), x0 / x1);"

constexpr codegen::PointwiseOp exact_number(codegen::PointwiseOp op) {
  op.exact_number = true;
  return op;
}
constexpr codegen::PointwiseOp kDivTruncFloat = exact_number(float_op("div_trunc", "trunc(x0 / x1)"));
constexpr codegen::PointwiseOp kDivFloorFloat = exact_number(float_op("div_floor", DLB_FLOOR_DIV_FLOAT));
constexpr codegen::PointwiseOp kDivTruncInt = {
    .name = "div_trunc_int", .on_int = DLB_DIVISOR DLB_TRUNC_DIV "y0 = q;", .error = DLB_ZERO_DIVISION};
constexpr codegen::PointwiseOp kDivFloorInt = {
    .name = "div_floor_int",
    .on_int = DLB_DIVISOR DLB_TRUNC_DIV DLB_REMAINDER_INT "y0 = r != 0 && (r < 0) != (x1 < 0) ? q - 1 : q;",
    .error = DLB_ZERO_DIVISION};
constexpr codegen::PointwiseOp kFmodFloat = float_op("fmod", "dlb_fmod(x0, x1)");
constexpr codegen::PointwiseOp kFmodInt = {
    .name = "fmod_int", .on_int = DLB_DIVISOR DLB_REMAINDER_INT "y0 = r;", .error = DLB_ZERO_DIVISION};
constexpr codegen::PointwiseOp kRemainderFloat =
    float_op("remainder", "const T m = dlb_fmod(x0, x1); y0 = m != 0 && (x1 < 0) != (m < 0) ? m + x1 : m;");
constexpr codegen::PointwiseOp kRemainderInt = {
    .name = "remainder_int",
    .on_int = DLB_DIVISOR DLB_REMAINDER_INT "y0 = r != 0 && (r < 0) != (x1 < 0) ? r + x1 : r;",
    .error = DLB_ZERO_DIVISION};

// Shifts by negative counts or by the width and more give what shifting out all bits gives.
#define DLB_SHIFT_IN_RANGE "x1 >= 0 && (ulong)x1 < sizeof(T) * 8"

void check_sub(Inputs in, Scalars scalars, c10::ScalarType common) {
  at::native::sub_check(*in[0], *in[1]);
  at::native::alpha_check(common, scalars[0]);
  check_scalar_fits(scalars[0], common);
}
void check_add(Inputs, Scalars scalars, c10::ScalarType common) {
  at::native::alpha_check(common, scalars[0]);
  check_scalar_fits(scalars[0], common);
}

constexpr std::array kBinary = {
    PointwiseRow{"mul",
                 "out",
                 Promote::Same,
                 {.name = "mul",
                  .on_float = "x0 * x1",
                  .on_int = "x0 * x1",
                  .on_bool = "x0 & x1",
                  .on_complex = "dlb_cmul(x0, x1)",
                  .exact_number = true,
                  .takes_float8 = true},
                 kAll,
                 "Tensor"},
    PointwiseRow{"div", "out", Promote::Float, exact_number(float_op("div", "x0 / x1", "dlb_cdiv(x0, x1)")),
                 kAll, "Tensor"},
    PointwiseRow{"maximum",
                 "out",
                 Promote::Same,
                 {.name = "maximum", .on_float = DLB_MAX, .on_int = "max(x0, x1)", .on_bool = "x0 | x1"}},
    PointwiseRow{"minimum",
                 "out",
                 Promote::Same,
                 {.name = "minimum", .on_float = DLB_MIN, .on_int = "min(x0, x1)", .on_bool = "x0 & x1"}},
    PointwiseRow{"fmax",
                 "out",
                 Promote::Same,
                 {.name = "fmax", .on_float = "fmax(x0, x1)", .on_int = "max(x0, x1)", .on_bool = "x0 | x1"}},
    PointwiseRow{"fmin",
                 "out",
                 Promote::Same,
                 {.name = "fmin", .on_float = "fmin(x0, x1)", .on_int = "min(x0, x1)", .on_bool = "x0 & x1"}},
    PointwiseRow{"atan2", "out", Promote::Float, float_op("atan2", "dlb_atan2(x0, x1)")},
    PointwiseRow{"hypot", "out", Promote::Same, float_op("hypot", "dlb_hypot(x0, x1)")},
    PointwiseRow{"copysign", "out", Promote::Float, float_op("copysign", "copysign(x0, x1)")},
    PointwiseRow{"logaddexp", "out", Promote::Same,
                 float_op("logaddexp",
                          "const T m = x0 > x1 ? x0 : x1; y0 = fabs(x0) == INFINITY && x0 == x1 ? x0 : m + "
                          "dlb_log1p(dlb_exp(-fabs(x0 - x1)));",
                          "dlb_clogaddexp(x0, x1)")},
    PointwiseRow{"logaddexp2", "out", Promote::Same,
                 float_op("logaddexp2",
                          "const T m = x0 > x1 ? x0 : x1; y0 = fabs(x0) == INFINITY && x0 == x1 ? x0 : m + "
                          "dlb_log1p(dlb_exp2(-fabs(x0 - x1))) * C(1.44269504088896340736);")},
    PointwiseRow{"xlogy", "OutTensor", Promote::Float,
                 float_op("xlogy", "x1 != x1 ? x1 : x0 == 0 ? C(0.0) : x0 * dlb_log(x1)")},
    PointwiseRow{"special_xlog1py", "out", Promote::Float,
                 float_op("xlog1py", "x1 != x1 ? x1 : x0 == 0 ? C(0.0) : x0 * dlb_log1p(x1)")},
    PointwiseRow{
        "gcd",
        "out",
        Promote::Same,
        {.name = "gcd",
         .on_int = "T a = x0 < 0 ? -x0 : x0, b = x1 < 0 ? -x1 : x1; while (a != 0) { const T c = a; a = b "
                   "% a; b = c; } y0 = b;"}},
    PointwiseRow{
        "lcm",
        "out",
        Promote::Same,
        {.name = "lcm",
         .on_int = "T a = x0 < 0 ? -x0 : x0, b = x1 < 0 ? -x1 : x1; while (a != 0) { const T c = a; a = b "
                   "% a; b = c; } y0 = (T)(b == 0 ? 0 : x0 / b * x1 < 0 ? -(x0 / b * x1) : x0 / b * x1);"}},
    PointwiseRow{"bitwise_and",
                 "Tensor_out",
                 Promote::Same,
                 {.name = "bitwise_and", .on_int = "x0 & x1", .on_bool = "x0 & x1"}},
    PointwiseRow{"bitwise_or",
                 "Tensor_out",
                 Promote::Same,
                 {.name = "bitwise_or", .on_int = "x0 | x1", .on_bool = "x0 | x1"}},
    PointwiseRow{"bitwise_xor",
                 "Tensor_out",
                 Promote::Same,
                 {.name = "bitwise_xor", .on_int = "x0 ^ x1", .on_bool = "x0 ^ x1"}},
    PointwiseRow{"bitwise_left_shift",
                 "Tensor_out",
                 Promote::Same,
                 {.name = "shift_left", .on_int = DLB_SHIFT_IN_RANGE " ? (T)(x0 << x1) : (T)0"}},
    PointwiseRow{
        "bitwise_right_shift",
        "Tensor_out",
        Promote::Same,
        {.name = "shift_right", .on_int = DLB_SHIFT_IN_RANGE " ? (T)(x0 >> x1) : x0 < 0 ? (T)-1 : (T)0"}},
    PointwiseRow{"logical_and", "out", Promote::Bool,
                 truth_op("logical_and", "x0 != 0 && x1 != 0",
                          "(x0.x != 0 || x0.y != 0) && (x1.x != 0 || x1.y != 0)")},
    PointwiseRow{
        "logical_or", "out", Promote::Bool,
        truth_op("logical_or", "x0 != 0 || x1 != 0", "x0.x != 0 || x0.y != 0 || x1.x != 0 || x1.y != 0")},
    PointwiseRow{"logical_xor", "out", Promote::Bool,
                 truth_op("logical_xor", "(x0 != 0) != (x1 != 0)",
                          "(x0.x != 0 || x0.y != 0) != (x1.x != 0 || x1.y != 0)")},
    PointwiseRow{"eq", "Tensor_out", Promote::Bool,
                 takes_float8(truth_op("eq", "x0 == x1", "x0.x == x1.x && x0.y == x1.y"))},
    PointwiseRow{"ne", "Tensor_out", Promote::Bool,
                 takes_float8(truth_op("ne", "x0 != x1", "x0.x != x1.x || x0.y != x1.y"))},
    PointwiseRow{"lt", "Tensor_out", Promote::Bool, truth_op("lt", "x0 < x1")},
    PointwiseRow{"le", "Tensor_out", Promote::Bool, truth_op("le", "x0 <= x1")},
    PointwiseRow{"gt", "Tensor_out", Promote::Bool, truth_op("gt", "x0 > x1")},
    PointwiseRow{"ge", "Tensor_out", Promote::Bool, truth_op("ge", "x0 >= x1")},
};

constexpr const codegen::PointwiseOp& kDiv = row_op(kBinary, "div");

// The same op with a number on the right, or on the left, for overloads that PyTorch does not turn into one
// with two tensors itself.
template <const auto& Row>
at::Tensor& scalar_out(const at::Tensor& self, const c10::Scalar& other, at::Tensor& out) {
  return Signature<std::index_sequence<0>, std::index_sequence<>>::out<Row>(
      self, at::native::wrapped_scalar_tensor(other), out);
}

// `<<` and `>>` of Python: one row each, with a number or a tensor on the right.
template <const auto& Row>
struct Shift {
  static at::Tensor tensor(const at::Tensor& self, const at::Tensor& other) {
    at::Tensor out;
    return run_or_raise(Row.op, out, {&self, &other});
  }
  static at::Tensor& tensor_(at::Tensor& self, const at::Tensor& other) {
    return run_or_raise(Row.op, self, {&self, &other});
  }
  static at::Tensor scalar(const at::Tensor& self, const c10::Scalar& other) {
    return tensor(self, at::native::wrapped_scalar_tensor(other));
  }
  static at::Tensor& scalar_(at::Tensor& self, const c10::Scalar& other) {
    return tensor_(self, at::native::wrapped_scalar_tensor(other));
  }
  static void register_as(torch::Library& m, const std::string& name) {
    const auto implement = [&](const std::string& overload, auto* kernel) {
      m.impl(overload.c_str(), kernel);
      codegen::add_overload(Row.op.name, "aten::" + overload);
    };
    implement("__" + name + "__.Tensor", &tensor);
    implement("__" + name + "__.Scalar", &scalar);
    implement("__i" + name + "__.Tensor", &tensor_);
    implement("__i" + name + "__.Scalar", &scalar_);
  }
};

// add and sub take a factor of the second operand, alpha.
constexpr std::array kAlpha = {
    PointwiseRow{"add",
                 "out",
                 Promote::Same,
                 {.name = "add_alpha",
                  .on_float = "x0 + s0 * x1",
                  .on_int = "x0 + s0 * x1",
                  .on_bool = "x0 | (s0 & x1)",
                  .on_complex = "x0 + dlb_cmul(s0, x1)",
                  .scalars = 1,
                  .rounded_scalars = true},
                 kAll,
                 "Tensor",
                 check_add},
    PointwiseRow{"sub",
                 "out",
                 Promote::Same,
                 {.name = "sub_alpha",
                  .on_float = "x0 - s0 * x1",
                  .on_int = "x0 - s0 * x1",
                  .on_complex = "x0 - dlb_cmul(s0, x1)",
                  .scalars = 1,
                  .rounded_scalars = true},
                 kAll,
                 "Tensor",
                 check_sub},
    PointwiseRow{"rsub",
                 "Tensor_out",
                 Promote::Same,
                 {.name = "rsub",
                  .on_float = "x1 - s0 * x0",
                  .on_int = "x1 - s0 * x0",
                  .on_complex = "x1 - dlb_cmul(s0, x0)",
                  .scalars = 1,
                  .rounded_scalars = true},
                 kFunctional,
                 "Tensor",
                 check_sub},
};

// Division with remainder: integers report a zero divisor, at once where it is a number.
void check_divisor(const at::Tensor& divisor, c10::ScalarType common) {
  if (c10::isIntegralType(common, false) && divisor.device().is_cpu())
    TORCH_CHECK(cpu_scalar(divisor).toDouble() != 0, DLB_ZERO_DIVISION);
}

bool run_division(const codegen::PointwiseOp& on_float, const codegen::PointwiseOp& on_int,
                  at::TensorIteratorBase& iter, const at::Tensor& divisor) {
  const codegen::PointwiseOp& op = c10::isIntegralType(iter.common_dtype(), true) ? on_int : on_float;
  if (!has_kernel(op, iter.common_dtype(), iter.device(0))) return false;
  if (iter.numel() > 0) check_divisor(divisor, iter.common_dtype());
  run_pointwise(op, iter);
  return true;
}

using Mode = std::optional<std::string_view>;

// As PyTorch's other devices do, which round the quotients of 16-bit tensors, not those by a number, before
// they truncate them.
bool truncates_rounded(at::TensorIteratorBase& iter, const at::Tensor& divisor, const Mode& mode) {
  return mode && *mode == "trunc" && c10::isReducedFloatingType(iter.common_dtype()) &&
         !divisor.device().is_cpu();
}

at::Tensor& div_out_mode(const at::Tensor& self, const at::Tensor& other, Mode mode, at::Tensor& out) {
  Structured<at::meta::structured_div_Tensor_mode> op(out);
  op.meta(self, other, mode);
  if (truncates_rounded(op, other, mode)) {
    run_pointwise(kDiv, op);
    return out.trunc_();
  }
  const bool done = !mode
                        ? has_kernel(kDiv, op.common_dtype(), out.device()) && (run_pointwise(kDiv, op), true)
                    : *mode == "trunc" ? run_division(kDivTruncFloat, kDivTruncInt, op, other)
                                       : run_division(kDivFloorFloat, kDivFloorInt, op, other);
  if (!done)
    call_cpu_fallback<at::Tensor&, const at::Tensor&, const at::Tensor&, Mode, at::Tensor&>(
        "aten::div", "out_mode", self, other, mode, out);
  return out;
}

template <const auto& OnFloat, const auto& OnInt, const auto& Names>
at::Tensor& division_out(const at::Tensor& self, const at::Tensor& other, at::Tensor& out) {
  auto iter = at::TensorIterator::binary_op(out, self, other);
  if (!run_division(OnFloat, OnInt, iter, other))
    return call_cpu_fallback<at::Tensor&, const at::Tensor&, const at::Tensor&, at::Tensor&>(
        Names[0], Names[1], self, other, out);
  if (!out.defined()) out = iter.output();
  return out;
}

constexpr const char* kFloorDivide[] = {"aten::floor_divide", "out"};
constexpr const char* kFmod[] = {"aten::fmod", "Tensor_out"};
constexpr const char* kRemainder[] = {"aten::remainder", "Tensor_out"};

at::Tensor& floor_divide_(at::Tensor& self, const at::Tensor& other) {
  return division_out<kDivFloorFloat, kDivFloorInt, kFloorDivide>(self, other, self);
}
at::Tensor floor_divide(const at::Tensor& self, const at::Tensor& other) {
  at::Tensor out = at::empty({0}, self.options()
                                      .dtype(at::result_type(self, other))
                                      .device(self.device().is_cpu() ? other.device() : self.device()));
  return division_out<kDivFloorFloat, kDivFloorInt, kFloorDivide>(self, other, out);
}
at::Tensor remainder_scalar_tensor(const c10::Scalar& self, const at::Tensor& other) {
  return at::remainder(at::native::wrapped_scalar_tensor(self), other);
}

// The next value of the storage type: of 16 bits, not the next float, which would be rounded back.
#define DLB_NEXT_OF_16_BITS(type)                                                              \
  "const ushort h = dlb_to_" type "(x0); const T a = dlb_from_" type "(h), b = dlb_from_" type \
  "(dlb_to_" type                                                                              \
  "(x1)); const ushort next = a == 0 ? (b < 0 ? 0x8001 : 1) : (b > a) == (a > 0) "             \
  "? h + 1 : h - 1; y0 = a != a || b != b ? (T)NAN : a == b ? b : dlb_from_" type "(next);"
constexpr codegen::PointwiseOp kNextafter = float_op("nextafter", "nextafter(x0, x1)");
constexpr codegen::PointwiseOp kNextafterHalf = float_op("nextafter_half", DLB_NEXT_OF_16_BITS("f16"));
constexpr codegen::PointwiseOp kNextafterBfloat16 =
    float_op("nextafter_bfloat16", DLB_NEXT_OF_16_BITS("bf16"));

at::Tensor& nextafter_out(const at::Tensor& self, const at::Tensor& other, at::Tensor& out) {
  Structured<at::meta::structured_nextafter> op(out);
  op.meta(self, other);
  const c10::ScalarType type = op.common_dtype();
  const codegen::PointwiseOp& next = type == at::kHalf       ? kNextafterHalf
                                     : type == at::kBFloat16 ? kNextafterBfloat16
                                                             : kNextafter;
  if (!has_kernel(next, type, out.device()))
    return call_cpu_fallback<at::Tensor&, const at::Tensor&, const at::Tensor&, at::Tensor&>(
        "aten::nextafter", "out", self, other, out);
  run_pointwise(next, op);
  return out;
}

constexpr codegen::PointwiseOp kHeaviside = {.name = "heaviside",
                                             .on_float = "x0 == 0 ? x1 : (T)(x0 > 0)",
                                             .on_int = "x0 == 0 ? x1 : (T)(x0 > 0)",
                                             .on_bool = "x0 == 0 ? x1 : 1"};

at::Tensor& heaviside_out(const at::Tensor& self, const at::Tensor& other, at::Tensor& out) {
  Structured<at::meta::structured_heaviside> op(out);
  op.meta(self, other);  // refuses different dtypes and complex ones, those of the result too
  if (!has_kernel(kHeaviside, op.common_dtype(), out.device()))
    return call_cpu_fallback<at::Tensor&, const at::Tensor&, const at::Tensor&, at::Tensor&>(
        "aten::heaviside", "out", self, other, out);
  run_pointwise(kHeaviside, op);
  return out;
}

const codegen::RegisterOps kBinaryOps(
    codegen::RowKind::Pointwise,
    {{kDivTruncFloat, "div.out_mode", "common"},
     {kDivTruncInt, "div.out_mode", "common"},
     {kDivFloorFloat, "div.out_mode floor_divide floor_divide.out floor_divide_.Tensor", "common"},
     {kDivFloorInt, "div.out_mode floor_divide floor_divide.out floor_divide_.Tensor", "common"},
     {kFmodFloat, "fmod.Tensor_out", "common"},
     {kFmodInt, "fmod.Tensor_out", "common"},
     {kRemainderFloat, "remainder.Tensor_out", "common"},
     {kRemainderInt, "remainder.Tensor_out", "common"},
     {kHeaviside, "heaviside.out", "fixed"},
     {kNextafter, "nextafter.out", "common"},
     {kNextafterHalf, "nextafter.out", "common"},
     {kNextafterBfloat16, "nextafter.out", "common"}});

}  // namespace

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  register_rows<kBinary, 2, 0>(m);
  register_rows<kAlpha, 2, 1>(m);
  [&]<size_t... I>(std::index_sequence<I...>) {
    auto one = [&]<size_t R>() {
      constexpr const char* name = kBinary[R].name;
      if constexpr (kBinary[R].promote == Promote::Bool &&
                    std::string_view(kBinary[R].overload) == "Tensor_out")
        m.impl((std::string(name) + ".Scalar_out").c_str(), scalar_out<kRowOf<kBinary, R>>);
    };
    (one.template operator()<I>(), ...);
  }
  (std::make_index_sequence<kBinary.size()>{});
  Shift<kRowOf<kBinary, row_at(kBinary, "shift_left")>>::register_as(m, "lshift");
  Shift<kRowOf<kBinary, row_at(kBinary, "shift_right")>>::register_as(m, "rshift");
  m.impl("div.out_mode", div_out_mode);
  m.impl("floor_divide.out", division_out<kDivFloorFloat, kDivFloorInt, kFloorDivide>);
  m.impl("floor_divide", floor_divide);
  m.impl("floor_divide_.Tensor", floor_divide_);
  m.impl("fmod.Tensor_out", division_out<kFmodFloat, kFmodInt, kFmod>);
  m.impl("remainder.Tensor_out", division_out<kRemainderFloat, kRemainderInt, kRemainder>);
  m.impl("remainder.Scalar_Tensor", remainder_scalar_tensor);
  m.impl("heaviside.out", heaviside_out);
  m.impl("nextafter.out", nextafter_out);
}

}  // namespace dlb
