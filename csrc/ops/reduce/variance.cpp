// Variance and standard deviation, with and without the mean.
//
// Each lane sums deviations from its first element over at most 64 steps, which turn into a mean and a sum of
// squared deviations; these combine pairwise (Chan, Golub and LeVeque, "Algorithms for computing the sample
// variance", The American Statistician 1983). No element is divided by. Means stay relative to the lane's
// first element, so no digit is lost to a large mean: the difference of two first elements is as good as
// exact.
#include <torch/library.h>

#include "ops/reduce/results.h"

namespace dlb {
namespace {

using codegen::ReduceBody;
using codegen::ReduceOp;
using codegen::ResultType;

// Fields: a0 the mean less a3 (in step: the sum of deviations from a3), a1 the sum of squared deviations, a2
// the number of elements, a3 the first element.
constexpr const char* kStepReal =
    "a3 = a2 == 0 ? x0 : a3; const T d = x0 - a3; a0 += d; a1 += d * d; a2 += 1;";
constexpr const char* kSettleReal =
    "const REAL w = a2 > 0 ? a2 : 1; const T m = a0 / w; const REAL q = a1 - a0 * m;"
    "a1 = q < 0 ? 0 : q; a0 = m;";
constexpr const char* kCombineReal =
    "const REAL n = a2 + b2, w = n > 0 ? b2 / n : 0; const T d = (b3 - a3) + (b0 - a0);"
    "a1 = a2 == 0 ? b1 : b2 == 0 ? a1 : a1 + b1 + d * d * (a2 * w);"
    "a0 = a2 == 0 ? b0 : b2 == 0 ? a0 : a0 + d * w; a3 = a2 == 0 ? b3 : a3; a2 = n;";
constexpr const char* kStepComplex =
    "a3 = a2 == 0 ? x0 : a3; const T d = x0 - a3; a0 += d; a1 += d.x * d.x + d.y * d.y; a2 += 1;";
constexpr const char* kSettleComplex =
    "const REAL w = a2 > 0 ? a2 : 1; const T m = a0 / w; const REAL q = a1 - (a0.x * m.x + a0.y * m.y);"
    "a1 = q < 0 ? 0 : q; a0 = m;";
constexpr const char* kCombineComplex =
    "const REAL n = a2 + b2, w = n > 0 ? b2 / n : 0; const T d = (b3 - a3) + (b0 - a0);"
    "a1 = a2 == 0 ? b1 : b2 == 0 ? a1 : a1 + b1 + (d.x * d.x + d.y * d.y) * (a2 * w);"
    "a0 = a2 == 0 ? b0 : b2 == 0 ? a0 : a0 + d * w; a3 = a2 == 0 ? b3 : a3; a2 = n;";

constexpr ReduceBody moments(bool complex, const char* finish) {
  return {.fields = {{{"T", "0"}, {"REAL", "0"}, {"REAL", "0"}, {"T", "0"}}},
          .step = complex ? kStepComplex : kStepReal,
          .combine = complex ? kCombineComplex : kCombineReal,
          .finish = finish,
          .settle = complex ? kSettleComplex : kSettleReal};
}
// s0 is the correction; the divisor never is negative. All results of no elements are NaN.
#define DLB_VARIANCE(s) "const REAL v = n == 0 ? NAN : a1 / max((REAL)n - " s ", (REAL)0);"
#define DLB_MEAN "y1 = n == 0 ? (T)(NAN) : a3 + a0;"
constexpr ReduceOp moment_op(const char* name, const char* real, const char* complex, bool mean) {
  ReduceOp op{
      .name = name, .on_float = moments(false, real), .on_complex = moments(true, complex), .scalars = 1};
  op.results = {ResultType::Real, mean ? ResultType::Same : ResultType::Real};
  return op;
}
constexpr ReduceOp kVar =
    moment_op("var", DLB_VARIANCE("s0") "y0 = v;", DLB_VARIANCE("s0.x") "y0 = v;", false);
constexpr ReduceOp kStd =
    moment_op("std", DLB_VARIANCE("s0") "y0 = sqrt(v);", DLB_VARIANCE("s0.x") "y0 = sqrt(v);", false);
constexpr ReduceOp kVarMean = moment_op("var_mean", DLB_VARIANCE("s0") "y0 = v;" DLB_MEAN,
                                        DLB_VARIANCE("s0.x") "y0 = v;" DLB_MEAN, true);
constexpr ReduceOp kStdMean = moment_op("std_mean", DLB_VARIANCE("s0") "y0 = sqrt(v);" DLB_MEAN,
                                        DLB_VARIANCE("s0.x") "y0 = sqrt(v);" DLB_MEAN, true);

const codegen::RegisterOps kVarianceOps(codegen::RowKind::Reduce,
                                        {{kVar, "var.correction var.correction_out", "first"},
                                         {kStd, "std.correction std.correction_out", "first"},
                                         {kVarMean, "var_mean.correction", "first"},
                                         {kStdMean, "std_mean.correction", "first"}});

// The dimensions that a call reduces, the shape of its result, and the correction of its divisor; checks
// them.
struct SpreadArguments {
  DimMask mask;
  at::DimVector shape;
  double correction;
  SpreadArguments(const char* name, const at::Tensor& self, at::OptionalIntArrayRef dim,
                  const std::optional<at::Scalar>& given, bool keepdim)
      : mask(mask_of(dim, self)),
        shape(at::native::shape_from_dim_mask(self, mask, keepdim)),
        correction(given.value_or(1).toDouble()) {
    TORCH_CHECK(at::isFloatingType(self.scalar_type()) || self.is_complex(),
                "std and var only support floating point and complex dtypes, but got: ", self.scalar_type());
    const int64_t results = c10::multiply_integers(shape);
    const int64_t count = results ? self.numel() / results : 0;
    if (results && static_cast<double>(count) <= correction)
      TORCH_WARN(name,
                 "(): degrees of freedom is <= 0. Correction should be strictly less than the reduction ",
                 "factor (input numel divided by output numel).");
  }
};

template <const ReduceOp& Op>
struct Spread {
  static at::Tensor call(const at::Tensor& self, at::OptionalIntArrayRef dim,
                         const std::optional<at::Scalar>& correction, bool keepdim) {
    const c10::DeviceGuard guard(self.device());
    const SpreadArguments args(Op.name, self, dim, correction, keepdim);
    at::Tensor out = new_result(args.shape, c10::toRealValueType(self.scalar_type()));
    reduce(Op, self, args.mask, self.scalar_type(), out, {c10::Scalar(args.correction)});
    return out;
  }
  static at::Tensor& call_out(const at::Tensor& self, at::OptionalIntArrayRef dim,
                              const std::optional<at::Scalar>& correction, bool keepdim, at::Tensor& out) {
    const c10::DeviceGuard guard(self.device());
    const SpreadArguments args(Op.name, self, dim, correction, keepdim);
    const c10::ScalarType type = c10::toRealValueType(self.scalar_type());
    TORCH_CHECK(c10::canCast(type, out.scalar_type()), "result type ", type,
                " can't be cast to the desired output type ", out.scalar_type());
    at::native::resize_output(out, args.shape);
    // One number is any dtype's on the CPU, several have kernels for real ones.
    TORCH_CHECK_NOT_IMPLEMENTED(self.is_complex() || !out.is_complex() || out.numel() == 1, "\"", Op.name,
                                "\" not implemented for '", out.scalar_type(), "'");
    reduce(Op, self, args.mask, self.scalar_type(), out, {c10::Scalar(args.correction)});
    return out;
  }
};

template <const ReduceOp& Op>
struct SpreadAndMean {
  static std::tuple<at::Tensor, at::Tensor> call(const at::Tensor& self, at::OptionalIntArrayRef dim,
                                                 const std::optional<at::Scalar>& correction, bool keepdim) {
    const c10::DeviceGuard guard(self.device());
    const SpreadArguments args(Op.name, self, dim, correction, keepdim);
    at::Tensor spread = new_result(args.shape, c10::toRealValueType(self.scalar_type()));
    at::Tensor mean = new_result(args.shape, self.scalar_type());
    const at::Tensor *input = &self, *outputs[] = {&spread, &mean};
    run_reduce({Op, outputs, {}, {input}, args.mask, self.scalar_type(), {c10::Scalar(args.correction)}});
    return {spread, mean};
  }
};

}  // namespace

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("var.correction", Spread<kVar>::call);
  m.impl("var.correction_out", Spread<kVar>::call_out);
  m.impl("std.correction", Spread<kStd>::call);
  m.impl("std.correction_out", Spread<kStd>::call_out);
  m.impl("var_mean.correction", SpreadAndMean<kVarMean>::call);
  m.impl("std_mean.correction", SpreadAndMean<kStdMean>::call);
}

}  // namespace dlb
