// Quantized tensors: integers with a scale and a zero point, for the tensor or for each channel. Making and
// reading them is done here, what handles only their sizes and parameters is PyTorch's own for the CPU, and
// the rest of their ops runs on the CPU.
#include <ATen/TensorIterator.h>
#include <ATen/native/quantized/AffineQuantizer.h>
#include <ATen/ops/dequantize_native.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/quantize_per_channel_native.h>
#include <ATen/ops/quantize_per_tensor_dynamic_native.h>
#include <ATen/ops/quantize_per_tensor_native.h>
#include <ATen/quantized/Quantizer.h>
#include <torch/library.h>

#include "ops/common/cpu_kernels.h"

#include "ops/pointwise/rows.h"

namespace dlb {
namespace {

using Cpu = CpuKernels<c10::DispatchKey::QuantizedCPU>;

using at::Tensor;

// x0 values; s0 and s1 are the lowest and highest integer. NaN becomes the lowest. Scale and zero point are
// x1 and x2 for channels, s2 and s3, or s0 and s1, for a tensor. Zero points that are not integers are added
// before rounding.
#define DLB_CLAMPED(value) "fmin(fmax(" value ", s0), s1)"
constexpr codegen::PointwiseOp kQuantize =
    float_op("quantize", DLB_CLAMPED("dlb_rint(x0 * (C(1.0) / s2)) + s3"), nullptr, 4);
constexpr codegen::PointwiseOp kQuantizeChannels =
    float_op("quantize_channels", DLB_CLAMPED("dlb_rint(x0 * (C(1.0) / x1)) + x2"), nullptr, 2);
constexpr codegen::PointwiseOp kQuantizeFloatChannels =
    float_op("quantize_float_channels", DLB_CLAMPED("dlb_rint(x0 * (C(1.0) / x1) + x2)"), nullptr, 2);
constexpr codegen::PointwiseOp kDequantize = float_op("dequantize", "(x0 - s1) * s0", nullptr, 2);
constexpr codegen::PointwiseOp kDequantizeChannels = float_op("dequantize_channels", "(x0 - x2) * x1");

const codegen::RegisterOps kAffineOps(codegen::RowKind::Pointwise,
                                      {{kQuantize, "quantize_per_tensor", "fixed"},
                                       {kQuantizeChannels, "quantize_per_channel", "fixed"},
                                       {kQuantizeFloatChannels, "quantize_per_channel", "fixed"},
                                       {kDequantize, "dequantize.self", "fixed"},
                                       {kDequantizeChannels, "dequantize.self", "fixed"}});

// The integers of a quantized tensor, in its memory.
Tensor integers_of(const Tensor& quantized) {
  const at::ScalarType type = at::toUnderlying(quantized.scalar_type());
  TORCH_CHECK_NOT_IMPLEMENTED(
      quantized.scalar_type() != at::kQUInt4x2 && quantized.scalar_type() != at::kQUInt2x4,
      "ocl: quantized tensors of less than a byte an element, dtype ", quantized.scalar_type(),
      ", are not supported; use a dtype of a byte, or the CPU");
  return at::empty({0}, at::device(quantized.device()).dtype(type))
      .set_(quantized.storage(), quantized.storage_offset(), quantized.sizes(), quantized.strides());
}

std::pair<int64_t, int64_t> range_of(at::ScalarType type) {
  if (type == at::kQUInt8) return {0, 255};
  if (type == at::kQInt8) return {-128, 127};
  return {-2147483648, 2147483520};  // what float32, in which kernels compute, has of int32's range
}

void run(const codegen::PointwiseOp& op, const Tensor& out, std::initializer_list<Tensor> inputs,
         c10::ArrayRef<c10::Scalar> scalars) {
  if (out.numel() == 0) return;
  at::TensorIteratorConfig config;
  config.check_all_same_dtype(false).resize_outputs(false).add_owned_output(out);
  for (const Tensor& input : inputs) config.add_owned_const_input(input);
  at::TensorIterator iter = config.build();
  run_pointwise(op, iter, at::kFloat, scalars);
}

// Parameters of channels so that they broadcast, in float32, which every device computes.
Tensor along(const Tensor& parameters, const Tensor& tensor, int64_t axis) {
  std::vector<int64_t> sizes(static_cast<size_t>(tensor.dim()), 1);
  sizes[static_cast<size_t>(axis)] = tensor.size(axis);
  return parameters.to(tensor.device(), at::kFloat).view(sizes);
}

void quantize_tensor(const Tensor& values, Tensor& quantized, double scale, int64_t zero_point) {
  const auto [low, high] = range_of(quantized.scalar_type());
  run(kQuantize, integers_of(quantized), {values}, {low, high, scale, zero_point});
}
template <const codegen::PointwiseOp& Op>
void quantize_channels(const Tensor& values, Tensor& quantized, const Tensor& scales,
                       const Tensor& zero_points, int64_t axis) {
  const auto [low, high] = range_of(quantized.scalar_type());
  run(Op, integers_of(quantized), {values, along(scales, values, axis), along(zero_points, values, axis)},
      {low, high});
}
void dequantize_tensor(const Tensor& quantized, Tensor& values, double scale, int64_t zero_point) {
  run(kDequantize, values, {integers_of(quantized)}, {scale, zero_point});
}
// Elements of less than a byte, which integers_of() refuses.
void quantize_sub_byte(const Tensor& values, Tensor& quantized, float scale, float zero_point) {
  quantize_tensor(values, quantized, scale, static_cast<int64_t>(zero_point));
}
void dequantize_sub_byte(const Tensor& quantized, Tensor& values, float scale, float zero_point) {
  dequantize_tensor(quantized, values, scale, static_cast<int64_t>(zero_point));
}
void dequantize_channels(const Tensor& quantized, Tensor& values, const Tensor& scales,
                         const Tensor& zero_points, int64_t axis) {
  run(kDequantizeChannels, values,
      {integers_of(quantized), along(scales, values, axis), along(zero_points, values, axis)}, {});
}

Tensor int_repr(const Tensor& self) {
  return integers_of(self).clone(at::MemoryFormat::Preserve);
}

bool equal(const Tensor& self, const Tensor& other) {
  TORCH_CHECK(other.is_quantized() && self.device() == other.device(),
              "equal: expected two quantized tensors on one device");
  return self.scalar_type() == other.scalar_type() && self.quantizer()->equalTo(other.quantizer()) &&
         at::equal(integers_of(self), integers_of(other));
}

// Between devices or layouts; the quantizer of the source goes along.
Tensor copy_from(const Tensor& self, const Tensor& to, bool non_blocking) {
  TORCH_CHECK(
      to.is_quantized() && self.is_quantized() && self.scalar_type() == to.scalar_type(),
      "copy_: quantized tensors are copied to quantized ones of the same dtype; use quantize_per_tensor, "
      "quantize_per_channel or dequantize to convert");
  const auto integers = [](const Tensor& t) { return t.is_cpu() ? t.int_repr() : integers_of(t); };
  if (to.is_cpu()) {
    const Tensor read = integers_of(self).to(at::kCPU);
    at::empty({0}, read.options())
        .set_(to.storage(), to.storage_offset(), to.sizes(), to.strides())
        .copy_(read);
  } else {
    integers_of(to).copy_(integers(self), non_blocking);
  }
  at::set_quantizer_(to, self.quantizer());
  return to;
}

constexpr const char* kOfTheCpu[] = {
    "_empty_affine_quantized",
    "_empty_per_channel_affine_quantized",
    "_reshape_alias",
    "as_strided",
    "clone",
    "dequantize.self",
    "empty.memory_format",
    "empty_like",
    "empty_quantized",
    "empty_strided",
    "q_per_channel_axis",
    "q_per_channel_scales",
    "q_per_channel_zero_points",
    "q_scale",
    "q_zero_point",
    "qscheme",
    "set_.source_Storage_storage_offset",
    "squeeze",
    "squeeze.dim",
    "squeeze.dims",
    "unsqueeze",
    "view",
};

}  // namespace

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("quantize_per_tensor", at::native::quantize_per_tensor);
  m.impl("quantize_per_tensor.tensor_qparams", at::native::quantize_per_tensor_tensor_qparams);
  m.impl("quantize_per_tensor_dynamic", at::native::quantize_per_tensor_dynamic);
  m.impl("quantize_per_channel", at::native::quantize_per_channel);
  m.impl("dequantize.self", at::native::dequantize_cpu_or_cuda);  // of what is not quantized: to float
}

