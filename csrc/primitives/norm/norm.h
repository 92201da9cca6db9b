// Batch, group and layer normalisation of tensors that are checked, contiguous and allocated: what ATen's ops
// call. The problems that solvers compute for them are in problem.h.
#pragma once
#include <ATen/core/Tensor.h>

#include "codegen/dtype.h"
#include "runtime/stream.h"

namespace dlb::norm {

// One normalisation's device, stream and element types.
struct Context {
  Stream& stream;
  cl::Device& device;
  codegen::DType data, param, compute;
  c10::ScalarType data_scalar, param_scalar, compute_scalar;

  // `param`: any of the weights or running statistics; the input's dtype where none is defined. Raises
  // NotImplementedError for dtypes that the device does not normalise, and c10::Error for an input of 2^31
  // elements or more, naming the op.
  Context(const at::Tensor& input, const at::Tensor& param, const char* op);

  // A tensor of the type that statistics are saved and sums are made in.
  at::Tensor scratch(int64_t elements) const;
};

// Throws c10::Error unless weights and statistics have the input's dtype, or float32 beside half or bfloat16.
void check_dtypes(const at::Tensor& input, std::initializer_list<const at::Tensor*> params, const char* op);

// Throws c10::Error unless the input's last sizes are `normalized`, and parameters that are defined have
// those sizes.
struct NamedParameter {
  const char* name;
  const at::Tensor* tensor;
};
void check_normalized_shape(const at::Tensor& input, at::IntArrayRef normalized,
                            std::initializer_list<NamedParameter> params);

// Inputs of batch and group norm: contiguous [samples][channels][length], or [samples][length][channels].
struct Shape {
  int64_t samples = 0, channels = 0, length = 0;
  bool channels_last = false;
};

// The tensors of a forward pass. Weight and bias may be undefined. Mean and rstd are of the context's
// compute_scalar.
struct Forward {
  const at::Tensor &x, &weight, &bias;
  const at::Tensor &y, &mean, &rstd;  // the results
};

// The tensors of a backward pass. The weight may be undefined, and so are results that nobody wants.
struct Backward {
  const at::Tensor &x, &dy, &weight, &mean, &rstd;
  const at::Tensor &dx, &grad_weight, &grad_bias;  // the results
};

// Batch norm's running statistics, which may be undefined in training.
struct Running {
  const at::Tensor &mean, &var;
};

// A batch norm, with mean and rstd per channel. With `training` it normalises by the batch's statistics,
// saves them and updates the running ones, else it takes the latter.
void batch_norm(const Context& context, const Shape& shape, const Forward& tensors, const Running& running,
                bool training, double momentum, double eps);
// Its gradients. Without `training` mean and rstd come from the running statistics.
void batch_norm_backward(const Context& context, const Shape& shape, const Backward& tensors,
                         const Running& running, bool training, double eps);

// A group norm, with mean and rstd per sample and group.
void group_norm(const Context& context, const Shape& shape, int64_t groups, const Forward& tensors,
                double eps);
void group_norm_backward(const Context& context, const Shape& shape, int64_t groups, const Backward& tensors);

// A layer norm of `rows` contiguous rows of `length` elements, with mean and rstd per row.
void layer_norm(const Context& context, int64_t rows, int64_t length, const Forward& tensors, double eps);
void layer_norm_backward(const Context& context, int64_t rows, int64_t length, const Backward& tensors);

}  // namespace dlb::norm
