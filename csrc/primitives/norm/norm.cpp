// Code that all normalisations share: element types and scratch memory.
#include "primitives/norm/norm.h"

#include "primitives/norm/types.h"
#include "runtime/new_tensor.h"

namespace dlb::norm {

Context::Context(const at::Tensor& input, const at::Tensor& param_tensor, const char* op)
    : stream(current_stream(input.device().index())),
      device(stream.device()),
      data(dtype_of(input.scalar_type(), op)),
      param(dtype_of(param_tensor.defined() ? param_tensor.scalar_type() : input.scalar_type(), op)),
      compute(codegen::compute_type(data)),
      data_scalar(input.scalar_type()),
      param_scalar(param_tensor.defined() ? param_tensor.scalar_type() : input.scalar_type()),
      compute_scalar(compute == codegen::DType::F64 ? c10::ScalarType::Double : c10::ScalarType::Float) {
  TORCH_CHECK_NOT_IMPLEMENTED(codegen::class_of(data) == codegen::DClass::Float, "\"", op,
                              "\" not implemented for '", c10::toString(input.scalar_type()), "'");
  check_device_supports(device, compute, op);
  TORCH_CHECK(input.numel() < (int64_t{1} << 31), op, ": tensors of 2^31 elements or more are not supported");
}

at::Tensor Context::scratch(int64_t elements) const {
  return new_tensor({elements}, compute_scalar, {kDeviceType, static_cast<c10::DeviceIndex>(device.index)});
}

void check_normalized_shape(const at::Tensor& input, at::IntArrayRef normalized,
                            std::initializer_list<NamedParameter> params) {
  const size_t rank = normalized.size();
  TORCH_CHECK(rank >= 1,
              "Expected normalized_shape to be at least 1-dimensional, i.e., containing at least one ",
              "element, but got normalized_shape = ", normalized);
  for (const auto& [name, tensor] : params)
    TORCH_CHECK(!tensor->defined() || tensor->sizes().equals(normalized), "Expected ", name,
                " to be of same shape as normalized_shape, but got ", name, " of shape ", tensor->sizes(),
                " and normalized_shape = ", normalized);
  const at::IntArrayRef sizes = input.sizes();
  TORCH_CHECK(sizes.size() >= rank && sizes.slice(sizes.size() - rank).equals(normalized),
              "Given normalized_shape=", normalized, ", expected input with shape [*, ", normalized,
              "], but got input of size", sizes);
}

void check_dtypes(const at::Tensor& input, std::initializer_list<const at::Tensor*> params, const char* op) {
  const c10::ScalarType type = input.scalar_type();
  const bool half = type == at::kHalf || type == at::kBFloat16;
  c10::ScalarType expected = c10::ScalarType::Undefined;
  for (const at::Tensor* param : params) {
    if (!param->defined()) continue;
    if (expected == c10::ScalarType::Undefined)
      expected = half && param->scalar_type() != type ? at::kFloat : type;
    TORCH_CHECK(param->scalar_type() == expected, op, ": mixed dtype: expected parameters of dtype ",
                expected, " beside an input of ", type, ", but found ", param->scalar_type());
  }
}

Types::Types(const MemoryProblem& p, size_t param_index)
    : data(dtype_of(p.dtype, "norm")),
      param(dtype_of(p.types[param_index], "norm")),
      compute(codegen::compute_type(data)) {}

Buffer optional_buffer(const at::Tensor& tensor) {
  return tensor.defined() && tensor.numel() ? buffer_of(tensor) : Buffer{nullptr, -1};
}

params::NormReal as_floats(double value) {
  const auto high = static_cast<float>(value);
  return {high, static_cast<float>(value - high)};
}

}  // namespace dlb::norm
