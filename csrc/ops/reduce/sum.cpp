// Sums and what is made of sums: sum, mean, nansum, prod, norms, trace.
#include <ATen/ops/linalg_vector_norm_meta.h>
#include <ATen/ops/logsumexp_native.h>
#include <ATen/ops/mean_meta.h>
#include <ATen/ops/norm_meta.h>
#include <ATen/ops/prod_meta.h>
#include <ATen/ops/sum_meta.h>
#include <torch/library.h>

#include <cmath>

#include "ops/reduce/results.h"

namespace dlb {
namespace {

using codegen::ReduceBody;
using codegen::ReduceOp;
using codegen::ResultType;

constexpr ReduceBody folding(const char* type, const char* init, const char* step, const char* combine,
                             const char* finish) {
  return {.fields = {{{type, init}}}, .step = step, .combine = combine, .finish = finish};
}
constexpr ReduceBody summing(const char* step, const char* finish = "y0 = a0;", const char* type = "T") {
  return folding(type, "0", step, "a0 += b0;", finish);
}

constexpr ReduceBody kTruthSum = folding("T", "0", "a0 |= x0;", "a0 |= b0;", "y0 = a0;");
constexpr ReduceOp kSum{.name = "sum",
                        .on_float = summing("a0 += x0;"),
                        .on_int = summing("a0 += x0;"),
                        .on_bool = kTruthSum,
                        .on_complex = summing("a0 += x0;")};
constexpr ReduceOp kMean{.name = "mean",
                         .on_float = summing("a0 += x0;", "y0 = a0 / (T)n;"),
                         .on_complex = summing("a0 += x0;", "y0 = a0 / (REAL)n;")};
constexpr ReduceOp kNansum{.name = "nansum",
                           .on_float = summing("a0 += isnan(x0) ? (T)0 : x0;"),
                           .on_int = summing("a0 += x0;"),
                           .on_bool = kTruthSum};
// Sums of exponentials relative to the greatest element so far, a0, or to 0 where that is infinite.
#define DLB_LOG_SUM(x, sum)                       \
  "const T h = " x " > a0 || " x " != " x " ? " x \
  " : a0, k = isinf(h) ? (T)0 : h; "              \
  "a1 = a1 * dlb_exp(a0 - k) + " sum "; a0 = h;"
constexpr ReduceOp kLogsumexp{.name = "logsumexp",
                              .on_float = {.fields = {{{"T", "-INFINITY"}, {"T", "0"}}},
                                           .step = DLB_LOG_SUM("x0", "dlb_exp(x0 - k)"),
                                           .combine = DLB_LOG_SUM("b0", "b1 * dlb_exp(b0 - k)"),
                                           .finish = "y0 = dlb_log(a1) + (isinf(a0) ? (T)0 : a0);"}};
constexpr ReduceOp kProd{
    .name = "prod",
    .on_float = folding("T", "1", "a0 *= x0;", "a0 *= b0;", "y0 = a0;"),
    .on_int = folding("T", "1", "a0 *= x0;", "a0 *= b0;", "y0 = a0;"),
    .on_bool = folding("T", "1", "a0 &= x0;", "a0 &= b0;", "y0 = a0;"),
    .on_complex = folding("T", "1, 0", "a0 = dlb_cmul(a0, x0);", "a0 = dlb_cmul(a0, b0);", "y0 = a0;")};

// Norms by their order. A NaN stays NaN through the maximum and the minimum.
constexpr ReduceOp norm_op(const char* name, ReduceBody real, ReduceBody complex, uint8_t scalars = 0) {
  return {.name = name,
          .on_float = real,
          .on_complex = complex,
          .results = {ResultType::Real},
          .scalars = scalars};
}
constexpr ReduceOp kNormZero = norm_op("norm_0", summing("a0 += x0 != 0 ? 1 : 0;", "y0 = a0;", "REAL"),
                                       summing("a0 += x0.x != 0 || x0.y != 0 ? 1 : 0;", "y0 = a0;", "REAL"));
constexpr ReduceOp kNormOne = norm_op("norm_1", summing("a0 += fabs(x0);", "y0 = a0;", "REAL"),
                                      summing("a0 += dlb_cabs(x0);", "y0 = a0;", "REAL"));
constexpr ReduceOp kNormTwo = norm_op("norm_2", summing("a0 += x0 * x0;", "y0 = sqrt(a0);", "REAL"),
                                      summing("a0 += x0.x * x0.x + x0.y * x0.y;", "y0 = sqrt(a0);", "REAL"));
constexpr ReduceOp kNormMax =
    norm_op("norm_inf",
            folding("REAL", "0", "const REAL m = fabs(x0); a0 = m > a0 || isnan(m) ? m : a0;",
                    "a0 = b0 > a0 || isnan(b0) ? b0 : a0;", "y0 = a0;"),
            folding("REAL", "0", "const REAL m = dlb_cabs(x0); a0 = m > a0 || isnan(m) ? m : a0;",
                    "a0 = b0 > a0 || isnan(b0) ? b0 : a0;", "y0 = a0;"));
constexpr ReduceOp kNormMin =
    norm_op("norm_minus_inf",
            folding("REAL", "INFINITY", "const REAL m = fabs(x0); a0 = m < a0 || isnan(m) ? m : a0;",
                    "a0 = b0 < a0 || isnan(b0) ? b0 : a0;", "y0 = a0;"),
            folding("REAL", "INFINITY", "const REAL m = dlb_cabs(x0); a0 = m < a0 || isnan(m) ? m : a0;",
                    "a0 = b0 < a0 || isnan(b0) ? b0 : a0;", "y0 = a0;"));
constexpr ReduceOp kNormPower =
    norm_op("norm_p", summing("a0 += pow(fabs(x0), s0);", "y0 = pow(a0, 1 / s0);", "REAL"),
            summing("a0 += pow(dlb_cabs(x0), s0.x);", "y0 = pow(a0, 1 / s0.x);", "REAL"), 1);

#define DLB_NORMS "linalg_vector_norm linalg_vector_norm.out norm.out norm.dtype_out"
const codegen::RegisterOps kSumOps(codegen::RowKind::Reduce,
                                   {{kSum, "sum sum.dim_IntList sum.IntList_out trace", "sum"},
                                    {kMean, "mean.dim mean.out", "dtype"},
                                    {kLogsumexp, "logsumexp logsumexp.out", "float"},
                                    {kNansum, "nansum nansum.out", "sum"},
                                    {kProd, "prod prod.dim_int prod.int_out", "sum"},
                                    {kNormZero, DLB_NORMS, "dtype"},
                                    {kNormOne, DLB_NORMS, "dtype"},
                                    {kNormTwo, DLB_NORMS, "dtype"},
                                    {kNormMax, DLB_NORMS, "dtype"},
                                    {kNormMin, DLB_NORMS, "dtype"},
                                    {kNormPower, DLB_NORMS, "dtype"}});

at::Tensor sum_into(at::Tensor out, const at::Tensor& self, at::OptionalIntArrayRef dim, bool keepdim,
                    std::optional<at::ScalarType> dtype) {
  const c10::DeviceGuard guard(self.device());
  Results<at::meta::structured_sum_dim_IntList> results(out);
  results.meta(self, dim, keepdim, dtype);
  reduce(kSum, self, mask_of(dim, self), results[0].scalar_type(), results[0]);
  return results[0];
}
at::Tensor sum(const at::Tensor& self, at::OptionalIntArrayRef dim, bool keepdim,
               std::optional<at::ScalarType> dtype) {
  return sum_into({}, self, dim, keepdim, dtype);
}
at::Tensor& sum_out(const at::Tensor& self, at::OptionalIntArrayRef dim, bool keepdim,
                    std::optional<at::ScalarType> dtype, at::Tensor& out) {
  sum_into(out, self, dim, keepdim, dtype);
  return out;
}
at::Tensor sum_all(const at::Tensor& self, std::optional<at::ScalarType> dtype) {
  return sum_into({}, self, std::nullopt, false, dtype);
}

at::Tensor mean_into(at::Tensor out, const at::Tensor& self, at::OptionalIntArrayRef dim, bool keepdim,
                     std::optional<at::ScalarType> dtype) {
  const c10::DeviceGuard guard(self.device());
  Results<at::meta::structured_mean_dim> results(out);
  results.meta(self, dim, keepdim, dtype);
  if (out.defined()) at::assert_no_internal_overlap(out);  // the CPU divides the sum in place
  reduce(kMean, self, mask_of(dim, self), results[0].scalar_type(), results[0]);
  return results[0];
}
// Whether the row computes it: PyTorch's own form is for integers and complex numbers.
bool has_logsumexp(const at::Tensor& self) {
  return at::isFloatingType(self.scalar_type()) && !c10::isFloat8Type(self.scalar_type());
}
at::Tensor logsumexp(const at::Tensor& self, at::IntArrayRef dim, bool keepdim) {
  if (!has_logsumexp(self)) return at::native::logsumexp(self, dim, keepdim);
  const c10::DeviceGuard guard(self.device());
  const DimMask mask = mask_of(dim, self);
  at::Tensor out = new_result(at::native::shape_from_dim_mask(self, mask, keepdim), self.scalar_type());
  reduce(kLogsumexp, self, mask, self.scalar_type(), out);
  return out;
}
at::Tensor& logsumexp_out(const at::Tensor& self, at::IntArrayRef dim, bool keepdim, at::Tensor& out) {
  if (!has_logsumexp(self) || out.scalar_type() != self.scalar_type() || out.device() != self.device() ||
      out.is_alias_of(self))
    return at::native::logsumexp_out(self, dim, keepdim, out);
  const c10::DeviceGuard guard(self.device());
  const DimMask mask = mask_of(dim, self);
  at::native::resize_output(out, at::native::shape_from_dim_mask(self, mask, keepdim));
  reduce(kLogsumexp, self, mask, self.scalar_type(), out);
  return out;
}

at::Tensor mean(const at::Tensor& self, at::OptionalIntArrayRef dim, bool keepdim,
                std::optional<at::ScalarType> dtype) {
  return mean_into({}, self, dim, keepdim, dtype);
}
at::Tensor& mean_out(const at::Tensor& self, at::OptionalIntArrayRef dim, bool keepdim,
                     std::optional<at::ScalarType> dtype, at::Tensor& out) {
  mean_into(out, self, dim, keepdim, dtype);
  return out;
}

at::Tensor prod_into(at::Tensor out, const at::Tensor& self, int64_t dim, bool keepdim,
                     std::optional<at::ScalarType> dtype) {
  const c10::DeviceGuard guard(self.device());
  Results<at::meta::structured_prod_dim_int> results(out);
  results.meta(self, dim, keepdim, dtype);
  reduce(kProd, self, mask_of(dim, self), results[0].scalar_type(), results[0]);
  return results[0];
}
at::Tensor prod_dim(const at::Tensor& self, int64_t dim, bool keepdim, std::optional<at::ScalarType> dtype) {
  return prod_into({}, self, dim, keepdim, dtype);
}
at::Tensor& prod_out(const at::Tensor& self, int64_t dim, bool keepdim, std::optional<at::ScalarType> dtype,
                     at::Tensor& out) {
  prod_into(out, self, dim, keepdim, dtype);
  return out;
}
at::Tensor prod(const at::Tensor& self, std::optional<at::ScalarType> dtype) {
  const c10::DeviceGuard guard(self.device());
  const auto type = at::native::get_dtype_from_self(self, dtype, /*promote_integers=*/true);
  at::Tensor out = new_result({}, type);
  reduce(kProd, self, mask_of(std::nullopt, self), type, out);
  return out;
}

void nansum_into(const at::Tensor& self, at::OptionalIntArrayRef dim, bool keepdim, at::Tensor& out) {
  TORCH_CHECK(!c10::isComplexType(self.scalar_type()), "nansum does not support complex inputs");
  reduce(kNansum, self, mask_of(dim, self), out.scalar_type(), out);
}
at::Tensor nansum(const at::Tensor& self, at::OptionalIntArrayRef dim, bool keepdim,
                  std::optional<at::ScalarType> dtype) {
  const c10::DeviceGuard guard(self.device());
  const auto type = at::native::get_dtype_from_self(self, dtype, /*promote_integers=*/true);
  at::Tensor out = new_result(at::native::shape_from_dim_mask(self, mask_of(dim, self), keepdim), type);
  nansum_into(self, dim, keepdim, out);
  return out;
}
at::Tensor& nansum_out(const at::Tensor& self, at::OptionalIntArrayRef dim, bool keepdim,
                       std::optional<at::ScalarType> dtype, at::Tensor& out) {
  const c10::DeviceGuard guard(self.device());
  prepare_out(out, at::native::shape_from_dim_mask(self, mask_of(dim, self), keepdim),
              self.options().dtype(at::native::get_dtype_from_result(out, dtype)));
  nansum_into(self, dim, keepdim, out);
  return out;
}

void vector_norm(const at::Tensor& self, double order, DimMask mask, c10::ScalarType in_dtype,
                 const at::Tensor& out) {
  if (order == 0) return reduce(kNormZero, self, mask, in_dtype, out);
  if (order == 1) return reduce(kNormOne, self, mask, in_dtype, out);
  if (order == 2) return reduce(kNormTwo, self, mask, in_dtype, out);
  if (std::isinf(order)) return reduce(order > 0 ? kNormMax : kNormMin, self, mask, in_dtype, out);
  reduce(kNormPower, self, mask, in_dtype, out, {c10::Scalar(order)});
}

// A norm is computed in the dtype of its result, or in the complex dtype of that where the input is complex.
c10::ScalarType norm_dtype(const at::Tensor& self, const at::Tensor& out) {
  return self.is_complex() ? c10::toComplexType(out.scalar_type()) : out.scalar_type();
}

at::Tensor linalg_vector_norm_into(at::Tensor out, const at::Tensor& self, const c10::Scalar& order,
                                   at::OptionalIntArrayRef dim, bool keepdim,
                                   std::optional<at::ScalarType> dtype) {
  const c10::DeviceGuard guard(self.device());
  Results<at::meta::structured_linalg_vector_norm> results(out);
  results.meta(self, order, dim, keepdim, dtype);
  vector_norm(self, order.toDouble(), mask_of(dim, self), norm_dtype(self, results[0]), results[0]);
  return results[0];
}
at::Tensor linalg_vector_norm(const at::Tensor& self, const c10::Scalar& order, at::OptionalIntArrayRef dim,
                              bool keepdim, std::optional<at::ScalarType> dtype) {
  return linalg_vector_norm_into({}, self, order, dim, keepdim, dtype);
}
at::Tensor& linalg_vector_norm_out(const at::Tensor& self, const c10::Scalar& order,
                                   at::OptionalIntArrayRef dim, bool keepdim,
                                   std::optional<at::ScalarType> dtype, at::Tensor& out) {
  linalg_vector_norm_into(out, self, order, dim, keepdim, dtype);
  return out;
}

double order_of(const std::optional<at::Scalar>& p) {
  return p.has_value() ? p->toDouble() : 2.0;
}
at::OptionalScalarRef reference(const std::optional<at::Scalar>& p) {
  return p.has_value() ? at::OptionalScalarRef(*p) : at::OptionalScalarRef();
}
at::Tensor& norm_out(const at::Tensor& self, const std::optional<at::Scalar>& p, at::IntArrayRef dim,
                     bool keepdim, at::Tensor& out) {
  const c10::DeviceGuard guard(self.device());
  Results<at::meta::structured_norm_ScalarOpt_dim> results(out);
  results.meta(self, reference(p), dim, keepdim);
  vector_norm(self, order_of(p), mask_of(dim, self), norm_dtype(self, out), out);
  return out;
}
at::Tensor& norm_dtype_out(const at::Tensor& self, const std::optional<at::Scalar>& p, at::IntArrayRef dim,
                           bool keepdim, at::ScalarType dtype, at::Tensor& out) {
  const c10::DeviceGuard guard(self.device());
  Results<at::meta::structured_norm_ScalarOpt_dim_dtype> results(out);
  results.meta(self, reference(p), dim, keepdim, dtype);
  vector_norm(self, order_of(p), mask_of(dim, self), norm_dtype(self, out), out);
  return out;
}

at::Tensor trace(const at::Tensor& self) {
  TORCH_CHECK(self.dim() == 2, "trace: expected a matrix, but got tensor with dim ", self.dim());
  return sum_into({}, self.diagonal(), std::nullopt, false, std::nullopt);
}

}  // namespace

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("sum", sum_all);
  m.impl("sum.dim_IntList", sum);
  m.impl("sum.IntList_out", sum_out);
  m.impl("logsumexp", logsumexp);
  m.impl("logsumexp.out", logsumexp_out);
  m.impl("mean.dim", mean);
  m.impl("mean.out", mean_out);
  m.impl("prod", prod);
  m.impl("prod.dim_int", prod_dim);
  m.impl("prod.int_out", prod_out);
  m.impl("nansum", nansum);
  m.impl("nansum.out", nansum_out);
  m.impl("linalg_vector_norm", linalg_vector_norm);
  m.impl("linalg_vector_norm.out", linalg_vector_norm_out);
  m.impl("norm.out", norm_out);
  m.impl("norm.dtype_out", norm_dtype_out);
  m.impl("trace", trace);
}

}  // namespace dlb
