// The ops that torch.nn.SyncBatchNorm needs of a device: statistics of this process's part of a batch, and
// the formulas that take those of all parts. Composed of the device's other ops: a handful of launches beside
// a collective.
#include <ATen/core/Tensor.h>
#include <torch/library.h>

#include <optional>
#include <tuple>
#include <vector>

namespace dlb {
namespace {

using MaybeTensor = std::optional<at::Tensor>;

// Statistics of half and bfloat16 are float32's.
c10::ScalarType statistics_dtype(const at::Tensor& input) {
  return at::isReducedFloatingType(input.scalar_type()) ? at::kFloat : input.scalar_type();
}

at::Tensor widened(const at::Tensor& tensor, const at::Tensor& input) {
  return tensor.to(statistics_dtype(input));
}

void check_channels(const at::Tensor& input) {
  TORCH_CHECK(input.dim() >= 2, "batch_norm: expected an input of 2 or more dimensions, got ", input.dim());
}

// All dimensions but that of the channels.
std::vector<int64_t> other_dims(const at::Tensor& input) {
  check_channels(input);
  std::vector<int64_t> dims{0};
  for (int64_t dim = 2; dim < input.dim(); ++dim) dims.push_back(dim);
  return dims;
}

// A value for each channel, as it broadcasts against the input.
at::Tensor per_channel(const at::Tensor& values, const at::Tensor& input) {
  check_channels(input);
  std::vector<int64_t> shape(static_cast<size_t>(input.dim()), 1);
  shape[1] = values.numel();
  return widened(values, input).view(shape);
}

std::tuple<at::Tensor, at::Tensor> stats(const at::Tensor& input, double eps) {
  const std::vector<int64_t> dims = other_dims(input);
  const at::Tensor wide = widened(input, input);
  return {wide.mean(dims), wide.var(dims, false).add(eps).rsqrt()};
}

// Chan's formula for the variance of parts joined: the mean of the parts' variances and squared distances, by
// count.
std::tuple<at::Tensor, at::Tensor> gather_stats(const at::Tensor& input, const at::Tensor& mean,
                                                const at::Tensor& invstd, const MaybeTensor& running_mean,
                                                const MaybeTensor& running_var, double momentum, double eps,
                                                const at::Tensor& counts) {
  const at::Tensor weights = counts.to(mean.scalar_type()).view({-1, 1}), total = weights.sum();
  const at::Tensor joint = mean.mul(weights).sum(0).div(total);
  const at::Tensor variances = invstd.pow(-2).sub(eps);
  const at::Tensor squares = variances.add(mean.sub(joint).square()).mul(weights).sum(0);
  if (running_mean && running_mean->defined())
    running_mean->lerp_(joint.to(running_mean->scalar_type()), momentum);
  if (running_var && running_var->defined())
    running_var->lerp_(squares.div(total.sub(1)).to(running_var->scalar_type()), momentum);
  return {joint, squares.div(total).add(eps).rsqrt()};
}

at::Tensor elemt(const at::Tensor& input, const MaybeTensor& weight, const MaybeTensor& bias,
                 const at::Tensor& mean, const at::Tensor& invstd, double eps) {
  at::Tensor scale = per_channel(invstd, input);
  if (weight && weight->defined()) scale = scale.mul(per_channel(*weight, input));
  at::Tensor result = widened(input, input).sub(per_channel(mean, input)).mul(scale);
  if (bias && bias->defined()) result = result.add(per_channel(*bias, input));
  return result.to(input.scalar_type());
}

std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor> backward_reduce(
    const at::Tensor& grad, const at::Tensor& input, const at::Tensor& mean, const at::Tensor& invstd,
    const MaybeTensor& weight, bool input_g, bool weight_g, bool bias_g) {
  const std::vector<int64_t> dims = other_dims(input);
  const at::Tensor wide = widened(grad, input);
  at::Tensor sum_dy = wide.sum(dims);
  at::Tensor sum_dy_xmu = wide.mul(widened(input, input).sub(per_channel(mean, input))).sum(dims);
  at::Tensor grad_weight, grad_bias;
  const bool weighted = weight && weight->defined();
  const c10::ScalarType dtype = weighted ? weight->scalar_type() : sum_dy.scalar_type();
  if (weight_g) grad_weight = sum_dy_xmu.mul(invstd).to(dtype);
  if (bias_g) grad_bias = sum_dy.to(dtype, false, /*copy=*/true);
  if (!input_g) return {at::Tensor(), at::Tensor(), grad_weight, grad_bias};
  return {sum_dy, sum_dy_xmu, grad_weight, grad_bias};
}

at::Tensor backward_elemt(const at::Tensor& grad, const at::Tensor& input, const at::Tensor& mean,
                          const at::Tensor& invstd, const MaybeTensor& weight, const at::Tensor& sum_dy,
                          const at::Tensor& sum_dy_xmu, const at::Tensor& counts) {
  const at::Tensor total = counts.sum().to(statistics_dtype(input));
  at::Tensor scale = per_channel(invstd, input);
  const at::Tensor slope = per_channel(sum_dy_xmu.div(total), input).mul(scale.square());
  if (weight && weight->defined()) scale = scale.mul(per_channel(*weight, input));
  const at::Tensor centred = widened(input, input).sub(per_channel(mean, input)).mul(slope);
  const at::Tensor dy = widened(grad, input).sub(per_channel(sum_dy.div(total), input));
  return dy.sub(centred).mul(scale).to(input.scalar_type());
}

}  // namespace

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("batch_norm_stats", stats);
  m.impl("batch_norm_gather_stats_with_counts", gather_stats);
  m.impl("batch_norm_elemt", elemt);
  m.impl("batch_norm_backward_reduce", backward_reduce);
  m.impl("batch_norm_backward_elemt", backward_elemt);
}

}  // namespace dlb
