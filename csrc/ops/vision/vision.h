// Helpers that the kernels of torchvision's ops share.
#pragma once
#include <ATen/core/Tensor.h>
#include <torch/headeronly/version.h>

#include "codegen/dtype.h"
#include "runtime/stream.h"
#include "runtime/tensor.h"

namespace dlb::vision {

// The tensor's element type. Raises NotImplementedError, naming the op, for all but floating-point types that
// the device computes.
inline codegen::DType float_type(const at::Tensor& tensor, const char* op) {
  TORCH_CHECK_NOT_IMPLEMENTED(tensor.is_floating_point(), "\"", op, "\" not implemented for '",
                              c10::toString(tensor.scalar_type()), "'");
  const auto type = dtype_of(tensor.scalar_type(), op);
  check_device_supports(current_stream(tensor.device().index()).device(), type, op);
  return type;
}

// The dtype that values are added up in.
inline at::ScalarType sum_type(const at::Tensor& tensor) {
  return at::isReducedFloatingType(tensor.scalar_type()) ? at::kFloat : tensor.scalar_type();
}

}  // namespace dlb::vision
