// Root mean square normalisation, as expressions of rows: one launch gives rstd, one applies it.
#include <ATen/ops/empty_like.h>
#include <torch/library.h>

#include <algorithm>
#include <limits>
#include <numeric>

#include "ops/common/fused.h"
#include "primitives/norm/norm.h"

namespace dlb {
namespace {

using at::Tensor;
using OptionalTensor = std::optional<Tensor>;
using Two = std::tuple<Tensor, Tensor>;

// x0: the input, s0: eps.
const FusedRows kRstd("v = mul.T(x0, x0); m = mean.T(v); e = add_alpha.T(m, s0, 1); y0 = rsqrt.T(e)");
// x1: rstd, x2: the weight.
const FusedRows kApply("y0 = mul.T(x0, x1)");
const FusedRows kApplyWeight("v = mul.T(x0, x1); y0 = mul.T(v, x2)");
// The mean over a row of grad * weight * x. x0: grad, x1: the input, x2: the weight.
const FusedRows kSlope("v = mul.T(x0, x1); y0 = mean.T(v)");
const FusedRows kSlopeWeight("g = mul.T(x0, x2); v = mul.T(g, x1); y0 = mean.T(v)");
// (grad * weight - x * rstd^2 * slope) * rstd. x2: rstd, x3: that mean, x4: the weight.
#define DLB_GRAD(g) \
  "r = mul.T(x2, x2); k = mul.T(r, x3); p = mul.T(x1, k); d = sub_alpha.T(" g ", p, 1); y0 = mul.T(d, x2)"
const FusedRows kGrad(DLB_GRAD("x0"));
const FusedRows kGradWeight("g = mul.T(x0, x4); " DLB_GRAD("g"));
const FusedRows kWeightGrad("v = mul.T(x0, x1); w = mul.T(v, x2); y0 = sum.T(w)");

// Dimensions first .. last - 1.
c10::SmallVector<int64_t, 6> range(int64_t first, int64_t last) {
  c10::SmallVector<int64_t, 6> dims(static_cast<size_t>(last - first));
  std::iota(dims.begin(), dims.end(), first);
  return dims;
}

// What halves are computed in.
c10::ScalarType wide(c10::ScalarType type) {
  return type == at::kDouble || type == at::kComplexDouble ? type
         : c10::isComplexType(type)                        ? at::kComplexFloat
                                                           : at::kFloat;
}

Two rms_norm(const Tensor& input, at::IntArrayRef normalized, const OptionalTensor& weight_,
             std::optional<double> eps) {
  const Tensor weight = weight_.value_or(Tensor());
  norm::check_normalized_shape(input, normalized, {{"weight", &weight}});
  TORCH_CHECK_NOT_IMPLEMENTED(at::isFloatingType(input.scalar_type()) || input.is_complex(),
                              "\"rms_norm\" not implemented for '", c10::toString(input.scalar_type()), "'");
  const c10::ScalarType type = wide(input.scalar_type());
  const double epsilon =
      eps.value_or(c10::toRealValueType(type) == at::kDouble ? std::numeric_limits<double>::epsilon()
                                                             : std::numeric_limits<float>::epsilon());
  const auto dims = range(input.dim() - static_cast<int64_t>(normalized.size()), input.dim());
  Tensor rstd = run_fused(kRstd.of(type), {input, c10::Scalar(epsilon), dims, true})[0];
  Tensor y = at::empty_like(input, input.suggest_memory_format());
  if (weight.defined())
    run_fused_out(kApplyWeight.of(type), {{input, rstd, weight}}, y);
  else
    run_fused_out(kApply.of(type), {{input, rstd}}, y);
  return {std::move(y), std::move(rstd)};
}

// Of complex numbers, whose square has no magnitude taken: the derivative is that of a holomorphic function.
Two complex_backward(const Tensor& grad, const Tensor& input, at::IntArrayRef inner, at::IntArrayRef outer,
                     const Tensor& rstd, const Tensor& weight, std::array<bool, 2> mask) {
  const Tensor x = input.conj(), r = rstd.conj(), g = weight.defined() ? grad.mul(weight.conj()) : grad;
  Tensor dx, dw;
  if (mask[0]) dx = g.sub(x.mul(g.mul(x).mean(inner, true)).mul(r).mul(r)).mul(r);
  if (mask[1]) dw = grad.mul(x).mul(r);
  if (mask[1] && !outer.empty()) dw = dw.sum(outer);
  return {dx, dw};
}

Two rms_norm_backward(const Tensor& grad, const Tensor& input, at::IntArrayRef normalized, const Tensor& rstd,
                      const OptionalTensor& weight_, std::array<bool, 2> mask) {
  const Tensor weight = weight_.value_or(Tensor());
  const int64_t kept = input.dim() - static_cast<int64_t>(normalized.size());
  const auto inner = range(kept, input.dim()), outer = range(0, kept);
  mask[1] = mask[1] && weight.defined();
  if (!at::isFloatingType(input.scalar_type()))
    return complex_backward(grad, input, inner, outer, rstd, weight, mask);
  const c10::ScalarType type = wide(input.scalar_type());
  Tensor dx, dw;
  if (mask[0]) {
    dx = at::empty_like(input, input.suggest_memory_format());
    if (weight.defined()) {
      const Tensor slope = run_fused(kSlopeWeight.of(type), {{grad, input, weight}, {}, inner, true})[0];
      run_fused_out(kGradWeight.of(type), {{grad, input, rstd, slope, weight}}, dx);
    } else {
      const Tensor slope = run_fused(kSlope.of(type), {{grad, input}, {}, inner, true})[0];
      run_fused_out(kGrad.of(type), {{grad, input, rstd, slope}}, dx);
    }
  }
  if (mask[1]) {
    // One row has no dimension to reduce, and is given one.
    const auto rows = [&](const Tensor& t) { return kept ? t : t.unsqueeze(0); };
    dw = run_fused(kWeightGrad.of(type),
                   {{rows(grad), rows(input), rows(rstd)}, {}, range(0, std::max<int64_t>(kept, 1))},
                   weight.scalar_type())[0];
  }
  return {std::move(dx), std::move(dw)};
}

}  // namespace

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("_fused_rms_norm", rms_norm);
  m.impl("_fused_rms_norm_backward", rms_norm_backward);
}

}  // namespace dlb
