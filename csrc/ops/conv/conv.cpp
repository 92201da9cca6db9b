// Convolution and its backward pass: the entry points that PyTorch calls for an out-of-tree device, turned
// into one problem per direction. A transposed convolution is the input gradient of the convolution with its
// weights.
#include <ATen/core/op_registration/adaption.h>
#include <ATen/ops/clamp.h>
#include <ATen/ops/sum.h>
#include <torch/library.h>

#include <array>
#include <vector>

#include "cl/statistics.h"
#include "ops/common/then.h"
#include "primitives/common/factor.h"
#include "primitives/conv/expect.h"
#include "primitives/conv/problem.h"
#include "runtime/element.h"
#include "runtime/new_tensor.h"
#include "runtime/tensor.h"
#include "solver/execute.h"
#include "solver/prepared.h"

namespace dlb {
namespace {

using at::IntArrayRef;
using at::Tensor;
using solver::ConvDirection;
using solver::ConvProblem;

// Strides and sizes of a tensor [n, c, spatial...] as five dimensions; missing spatial ones are in front.
void set_dims(const Tensor& tensor, int64_t (&strides)[5], int32_t (&spatial)[3]) {
  const int64_t missing = 5 - tensor.dim();
  strides[0] = tensor.stride(0), strides[1] = tensor.stride(1);
  for (int64_t i = 0; i < 3; i++) {
    strides[2 + i] = i < missing ? 0 : tensor.stride(2 + i - missing);
    spatial[i] = i < missing ? 1 : static_cast<int32_t>(tensor.size(2 + i - missing));
  }
}

void set_parameters(IntArrayRef values, int32_t (&to)[3]) {
  for (size_t i = 0; i < values.size(); i++) to[3 - values.size() + i] = static_cast<int32_t>(values[i]);
}

bool is_narrow(c10::ScalarType type) {
  return type == at::kChar || type == at::kByte;
}

// Makes the problem of integers of 8 bits one of sums of int32.
void sum_integers(ConvProblem& p, const Tensor& x, const Tensor& w) {
  p.dtype = at::kInt;
  p.x_dtype = solver::OperandDtype(x.scalar_type()), p.w_dtype = solver::OperandDtype(w.scalar_type());
}

// `x` is the tensor with the channels that the weights' second dimension counts, `y` the one with the
// first's.
ConvProblem problem_of(ConvDirection direction, const Tensor& x, const Tensor& w, const Tensor& y,
                       IntArrayRef stride, IntArrayRef padding, IntArrayRef dilation, int64_t groups) {
  for (const Tensor* tensor : {&x, &w, &y})
    for (int64_t size : tensor->sizes())
      TORCH_CHECK(size <= INT32_MAX, "convolution: a dimension of ", size,
                  " elements is more than ocl handles (2^31 - 1)");
  ConvProblem p = solver::conv_op(direction).make();
  p.dtype = x.scalar_type(), p.device = static_cast<int8_t>(x.device().index());
  p.n = static_cast<int32_t>(x.size(0)), p.c = static_cast<int32_t>(x.size(1)),
  p.k = static_cast<int32_t>(y.size(1));
  p.groups = static_cast<int32_t>(groups);
  set_dims(x, p.xs, p.in), set_dims(w, p.ws, p.filter), set_dims(y, p.ys, p.out);
  set_parameters(stride, p.stride), set_parameters(padding, p.padding), set_parameters(dilation, p.dilation);
  solver::allow_tf32(p, device_of(x.device().index()));
  return p;
}

// `constant`: solvers may keep what they make of w. They notice what PyTorch counts as a change of it; an
// inference tensor's changes are not counted.
void run(ConvProblem p, const Tensor& x, const Tensor& w, const Tensor& y, const Tensor& bias,
         const solver::Bounds& bounds = {}, bool constant = false, const Then* then = nullptr) {
  p.has_bias = bias.defined();
  p.normalize();
  Stream& stream = current_stream(x.device().index());
  solver::ConvOperands operands;
  operands.x = buffer_of(x), operands.w = buffer_of(w), operands.y = buffer_of(y);
  if (p.has_bias) operands.bias = buffer_of(bias);
  operands.bounds = bounds;
  std::shared_ptr<solver::PreparedWeights> kept;
  if (constant && !w.is_inference() && stream.device().cls == cl::DeviceClass::kCpu)  // whose solvers pack
    kept = solver::PreparedWeights::of(w.storage());
  if (kept) {
    p.constant_w = 1;
    operands.kept = kept.get(), operands.kept_offset = operands.w.offset;
    operands.kept_version = static_cast<uint32_t>(w._version());
  }
  if (!then) return solver::run(p, operands, stream);
  ConvProblem fused = p;
  fused.epilogue = then->epilogue();
  then->set_operands(operands);
  const auto bytes = [&] { return then->bytes(y); };
  then->run(
      y, [&] { return solver::run_with_rows(fused, p, bytes, operands, stream); },
      [&](const Tensor& sums) {
        operands.y = buffer_of(sums);
        solver::run(p, operands, stream);
      });
}

at::MemoryFormat format_of(const Tensor& a, const Tensor& b) {
  const auto channels_last = a.dim() == 5 ? at::MemoryFormat::ChannelsLast3d : at::MemoryFormat::ChannelsLast;
  if (a.dim() < 4) return at::MemoryFormat::Contiguous;
  const bool any = a.suggest_memory_format() == channels_last || b.suggest_memory_format() == channels_last;
  return any ? channels_last : at::MemoryFormat::Contiguous;
}

void check_tensors(const char* op, const Tensor& first, std::initializer_list<const Tensor*> others) {
  std::optional<c10::Device> device;
  c10::impl::check_and_update_common_device(device, first, op, "input");
  check_device_supports(device_of(first.device().index()), dtype_of(first.scalar_type(), op), op);
  TORCH_CHECK_NOT_IMPLEMENTED(has_arithmetic(first.scalar_type()), "\"", op, "\" not implemented for '",
                              c10::toString(first.scalar_type()), "'");
  TORCH_CHECK(first.dim() >= 3 && first.dim() <= 5, op,
              ": expected 3 to 5 dimensions (1 to 3 spatial), but got ", first.dim());
  for (const Tensor* other : others) {
    if (!other->defined()) continue;
    c10::impl::check_and_update_common_device(device, *other, op, "weight or bias");
    TORCH_CHECK(other->scalar_type() == first.scalar_type(), op, ": input (", first.scalar_type(),
                ") and weight or bias (", other->scalar_type(), ") should have the same dtype");
  }
}

// The checks of at::convolution(), for those who call the ops below themselves. The bias may be undefined.
void check_parameters(const char* op, const Tensor& input, const Tensor& weight, const Tensor& bias,
                      IntArrayRef stride, IntArrayRef padding, IntArrayRef dilation, bool transposed,
                      IntArrayRef output_padding, int64_t groups) {
  const IntArrayRef x = input.sizes(), w = weight.sizes();
  TORCH_CHECK(w.size() == x.size(), op, ": expected a weight of ", x.size(),
              " dimensions, as the input's, but got ", w.size());
  const size_t spatial = x.size() - 2;
  TORCH_CHECK(stride.size() == spatial && padding.size() == spatial && dilation.size() == spatial &&
                  output_padding.size() == spatial,
              op, ": expected stride, padding, dilation and output_padding of ", spatial, " elements");
  TORCH_CHECK(groups == 1 || (groups > 0 && w[0] % groups == 0), op, ": given groups=", groups,
              ", expected a divisor of the weight's first dimension, ", w[0]);
  const int64_t in = transposed ? w[0] : w[1] * groups, out = transposed ? w[1] * groups : w[0];
  TORCH_CHECK(x[1] == in, op, ": given groups=", groups, " and weight of size ", w, ", expected input", x,
              " to have ", in, " channels");
  TORCH_CHECK(!bias.defined() || (bias.dim() == 1 && bias.numel() == out), op, ": expected a bias of ", out,
              " elements, but got ", bias.sizes());
  for (size_t i = 0; i < spatial; i++) {
    TORCH_CHECK(dilation[i] > 0, "dilation should be greater than zero, but got ", dilation);
    TORCH_CHECK(stride[i] > 0 && padding[i] >= 0, op, ": stride must be positive and padding not negative");
    TORCH_CHECK(transposed || x[2 + i] + 2 * padding[i] > dilation[i] * (w[2 + i] - 1), op,
                ": the kernel can't be larger than the padded input");
  }
}

at::DimVector output_sizes(const Tensor& input, const Tensor& weight, IntArrayRef stride, IntArrayRef padding,
                           IntArrayRef dilation, bool transposed, IntArrayRef output_padding,
                           int64_t groups) {
  at::DimVector sizes{input.size(0), transposed ? weight.size(1) * groups : weight.size(0)};
  for (int64_t i = 0; i < input.dim() - 2; i++) {
    TORCH_CHECK(!transposed || output_padding[i] < stride[i] || output_padding[i] < dilation[i],
                "output padding must be smaller than either stride or dilation, but got output_padding: ",
                output_padding, " stride: ", stride, " dilation: ", dilation);
    const int64_t reach = dilation[i] * (weight.size(2 + i) - 1);
    sizes.push_back(transposed
                        ? (input.size(2 + i) - 1) * stride[i] - 2 * padding[i] + reach + output_padding[i] + 1
                        : (input.size(2 + i) + 2 * padding[i] - reach - 1) / stride[i] + 1);
    TORCH_CHECK(sizes.back() >= (transposed ? 1 : 0),
                "Given input size per channel: ", input.sizes().slice(2),
                ". Calculated output size per channel: ", sizes.back(), " in dimension ", i,
                ". Output size is too small");
  }
  return sizes;
}

Tensor convolution_within(const Tensor& input, const Tensor& weight, const std::optional<Tensor>& bias_option,
                          IntArrayRef stride, IntArrayRef padding, IntArrayRef dilation, bool transposed,
                          IntArrayRef output_padding, int64_t groups, const solver::Bounds& bounds,
                          bool constant = false) {
  const Tensor bias = bias_option && bias_option->defined() ? bias_option->contiguous() : Tensor();
  check_tensors("convolution", input, {&weight, &bias});
  check_parameters("convolution", input, weight, bias, stride, padding, dilation, transposed, output_padding,
                   groups);
  const Tensor output =
      new_tensor(output_sizes(input, weight, stride, padding, dilation, transposed, output_padding, groups),
                 input.scalar_type(), input.device(), format_of(input, weight));
  if (output.numel() == 0) return output;
  const Tensor &x = transposed ? output : input, &y = transposed ? input : output;
  const ConvProblem p = problem_of(transposed ? ConvDirection::kInputGrad : ConvDirection::kForward, x,
                                   weight, y, stride, padding, dilation, groups);
  const uint64_t compiled = cl::programs_compiled();
  run(p, x, weight, y, bias, bounds, constant && !transposed);
  if (cl::programs_compiled() != compiled) [[unlikely]] {
    const bool grad = at::GradMode::is_enabled();
    solver::expect_what_follows(p, grad && input.requires_grad(), grad && weight.requires_grad());
  }
  return output;
}

// The rows of `text` behind a convolution that is not transposed. With `constant_weight` as
// convolution_bounded().
std::vector<Tensor> convolution_rows(std::string text, const Tensor& input, const Tensor& weight,
                                     const std::optional<Tensor>& bias_option, IntArrayRef stride,
                                     IntArrayRef padding, IntArrayRef dilation, int64_t groups,
                                     at::TensorList extras, bool constant_weight) {
  const Tensor bias = bias_option && bias_option->defined() ? bias_option->contiguous() : Tensor();
  const std::vector<int64_t> none(stride.size(), 0);
  const bool meta = input.is_meta();
  const bool integers = is_narrow(input.scalar_type()) && is_narrow(weight.scalar_type());
  const c10::ScalarType computes = integers ? at::kInt : input.scalar_type();
  if (integers) {
    std::optional<c10::Device> device = input.device();
    for (const Tensor* tensor : {&weight, &bias})
      if (tensor->defined())
        c10::impl::check_and_update_common_device(device, *tensor, "convolution_rows", "weight or bias");
    TORCH_CHECK(!bias.defined() || bias.scalar_type() == at::kInt,
                "convolution_rows: the bias of a convolution of integers of 8 bits is int32, but got ",
                bias.scalar_type());
  } else if (!meta) {
    check_tensors("convolution_rows", input, {&weight, &bias});
  }
  check_parameters("convolution_rows", input, weight, bias, stride, padding, dilation, false, none, groups);
  const FusedOp& op = fused_op_of(text);
  const Tensor output = at::empty(
      output_sizes(input, weight, stride, padding, dilation, false, none, groups),
      input.options().dtype(first_dtype(op, computes, extras)).memory_format(format_of(input, weight)));
  const Then then(op, extras, output, 1, -1, computes);
  if (meta || output.numel() == 0) return then.with(output);
  ConvProblem p =
      problem_of(ConvDirection::kForward, input, weight, output, stride, padding, dilation, groups);
  if (integers) sum_integers(p, input, weight);
  run(p, input, weight, output, bias, {}, constant_weight, &then);
  return then.with(output);
}

Tensor convolution(const Tensor& input, const Tensor& weight, const std::optional<Tensor>& bias,
                   IntArrayRef stride, IntArrayRef padding, IntArrayRef dilation, bool transposed,
                   IntArrayRef output_padding, int64_t groups) {
  return convolution_within(input, weight, bias, stride, padding, dilation, transposed, output_padding,
                            groups, {});
}

// convolution() with its results brought to [low, high]: a ReLU or the like in the kernel. Without autograd.
// With `constant_weight`, what a solver makes of the weight is kept for as long as the weight has its memory
// and its version.
Tensor convolution_bounded(const Tensor& input, const Tensor& weight, const std::optional<Tensor>& bias,
                           IntArrayRef stride, IntArrayRef padding, IntArrayRef dilation, int64_t groups,
                           double low, double high, bool constant_weight) {
  for (const int64_t size : weight.sizes())
    TORCH_CHECK(size > 0, "convolution_bounded: expected a weight with elements, but got one of size ",
                weight.sizes());
  TORCH_CHECK(low <= high, "convolution_bounded: low (", low, ") must not be above high (", high, ")");
  const std::vector<int64_t> none(stride.size(), 0);
  if (is_float_storage(input.scalar_type()))
    return convolution_within(input, weight, bias, stride, padding, dilation, false, none, groups,
                              {static_cast<float>(low), static_cast<float>(high)}, constant_weight);
  // bounds are float32: double precision gets its own by a kernel of its own
  return convolution(input, weight, bias, stride, padding, dilation, false, none, groups).clamp_(low, high);
}

Tensor input_grad(const Tensor& grad, const Tensor& input, const Tensor& weight, IntArrayRef stride,
                  IntArrayRef padding, IntArrayRef dilation, bool transposed, int64_t groups) {
  const Tensor result =
      new_tensor(input.sizes(), input.scalar_type(), input.device(), format_of(input, weight));
  if (result.numel() == 0) return result;
  if (grad.numel() == 0 || weight.numel() == 0) return result.zero_();
  const Tensor &x = transposed ? grad : result, &y = transposed ? result : grad;
  run(problem_of(transposed ? ConvDirection::kForward : ConvDirection::kInputGrad, x, weight, y, stride,
                 padding, dilation, groups),
      x, weight, y, Tensor());
  return result;
}

Tensor weight_grad(const Tensor& grad, const Tensor& input, const Tensor& weight, IntArrayRef stride,
                   IntArrayRef padding, IntArrayRef dilation, bool transposed, int64_t groups) {
  const Tensor result =
      new_tensor(weight.sizes(), weight.scalar_type(), weight.device(), format_of(input, weight));
  if (result.numel() == 0) return result;
  if (grad.numel() == 0 || input.numel() == 0) return result.zero_();
  const Tensor &x = transposed ? grad : input, &y = transposed ? input : grad;
  run(problem_of(ConvDirection::kWeightGrad, x, result, y, stride, padding, dilation, groups), x, result, y,
      Tensor());
  return result;
}

std::tuple<Tensor, Tensor, Tensor> convolution_backward(const Tensor& grad, const Tensor& input,
                                                        const Tensor& weight, IntArrayRef stride,
                                                        IntArrayRef padding, IntArrayRef dilation,
                                                        bool transposed, IntArrayRef output_padding,
                                                        int64_t groups, std::array<bool, 3> output_mask) {
  check_tensors("convolution_backward", input, {&weight, &grad});
  check_parameters("convolution_backward", input, weight, {}, stride, padding, dilation, transposed,
                   output_padding, groups);
  const at::DimVector sizes =
      output_sizes(input, weight, stride, padding, dilation, transposed, output_padding, groups);
  TORCH_CHECK(grad.sizes() == sizes, "convolution_backward: expected a gradient of size ", sizes,
              ", but got ", grad.sizes());
  std::tuple<Tensor, Tensor, Tensor> grads;
  if (output_mask[0])
    std::get<0>(grads) = input_grad(grad, input, weight, stride, padding, dilation, transposed, groups);
  if (output_mask[1])
    std::get<1>(grads) = weight_grad(grad, input, weight, stride, padding, dilation, transposed, groups);
  if (output_mask[2]) {
    c10::SmallVector<int64_t, 4> dims{0};
    for (int64_t i = 2; i < grad.dim(); i++) dims.push_back(i);
    std::get<2>(grads) = at::sum(grad, dims);
  }
  return grads;
}

}  // namespace

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("convolution_overrideable", convolution);
  m.impl("convolution_backward_overrideable", convolution_backward);
}
TORCH_LIBRARY_FRAGMENT(dlbackend, m) {
  m.def(
      "convolution_bounded(Tensor input, Tensor weight, Tensor? bias, int[] stride, int[] padding, int[] "
      "dilation, int groups, float low, float high, bool constant_weight=False) -> Tensor",
      {at::Tag::pt2_compliant_tag});
  m.def(
      "convolution_rows(str rows, Tensor input, Tensor weight, Tensor? bias, int[] stride, int[] padding, "
      "int[] "
      "dilation, int groups, Tensor[] extras, bool constant_weight=False) -> Tensor[]",
      {at::Tag::pt2_compliant_tag});
}
TORCH_LIBRARY_IMPL(dlbackend, PrivateUse1, m) {
  m.impl("convolution_bounded", convolution_bounded);
  m.impl("convolution_rows", convolution_rows);
}
TORCH_LIBRARY_IMPL(dlbackend, Meta, m) {
  m.impl("convolution_rows", convolution_rows);
}

}  // namespace dlb