TORCH_LIBRARY_IMPL(aten, QuantizedPrivateUse1, m) {
  for (const char* name : kOfTheCpu)
    m.impl(name, torch::CppFunction::makeFromBoxedFunction<&Cpu::as_it_is>());
  m.impl("int_repr", int_repr);
  m.impl("equal", equal);
  m.impl("_copy_from", copy_from);
}

TORCH_LIBRARY_IMPL(_, QuantizedPrivateUse1, m) {
  m.fallback(torch::CppFunction::makeFromBoxedFunction<&Cpu::on_copies>());
}

}  // namespace dlb

namespace at::native {
REGISTER_PRIVATEUSE1_DISPATCH(quantize_tensor_per_tensor_affine_stub, &dlb::quantize_tensor)
REGISTER_PRIVATEUSE1_DISPATCH(quantize_tensor_per_channel_affine_stub,
                              &dlb::quantize_channels<dlb::kQuantizeChannels>)
REGISTER_PRIVATEUSE1_DISPATCH(quantize_tensor_per_channel_float_qparams_stub,
                              &dlb::quantize_channels<dlb::kQuantizeFloatChannels>)
REGISTER_PRIVATEUSE1_DISPATCH(dequantize_tensor_per_tensor_affine_stub, &dlb::dequantize_tensor)
REGISTER_PRIVATEUSE1_DISPATCH(dequantize_tensor_per_channel_affine_stub, &dlb::dequantize_channels)
REGISTER_PRIVATEUSE1_DISPATCH(dequantize_tensor_per_channel_float_qparams_stub, &dlb::dequantize_channels)
REGISTER_PRIVATEUSE1_DISPATCH(quantize_tensor_per_tensor_affine_sub_byte_stub, &dlb::quantize_sub_byte)
REGISTER_PRIVATEUSE1_DISPATCH(dequantize_tensor_per_tensor_affine_sub_byte_stub, &dlb::dequantize_sub_byte)
}  // namespace at::native
