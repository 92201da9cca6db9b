// pow: of tensors and numbers, with bodies of their own for the exponents that programs use.
#include <ATen/ScalarOps.h>
#include <ATen/ops/pow_meta.h>

#include "ops/pointwise/rows.h"
#include "ops/pointwise/structured.h"

namespace dlb {
namespace {

// Integer powers wrap; a negative exponent leaves 1, -1 and their powers, and 0 else.
constexpr codegen::PointwiseOp kPow = {
    .name = "pow",
    .on_float = "dlb_pow(x0, x1)",
    .on_int =
        "T b = x0, e = x1, r = 1; if (e < 0) { r = b == 1 ? 1 : b == (T)-1 ? (e & 1 ? (T)-1 : (T)1) : (T)0; "
        "} "
        "else while (e != 0) { if (e & 1) r = (T)(r * b); b = (T)(b * b); e = (T)(e >> 1); } y0 = r;",
    .on_complex = "dlb_cpow(x0, x1)"};
// The exponents that programs use, with the roundings of CPU PyTorch, which computes them this way too.
struct Power {
  double exponent;
  codegen::PointwiseOp op;
};
constexpr std::array kPowers = {
    Power{2, {.name = "pow2", .on_float = "x0 * x0", .on_int = "x0 * x0", .on_complex = "dlb_cmul(x0, x0)"}},
    Power{3,
          {.name = "pow3",
           .on_float = "x0 * x0 * x0",
           .on_int = "x0 * x0 * x0",
           .on_complex = "dlb_cmul(dlb_cmul(x0, x0), x0)"}},
    Power{0.5, {.name = "pow_half", .on_float = "sqrt(x0)", .on_complex = "dlb_csqrt(x0)"}},
    Power{-0.5,
          {.name = "pow_minus_half",
           .on_float = "C(1.0) / sqrt(x0)",
           .on_complex = "dlb_cdiv((T)(1, 0), dlb_csqrt(x0))"}},
    Power{-1, {.name = "pow_minus_1", .on_float = "C(1.0) / x0", .on_complex = "dlb_cdiv((T)(1, 0), x0)"}},
    Power{-2,
          {.name = "pow_minus_2",
           .on_float = "C(1.0) / (x0 * x0)",
           .on_complex = "dlb_cdiv((T)(1, 0), dlb_cmul(x0, x0))"}},
};

at::Tensor& pow_tensor_tensor_out(const at::Tensor& base, const at::Tensor& exponent, at::Tensor& out) {
  Structured<at::meta::structured_pow_Tensor_Tensor> op(out);
  op.meta(base, exponent);
  if (!has_kernel(kPow, op.common_dtype(), out.device()))
    return call_cpu_fallback<at::Tensor&, const at::Tensor&, const at::Tensor&, at::Tensor&>(
        "aten::pow", "Tensor_Tensor_out", base, exponent, out);
  run_pointwise(kPow, op);
  return out;
}

at::Tensor& pow_tensor_scalar_out(const at::Tensor& base, const c10::Scalar& exponent, at::Tensor& out) {
  Structured<at::meta::structured_pow_Tensor_Scalar> op(out);
  op.meta(base, exponent);
  if (exponent.equal(0.0) || exponent.equal(false)) return out.fill_(1);
  if (exponent.equal(1.0) || exponent.equal(true)) return out.copy_(base);
  const c10::ScalarType type = op.common_dtype();
  if (!exponent.isComplex())
    for (const Power& power : kPowers)
      if (exponent.equal(power.exponent) && has_kernel(power.op, type, out.device())) {
        run_pointwise(power.op, op);
        return out;
      }
  if (!has_kernel(kPow, type, out.device()))
    return call_cpu_fallback<at::Tensor&, const at::Tensor&, const c10::Scalar&, at::Tensor&>(
        "aten::pow", "Tensor_Scalar_out", base, exponent, out);
  auto iter = at::TensorIteratorConfig()
                  .check_all_same_dtype(false)
                  .add_output(out)
                  .add_const_input(base)
                  .add_owned_const_input(at::native::wrapped_scalar_tensor(exponent))
                  .allow_cpu_scalars(true)
                  .build();
  if (c10::isIntegralType(type, true) || at::isReducedFloatingType(type)) check_scalar_fits(exponent, type);
  run_pointwise(kPow, iter, type, {}, /*common=*/true);
  return out;
}

at::Tensor& pow_scalar_out(const c10::Scalar& base, const at::Tensor& exponent, at::Tensor& out) {
  Structured<at::meta::structured_pow_Scalar> op(out);
  op.meta(base, exponent);
  if (base.equal(1.0)) return out.fill_(1);
  return pow_tensor_tensor_out(at::native::wrapped_scalar_tensor(base), exponent, out);
}

const codegen::RegisterOps kPowerOps(codegen::RowKind::Pointwise,
                                     {{kPow, "pow.Tensor_Tensor_out pow.Tensor_Scalar_out pow.Scalar_out",
                                       "common"},
                                      {kPowers[0].op, "pow.Tensor_Scalar_out", "common"},
                                      {kPowers[1].op, "pow.Tensor_Scalar_out", "common"},
                                      {kPowers[2].op, "pow.Tensor_Scalar_out", "common"},
                                      {kPowers[3].op, "pow.Tensor_Scalar_out", "common"},
                                      {kPowers[4].op, "pow.Tensor_Scalar_out", "common"},
                                      {kPowers[5].op, "pow.Tensor_Scalar_out", "common"}});
static_assert(kPowers.size() == 6);

}  // namespace

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("pow.Tensor_Tensor_out", pow_tensor_tensor_out);
  m.impl("pow.Tensor_Scalar_out", pow_tensor_scalar_out);
  m.impl("pow.Scalar_out", pow_scalar_out);
}

}  // namespace dlb
