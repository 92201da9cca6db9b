// Special functions: Bessel's, the gamma function's kin, orthogonal polynomials. The functions are those of
// csrc/kernels/common/math.
#include <ATen/native/BinaryOps.h>
#include <ATen/native/UnaryOps.h>
#include <ATen/ops/mvlgamma_native.h>

#include <cmath>

#include "ops/pointwise/rows.h"

namespace dlb {
namespace {

constexpr PointwiseRow special_row(const char* name, const char* id, const char* body) {
  return {name, "out", Promote::Float, float_op(id, body)};
}

constexpr std::array kSpecialUnary = {
    special_row("i0", "i0", "dlb_bessel_i0(x0)"),
    special_row("special_i0e", "i0e", "dlb_bessel_i0e(x0)"),
    special_row("special_i1", "i1", "dlb_bessel_i1(x0)"),
    special_row("special_i1e", "i1e", "dlb_bessel_i1e(x0)"),
    special_row("special_bessel_j0", "bessel_j0", "dlb_bessel_j0(x0)"),
    special_row("special_bessel_j1", "bessel_j1", "dlb_bessel_j1(x0)"),
    special_row("special_bessel_y0", "bessel_y0", "dlb_bessel_y0(x0)"),
    special_row("special_bessel_y1", "bessel_y1", "dlb_bessel_y1(x0)"),
    special_row("special_modified_bessel_i0", "modified_bessel_i0", "dlb_bessel_i0(x0)"),
    special_row("special_modified_bessel_i1", "modified_bessel_i1", "dlb_bessel_i1(x0)"),
    special_row("special_modified_bessel_k0", "modified_bessel_k0", "dlb_bessel_k0(x0)"),
    special_row("special_modified_bessel_k1", "modified_bessel_k1", "dlb_bessel_k1(x0)"),
    special_row("special_scaled_modified_bessel_k0", "scaled_modified_bessel_k0", "dlb_bessel_k0e(x0)"),
    special_row("special_scaled_modified_bessel_k1", "scaled_modified_bessel_k1", "dlb_bessel_k1e(x0)"),
    special_row("special_spherical_bessel_j0", "spherical_bessel_j0", "dlb_spherical_j0(x0)"),
    special_row("special_erfcx", "erfcx", "dlb_erfcx(x0)"),
    special_row("special_log_ndtr", "log_ndtr", "dlb_log_ndtr(x0)"),
    special_row("special_ndtri", "ndtri", "dlb_ndtri(x0)"),
};

#define DLB_POLYNOMIAL_ROW(name, body) special_row("special_" name, name, body)
constexpr std::array kSpecialBinary = {
    special_row("igamma", "igamma", "dlb_igamma(x0, x1)"),
    special_row("igammac", "igammac", "dlb_igammac(x0, x1)"),
    special_row("special_zeta", "zeta", "dlb_zeta(x0, x1)"),
    DLB_POLYNOMIAL_ROW("chebyshev_polynomial_t", "dlb_chebyshev_t(x0, x1)"),
    DLB_POLYNOMIAL_ROW("chebyshev_polynomial_u", "dlb_chebyshev_u(x0, x1)"),
    DLB_POLYNOMIAL_ROW("chebyshev_polynomial_v", "dlb_chebyshev_v(x0, x1)"),
    DLB_POLYNOMIAL_ROW("chebyshev_polynomial_w", "dlb_chebyshev_w(x0, x1)"),
    DLB_POLYNOMIAL_ROW("shifted_chebyshev_polynomial_t", "dlb_chebyshev_t(x0 + x0 - C(1.0), x1)"),
    DLB_POLYNOMIAL_ROW("shifted_chebyshev_polynomial_u", "dlb_chebyshev_u(x0 + x0 - C(1.0), x1)"),
    DLB_POLYNOMIAL_ROW("shifted_chebyshev_polynomial_v", "dlb_chebyshev_v(x0 + x0 - C(1.0), x1)"),
    DLB_POLYNOMIAL_ROW("shifted_chebyshev_polynomial_w", "dlb_chebyshev_w(x0 + x0 - C(1.0), x1)"),
    DLB_POLYNOMIAL_ROW("hermite_polynomial_h", "dlb_hermite(x0, x1, C(2.0))"),
    DLB_POLYNOMIAL_ROW("hermite_polynomial_he", "dlb_hermite(x0, x1, C(1.0))"),
    DLB_POLYNOMIAL_ROW("laguerre_polynomial_l", "dlb_laguerre_l(x0, x1)"),
    DLB_POLYNOMIAL_ROW("legendre_polynomial_p", "dlb_legendre_p(x0, x1)"),
};

// The derivative of a gamma-distributed number by its parameter, which is x0.
constexpr std::array kGammaGrad = {PointwiseRow{"_standard_gamma_grad", "", Promote::Fixed,
                                                float_op("gamma_grad", "dlb_gamma_grad(x0, x1)"),
                                                kFunctional}};

// The derivative of a beta-distributed x0 by the first parameter, x1; x2 is the sum of both parameters.
constexpr std::array kDirichletGrad = {
    PointwiseRow{"_dirichlet_grad", "", Promote::Fixed,
                 float_op("dirichlet_grad", "dlb_dirichlet_grad(x0, x1, x2)"), kFunctional}};

// Derivatives of digamma: (-1)^(n + 1) n! zeta(n + 1, x). s0 is the factor, s1 is n + 1.
constexpr codegen::PointwiseOp kTrigamma = float_op("trigamma", "dlb_trigamma(x0)");
constexpr codegen::PointwiseOp kPolygamma = float_op("polygamma", "s0 * dlb_zeta(s1, x0)", nullptr, 2);

bool run_polygamma(int64_t n, const at::Tensor& self, at::Tensor& out) {
  if (n == 0) return run_op(*codegen::find_pointwise("digamma"), Promote::Float, {&self}, {}, out);
  if (n == 1) return run_op(kTrigamma, Promote::Float, {&self}, {}, out);
  const double degree = static_cast<double>(n), factorial = std::tgamma(degree + 1);
  return run_op(kPolygamma, Promote::Float, {&self}, {n % 2 ? factorial : -factorial, degree + 1}, out);
}

at::Tensor& polygamma_out(int64_t n, const at::Tensor& self, at::Tensor& out) {
  TORCH_CHECK(n >= 0, "polygamma(n, x) does not support negative n.");
  if (!run_polygamma(n, self, out))
    call_cpu_fallback<at::Tensor&, int64_t, const at::Tensor&, at::Tensor&>("aten::polygamma", "out", n, self,
                                                                            out);
  return out;
}

// The exponent is an integer beside a floating point fraction.
constexpr codegen::PointwiseOp kFrexp = float_op("frexp", "int e; y0 = dlb_frexp(x0, &e); y1 = (T)e;");

std::tuple<at::Tensor&, at::Tensor&> frexp_out(const at::Tensor& self, at::Tensor& mantissa,
                                               at::Tensor& exponent) {
  TORCH_CHECK(at::isFloatingType(self.scalar_type()), "torch.frexp() only supports floating-point dtypes");
  TORCH_CHECK(mantissa.dtype() == self.dtype(), "torch.frexp() expects mantissa to have dtype ", self.dtype(),
              " but got ", mantissa.dtype());
  TORCH_CHECK(exponent.dtype() == at::kInt, "torch.frexp() expects exponent to have int dtype but got ",
              exponent.dtype());
  auto iter = at::TensorIteratorConfig()
                  .add_output(mantissa)
                  .add_output(exponent)
                  .add_const_input(self)
                  .check_all_same_dtype(false)
                  .set_check_mem_overlap(true)
                  .build();
  if (!has_kernel(kFrexp, self.scalar_type(), self.device()))
    return call_cpu_fallback<std::tuple<at::Tensor&, at::Tensor&>, const at::Tensor&, at::Tensor&,
                             at::Tensor&>("aten::frexp", "Tensor_out", self, mantissa, exponent);
  run_pointwise(kFrexp, iter, self.scalar_type());
  return {mantissa, exponent};
}

// The exponent is an integer of any type. Beyond +-4096 every result is 0 or infinite, so exponents are
// clamped there.
constexpr codegen::PointwiseOp kLdexp =
    float_op("ldexp", "ldexp(x0, (int)fmin(fmax(x1, C(-4096.0)), C(4096.0)))");

void ldexp_kernel(at::TensorIteratorBase& iter) {
  TORCH_CHECK_NOT_IMPLEMENTED(iter.dtype(2) != at::kBool, "\"ldexp\" not implemented for 'Bool'");
  if (has_kernel(kLdexp, iter.dtype(1), iter.device(0)))
    run_pointwise(kLdexp, iter, iter.dtype(1));
  else
    call_cpu_fallback<at::Tensor&, const at::Tensor&, const at::Tensor&, at::Tensor&>(
        "aten::ldexp", "out", iter.tensor(1), iter.tensor(2), const_cast<at::Tensor&>(iter.tensor(0)));
}

// I0(s1 sqrt(1 - x^2)) / I0(s1), where x goes from -1 to 1 as the sample's number x0 does from 0 to the last.
// Scaled Bessel functions keep large s1 from overflowing.
constexpr codegen::PointwiseOp kKaiserWindow =
    float_op("kaiser_window",
             "T x = x0 * s0 - C(1.0); T t = s1 * sqrt(fmax(C(1.0) - x * x, C(0.0))); "
             "y0 = dlb_bessel_i0e(t) / dlb_bessel_i0e(s1) * dlb_exp(fabs(t) - fabs(s1));",
             nullptr, 2);

void kaiser_window_kernel(at::TensorIteratorBase& iter, int64_t length, double beta) {
  if (has_kernel(kKaiserWindow, iter.dtype(0), iter.device(0)))
    run_pointwise(kKaiserWindow, iter, iter.dtype(0), {2.0 / static_cast<double>(length - 1), beta});
  else
    call_cpu_fallback<at::Tensor&, int64_t, bool, double, at::Tensor&>(
        "aten::kaiser_window", "beta_out", length, /*periodic=*/false, beta,
        const_cast<at::Tensor&>(iter.tensor(0)));
}

const codegen::RegisterOps kSpecialOps(
    codegen::RowKind::Pointwise,
    {{kTrigamma, "polygamma.out", "float"},
     {kPolygamma, "polygamma.out", "float"},
     {kFrexp, "frexp.Tensor_out", "fixed"},
     {kLdexp, "ldexp.Tensor ldexp.out ldexp_", "first"},
     {kKaiserWindow, "kaiser_window kaiser_window.periodic kaiser_window.beta", "fixed"}});

}  // namespace

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  register_rows<kSpecialUnary, 1, 0>(m);
  register_rows<kSpecialBinary, 2, 0>(m);
  register_rows<kGammaGrad, 2, 0>(m);
  register_rows<kDirichletGrad, 3, 0>(m);
  m.impl("polygamma.out", polygamma_out);
  m.impl("frexp.Tensor_out", frexp_out);
  m.impl("mvlgamma.out", at::native::mvlgamma_out);
}

}  // namespace dlb

namespace at::native {
REGISTER_PRIVATEUSE1_DISPATCH(ldexp_stub, &dlb::ldexp_kernel)
REGISTER_PRIVATEUSE1_DISPATCH(kaiser_window_stub, &dlb::kaiser_window_kernel)
}  // namespace at::native
