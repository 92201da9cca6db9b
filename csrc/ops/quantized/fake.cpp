// Fake quantization, for training that knows of a later quantization: values are rounded to the grid of the
// integers and stay floating point.
#include <ATen/TensorIterator.h>
#include <ATen/ops/aminmax.h>
#include <ATen/ops/clamp.h>
#include <ATen/ops/empty_like.h>
#include <torch/library.h>

#include <limits>

#include "ops/pointwise/rows.h"

namespace dlb {
namespace {

using at::Tensor;

// x0 values, x1 scale, x2 zero point; s0 and s1 are the lowest and highest integer. y1: it is not clamped.
#define DLB_QUANTUM(scale, zero) "const T q = dlb_rint(x0 * (C(1.0) / " scale ")) + " zero "; "
#define DLB_FAKE(scale, zero) \
  DLB_QUANTUM(scale, zero)    \
  "y0 = (fmin(fmax(q, s0), s1) - " zero ") * " scale "; y1 = q >= s0 && q <= s1 ? C(1.0) : C(0.0);"
constexpr codegen::PointwiseOp kFakeTensor = float_op("fake_quantize", DLB_FAKE("s2", "s3"), nullptr, 4);
constexpr codegen::PointwiseOp kFake = float_op("fake_quantize_channels", DLB_FAKE("x1", "x2"), nullptr, 2);
// Without effect where x3, a flag, is 0.
constexpr codegen::PointwiseOp kFakeIf =
    float_op("fake_quantize_if",
             DLB_QUANTUM("x1", "x2")
    "const int on = x3 != 0; y0 = on ? (fmin(fmax(q, s0), s1) - x2) * x1 : x0; "
             "y1 = !on || (q >= s0 && q <= s1) ? C(1.0) : C(0.0);",
             nullptr, 2);
// The gradient, x3, of the values (y0), the scale (y1) and the zero point (y2), element by element; s2 is a
// factor of the latter two. From "Learned Step Size Quantization" (Esser et al., 2020) and "LSQ+" (Bhalgat et
// al., 2020).
constexpr codegen::PointwiseOp kLearnable = float_op(
    "fake_quantize_learnable_backward",
    DLB_QUANTUM("x1", "x2")
    "const int inside = q >= s0 && q <= s1; const T c = fmin(fmax(q, s0), s1); "
    "y0 = inside ? x3 : C(0.0); "
    "y1 = x3 * s2 * (inside ? ((c - x2) * x1 - x0) / x1 : c - x2); y2 = inside ? C(0.0) : -x3 * x1 * s2;",
    nullptr, 3);

// The range x2 to x3 that was seen so far, moved to x0 to x1 by the part s0 where x4, a flag, is set.
constexpr codegen::PointwiseOp kMoveRange =
    float_op("fake_quantize_move_range",
             "const int on = x4 != 0; y0 = !on ? x2 : isinf(x2) ? x0 : x2 + s0 * (x0 - x2); "
             "y1 = !on ? x3 : isinf(x3) ? x1 : x3 + s0 * (x1 - x3);",
             nullptr, 1);
// Scale and zero point for integers s0 to s1 of the range x0 to x1, which 0 must be in, and which is made
// symmetric where s2 is set. Where x4, a flag, is 0, they stay x2 and x3. As the CPU (QuantUtils.h): a scale
// of 0 becomes 0.1 and a small one 6.1e-5, the zero point is the one of the end with the smaller error.
constexpr codegen::PointwiseOp kParameters =
    float_op("fake_quantize_parameters",
             "const int even = s2 != 0 && x0 < 0 && x1 > 0; const T half_range = floor((s1 - s0) / 2), "
             "unit = fmax(fabs(x0) / (half_range + 1), fabs(x1) / half_range); "
             "T low = even ? -unit * (half_range + 1) : fmin(x0, C(0.0)), "
             "high = even ? unit * half_range : fmax(x1, C(0.0)), scale = (high - low) / (s1 - s0); "
             "scale = scale < C(2.94e-39) ? C(0.1) : scale; "
             "const T least = fmax(scale, C(6.1e-5)); low *= least / scale; high *= least / scale; "
             "low /= least; high /= least; "
             "const T zero = even ? (s0 + s1) / 2 : fabs(s0) - fabs(low) < fabs(s1) - fabs(high) ? s0 - low "
             ": s1 - high; "
             "y0 = x4 != 0 ? least : x2; y1 = x4 != 0 ? dlb_rint(fmin(fmax(zero, s0), s1)) : x3;",
             nullptr, 3);

const codegen::RegisterOps kFakeOps(
    codegen::RowKind::Pointwise,
    {{kMoveRange, "_fused_moving_avg_obs_fq_helper", "fixed"},
     {kParameters, "_fused_moving_avg_obs_fq_helper", "fixed"},
     {kFakeTensor, "fake_quantize_per_tensor_affine_cachemask", "fixed"},
     {kFake, "fake_quantize_per_channel_affine_cachemask", "fixed"},
     {kFakeIf, "_fake_quantize_per_tensor_affine_cachemask_tensor_qparams", "fixed"},
     {kLearnable, "_fake_quantize_learnable_per_tensor_affine_backward", "fixed"}});

void check_range(const Tensor& self, int64_t low, int64_t high) {
  TORCH_CHECK(at::isFloatingType(self.scalar_type()), "fake_quantize: expected a floating tensor, got ",
              self.scalar_type());
  TORCH_CHECK(low <= high, "`quant_min` should be less than or equal to `quant_max`.");
}

void run(const codegen::PointwiseOp& op, std::initializer_list<Tensor> outputs,
         std::initializer_list<Tensor> inputs, c10::ScalarType compute,
         std::initializer_list<c10::Scalar> scalars) {
  at::TensorIteratorConfig config;
  config.check_all_same_dtype(false).resize_outputs(false);
  for (const Tensor& t : outputs) config.add_owned_output(t);
  for (const Tensor& t : inputs) config.add_owned_const_input(t);
  at::TensorIterator iter = config.build();
  run_pointwise(op, iter, compute, scalars);
}

std::tuple<Tensor, Tensor> fake(const codegen::PointwiseOp& op, const Tensor& self,
                                std::initializer_list<Tensor> inputs,
                                std::initializer_list<c10::Scalar> scalars, int64_t low, int64_t high) {
  check_range(self, low, high);
  Tensor out = at::empty_like(self), mask = at::empty_like(self, at::kBool);
  if (self.numel() > 0) run(op, {out, mask}, inputs, self.scalar_type(), scalars);
  return {out, mask};
}

std::tuple<Tensor, Tensor> per_tensor(const Tensor& self, double scale, int64_t zero_point, int64_t low,
                                      int64_t high) {
  TORCH_CHECK(zero_point >= low && zero_point <= high,
              "`zero_point` must be between `quant_min` and `quant_max`.");
  return fake(kFakeTensor, self, {self}, {low, high, scale, zero_point}, low, high);
}

std::tuple<Tensor, Tensor> per_tensor_qparams(const Tensor& self, const Tensor& scale,
                                              const Tensor& zero_point, const Tensor& enabled, int64_t low,
                                              int64_t high) {
  return fake(kFakeIf, self, {self, scale.reshape({}), zero_point.reshape({}), enabled.reshape({})},
              {low, high}, low, high);
}

// A parameter of each channel so that it broadcasts with `self`.
Tensor channel_parameter(const Tensor& parameter, const Tensor& self, int64_t axis) {
  TORCH_CHECK(axis >= 0 && axis <= self.dim(), "`axis` must be between 0 and number of dimensions of input");
  TORCH_CHECK(parameter.dim() == 1, "scale and zero point should be a 1-D tensor");
  TORCH_CHECK(parameter.size(0) == self.size(axis),
              "dimensions of scale and zero-point are not consistent with input "
              "tensor");
  std::vector<int64_t> sizes(static_cast<size_t>(self.dim()), 1);
  sizes[static_cast<size_t>(axis)] = self.size(axis);
  return parameter.view(sizes);
}

std::tuple<Tensor, Tensor> per_channel(const Tensor& self, const Tensor& scale, const Tensor& zero_point,
                                       int64_t axis, int64_t low, int64_t high) {
  TORCH_CHECK(scale.scalar_type() == at::kFloat || scale.scalar_type() == at::kBFloat16,
              "Scale must be Float or BFloat16, found ", scale.scalar_type());
  TORCH_CHECK(zero_point.scalar_type() == at::kInt || zero_point.scalar_type() == at::kFloat ||
                  zero_point.scalar_type() == at::kHalf,
              "Zero-point must be Int32, Float or Half, found ", zero_point.scalar_type());
  return fake(kFake, self,
              {self, channel_parameter(scale, self, axis), channel_parameter(zero_point, self, axis)},
              {low, high}, low, high);
}

// The integer of the range that a learned zero point stands for.
Tensor integral(const Tensor& zero_point, int64_t low, int64_t high) {
  return zero_point.round().clamp_(low, high);
}

Tensor learnable_per_tensor(const Tensor& self, const Tensor& scale, const Tensor& zero_point, int64_t low,
                            int64_t high, double) {
  return std::get<0>(fake(kFake, self, {self, scale.reshape({}), integral(zero_point, low, high).reshape({})},
                          {low, high}, low, high));
}

Tensor learnable_per_channel(const Tensor& self, const Tensor& scale, const Tensor& zero_point, int64_t axis,
                             int64_t low, int64_t high, double) {
  return std::get<0>(fake(kFake, self,
                          {self, channel_parameter(scale, self, axis),
                           channel_parameter(integral(zero_point, low, high), self, axis)},
                          {low, high}, low, high));
}

std::tuple<Tensor, Tensor, Tensor> learnable_backward(const Tensor& grad, const Tensor& self,
                                                      const Tensor& scale, const Tensor& zero_point,
                                                      int64_t low, int64_t high, double factor) {
  check_range(self, low, high);
  Tensor dx = at::empty_like(self), dscale = at::empty_like(self), dzero = at::empty_like(self);
  if (self.numel() > 0)
    run(kLearnable, {dx, dscale, dzero}, {self, scale, zero_point, grad}, self.scalar_type(),
        {low, high, factor});
  return {dx, dscale, dzero};
}

std::tuple<Tensor, Tensor, Tensor> learnable_per_tensor_backward(const Tensor& grad, const Tensor& self,
                                                                 const Tensor& scale,
                                                                 const Tensor& zero_point, int64_t low,
                                                                 int64_t high, double factor) {
  const auto [dx, dscale, dzero] = learnable_backward(
      grad, self, scale.reshape({}), integral(zero_point, low, high).reshape({}), low, high, factor);
  return {dx, dscale.sum().reshape(scale.sizes()), dzero.sum().reshape(zero_point.sizes())};
}

std::tuple<Tensor, Tensor, Tensor> learnable_per_channel_backward(const Tensor& grad, const Tensor& self,
                                                                  const Tensor& scale,
                                                                  const Tensor& zero_point, int64_t axis,
                                                                  int64_t low, int64_t high, double factor) {
  const auto [dx, dscale, dzero] =
      learnable_backward(grad, self, channel_parameter(scale, self, axis),
                         channel_parameter(integral(zero_point, low, high), self, axis), low, high, factor);
  std::vector<int64_t> others;
  for (int64_t d = 0; d < self.dim(); ++d)
    if (d != axis) others.push_back(d);
  if (others.empty()) return {dx, dscale, dzero};
  return {dx, dscale.sum(others), dzero.sum(others)};
}

// The lowest and highest value of all, or of each channel of the first dimension.
std::tuple<Tensor, Tensor> range_of(const Tensor& self, bool channels) {
  if (!channels) return at::aminmax(self);
  return at::aminmax(self.reshape({self.size(0), -1}), 1);
}

// An observer and a fake quantization in one, by flags that stay on the device: follows the range of `self`,
// finds scale and zero point, all of which are updated in place, and rounds.
std::tuple<Tensor, Tensor> observed(const Tensor& self, const Tensor& observer_on, const Tensor& enabled,
                                    Tensor& running_min, Tensor& running_max, Tensor& scale,
                                    Tensor& zero_point, double averaging, int64_t low, int64_t high,
                                    int64_t axis, bool channels, bool symmetric) {
  TORCH_CHECK(axis < self.dim(), "fused_moving_avg_obs_fake_quant: ch_axis must be < self.dim()");
  TORCH_CHECK(!channels || axis == 0,
              "Per-channel FakeQuant in fused_moving_avg_obs_fake_quant is only supported on axis == 0");
  check_range(self, low, high);
  if (channels && running_min.numel() == 0) {
    for (Tensor* t : {&running_min, &running_max, &scale, &zero_point}) t->resize_({self.size(axis)});
    running_min.fill_(std::numeric_limits<float>::infinity());
    running_max.fill_(-std::numeric_limits<float>::infinity());
  }
  // As the CPU computes the scale, where the device can.
  const at::ScalarType wide = current_stream(self.device().index()).device().fp64 ? at::kDouble : at::kFloat;
  const auto flat = [](const Tensor& t) { return t.view({-1}); };
  if (self.numel() > 0) {
    const auto [least, most] = range_of(self, channels);
    run(kMoveRange, {flat(running_min), flat(running_max)},
        {flat(least), flat(most), flat(running_min), flat(running_max), flat(observer_on)}, at::kFloat,
        {averaging});
  }
  run(kParameters, {flat(scale), flat(zero_point)},
      {flat(running_min), flat(running_max), flat(scale), flat(zero_point), flat(enabled)}, wide,
      {low, high, static_cast<int64_t>(symmetric)});
  if (!channels) return per_tensor_qparams(self, scale, zero_point, enabled, low, high);
  return fake(kFakeIf, self,
              {self, channel_parameter(scale, self, axis), channel_parameter(zero_point, self, axis),
               enabled.reshape({})},
              {low, high}, low, high);
}

}  // namespace

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("_fused_moving_avg_obs_fq_helper", observed);
  m.impl("fake_quantize_per_tensor_affine_cachemask", per_tensor);
  m.impl("_fake_quantize_per_tensor_affine_cachemask_tensor_qparams", per_tensor_qparams);
  m.impl("fake_quantize_per_channel_affine_cachemask", per_channel);
  m.impl("_fake_quantize_learnable_per_tensor_affine", learnable_per_tensor);
  m.impl("_fake_quantize_learnable_per_tensor_affine_backward", learnable_per_tensor_backward);
  m.impl("_fake_quantize_learnable_per_channel_affine", learnable_per_channel);
  m.impl("_fake_quantize_learnable_per_channel_affine_backward", learnable_per_channel_backward);
}

}  // namespace dlb
