// Strided nested tensors: lists of tensors of several sizes in one buffer.
//
// PyTorch's kernels for nested tensors of the CPU work on the buffer with ops that dispatch anew, so they are
// right for any device. All but those that read the buffer themselves are taken for this one.
#include <ATen/NestedTensorImpl.h>
#include <ATen/native/nested/NestedTensorUtils.h>
#include <ATen/ops/_nested_from_padded_native.h>
#include <ATen/ops/_nested_tensor_from_mask_left_aligned_native.h>
#include <ATen/ops/_nested_tensor_from_mask_native.h>
#include <ATen/ops/_nested_view_from_buffer_native.h>
#include <ATen/ops/native_layer_norm.h>
#include <ATen/ops/native_layer_norm_backward.h>
#include <torch/library.h>

#include "ops/common/cpu_kernels.h"

namespace dlb {
namespace {

using Cpu = CpuKernels<c10::DispatchKey::NestedTensorCPU>;

using at::native::get_nested_tensor_impl;
using at::native::wrap_buffer;

constexpr const char* kOfTheCpu[] = {
    "_nested_from_padded_and_nested_example",
    "_nested_select_backward",
    "_nested_sum_backward",
    "_nested_tensor_size",
    "_nested_tensor_softmax_with_shape",
    "_nested_tensor_storage_offsets",
    "_nested_tensor_strides",
    "_safe_softmax",
    "_softmax",
    "_softmax_backward_data",
    "_test_autograd_multiple_dispatch.fullcoverage",
    "_test_autograd_multiple_dispatch.ntonly",
    "_to_copy",
    "abs",
    "abs_",
    "add.Tensor",
    "add_.Tensor",
    "alias",
    "all.dim",
    "bmm",
    "cat",
    "chunk",
    "clone",
    "copy_",
    "cos",
    "detach",
    "div.Scalar",
    "div.Tensor",
    "embedding",
    "empty_like",
    "eq.Scalar",
    "eq.Tensor",
    "fill_.Scalar",
    "fill_.Tensor",
    "ge.Scalar",
    "gelu",
    "gelu_",
    "gelu_backward",
    "gt.Scalar",
    "is_same_size",
    "isinf",
    "isnan",
    "isneginf",
    "isposinf",
    "linear",
    "linear_backward",
    "logical_not",
    "logical_not_",
    "masked_fill.Scalar",
    "matmul",
    "matmul.out",
    "matmul_backward",
    "mul.Scalar",
    "mul.Tensor",
    "mul_.Scalar",
    "mul_.Tensor",
    "narrow",
    "native_dropout",
    "native_dropout_backward",
    "neg",
    "neg_",
    "normal_",
    "ones_like",
    "relu",
    "relu_",
    "select.int",
    "sgn",
    "sgn_",
    "silu",
    "silu_",
    "silu_backward",
    "sin",
    "split_with_sizes",
    "sqrt",
    "squeeze",
    "squeeze.dim",
    "squeeze.dims",
    "sub.Tensor",
    "sum.dim_IntList",
    "tanh",
    "tanh_",
    "threshold_backward",
    "to_padded_tensor",
    "transpose.int",
    "unbind.int",
    "unsqueeze",
    "value_selecting_reduction_backward",
    "values",
    "view",
    "where.self",
    "where.self_out",
    "zero_",
};

// The rows that are normalised, with as many elements as `shape`, which must be of regular dimensions.
int64_t check_layer_norm(const at::Tensor& input, at::IntArrayRef shape) {
  const auto* nested = get_nested_tensor_impl(input);
  TORCH_CHECK(at::native::nested_tensor_impl_is_contiguous(nested),
              "layer_norm: nested tensors must be contiguous; call contiguous() first");
  int64_t size = 1;
  for (size_t i = 0; i < shape.size(); ++i) {
    const auto here = nested->opt_size(static_cast<int64_t>(i) - static_cast<int64_t>(shape.size()));
    TORCH_CHECK(here.has_value(), "normalized_shape extends into irregular dimensions for the nested tensor");
    TORCH_CHECK(*here == shape[i], "The shape at dimension ", i, " of normalized_shape ", shape,
                " does not match the input, whose size is ", *here, " there");
    size *= shape[i];
  }
  return size;
}

at::Tensor buffer_rows(const at::Tensor& nested, int64_t size) {
  return get_nested_tensor_impl(nested)->get_buffer().view({-1, size});
}

std::optional<at::Tensor> flat(const std::optional<at::Tensor>& weight) {
  return weight && weight->defined() ? std::optional(weight->reshape({-1})) : std::nullopt;
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> layer_norm(const at::Tensor& input, at::IntArrayRef shape,
                                                          const std::optional<at::Tensor>& weight,
                                                          const std::optional<at::Tensor>& bias, double eps) {
  const int64_t size = check_layer_norm(input, shape);
  const auto [y, mean, rstd] =
      at::native_layer_norm(buffer_rows(input, size), {size}, flat(weight), flat(bias), eps);
  return {wrap_buffer(y.view({-1}), get_nested_tensor_impl(input)->get_nested_sizes()), mean, rstd};
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> layer_norm_backward(
    const at::Tensor& grad, const at::Tensor& input, at::IntArrayRef shape, const at::Tensor& mean,
    const at::Tensor& rstd, const std::optional<at::Tensor>& weight, const std::optional<at::Tensor>& bias,
    std::array<bool, 3> mask) {
  const int64_t size = check_layer_norm(input, shape);
  TORCH_CHECK(at::native::nested_tensor_impl_is_contiguous(get_nested_tensor_impl(grad)),
              "layer_norm: the gradient's nested tensor must be contiguous");
  const auto [dx, dweight, dbias] = at::native_layer_norm_backward(
      buffer_rows(grad, size), buffer_rows(input, size), {size}, mean, rstd, flat(weight), flat(bias), mask);
  return {mask[0] ? wrap_buffer(dx.view({-1}), get_nested_tensor_impl(input)->get_nested_sizes()) : dx,
          mask[1] ? dweight.view(shape) : dweight, mask[2] ? dbias.view(shape) : dbias};
}

// PyTorch's own kernel reads the sizes on the host and does not check them.
at::Tensor from_padded(const at::Tensor& padded, const at::Tensor& sizes, bool transform) {
  TORCH_CHECK(sizes.dim() == 2 && sizes.scalar_type() == at::kLong,
              "_nested_from_padded: expected a row of int64 sizes for each tensor, but got ",
              sizes.scalar_type(), " of size ", sizes.sizes());
  return at::native::nested_from_padded_generic(padded, sizes.cpu(), transform);
}

}  // namespace

TORCH_LIBRARY_IMPL(aten, NestedTensorPrivateUse1, m) {
  m.impl("native_layer_norm", layer_norm);
  m.impl("native_layer_norm_backward", layer_norm_backward);
  for (const char* name : kOfTheCpu)
    m.impl(name, torch::CppFunction::makeFromBoxedFunction<&Cpu::as_it_is>());
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("_nested_from_padded", from_padded);
  m.impl("_nested_view_from_buffer", at::native::_nested_view_from_buffer);
  m.impl("_nested_tensor_from_mask", at::native::NestedTensor_nested_tensor_from_mask);
  m.impl("_nested_tensor_from_mask_left_aligned",
         at::native::NestedTensor_nested_tensor_from_mask_left_aligned);
}

}  // namespace dlb
