// ATen's softmax and log_softmax with their gradients: checks, then one problem of the softmax primitive.
#include <ATen/WrapDimUtils.h>
#include <ATen/ops/_log_softmax_backward_data_meta.h>
#include <ATen/ops/_log_softmax_meta.h>
#include <ATen/ops/_softmax_backward_data_meta.h>
#include <ATen/ops/_softmax_meta.h>
#include <torch/library.h>

#include "ops/common/structured.h"
#include "primitives/softmax/problem.h"
#include "runtime/tensor.h"

namespace dlb {
namespace {

using softmax::SoftmaxProblem;

void set_sizes(SoftmaxProblem& p, const at::Tensor& self, int64_t dim) {
  const int64_t rank = self.dim();
  if (rank == 0) return;
  dim = at::maybe_wrap_dim(dim, rank);
  for (int64_t i = 0; i < rank; ++i) (i < dim ? p.outer : i == dim ? p.dim : p.inner) *= self.size(i);
}

// Backward when `result`, the forward pass's, is given: x is grad_output then.
void run(const at::Tensor& x, const at::Tensor* result, const at::Tensor& y, int64_t dim, bool log_form,
         const char* op) {
  if (y.numel() == 0) return;
  TORCH_CHECK(y.numel() < (int64_t{1} << 31), op, ": tensors of 2^31 elements or more are not supported");
  TORCH_CHECK_NOT_IMPLEMENTED(codegen::class_of(dtype_of(x.scalar_type(), op)) == codegen::DClass::Float,
                              "\"", op, "\" not implemented for '", c10::toString(x.scalar_type()), "'");
  Stream& stream = current_stream(y.device().index());
  SoftmaxProblem p;
  p.op = result ? &softmax::softmax_backward_op : &softmax::softmax_op;
  p.device = static_cast<int8_t>(y.device().index());
  p.dtype = p.types[0] = x.scalar_type();
  p.result_type() = y.scalar_type();
  p.extents[0] = p.result_extent() = y.numel();
  if (result) p.types[1] = x.scalar_type(), p.extents[1] = y.numel();
  set_sizes(p, y, dim);
  p.log = log_form;
  check_device_supports(stream.device(), softmax::compute_of(p), op);

  const at::Tensor in = x.contiguous(), forward_result = result ? result->contiguous() : at::Tensor();
  SoftmaxProblem::Operands o;
  o.in0 = buffer_of(in), o.out0 = buffer_of(y);
  if (result) o.in1 = buffer_of(forward_result);
  softmax::run(p, o, stream);
}

template <class Meta, bool LogForm>
at::Tensor new_forward(const at::Tensor& self, int64_t dim, bool half_to_float) {
  NewOp<Meta> op;
  op.meta(self, dim, half_to_float);
  run(self, nullptr, op[0], dim, LogForm, LogForm ? "log_softmax" : "softmax");
  return std::move(op[0]);
}

template <class Meta, bool LogForm>
at::Tensor new_backward(const at::Tensor& grad_output, const at::Tensor& output, int64_t dim,
                        at::ScalarType input_dtype) {
  NewOp<Meta> op;
  op.meta(grad_output, output, dim, input_dtype);
  run(grad_output, &output, op[0], dim, LogForm, LogForm ? "log_softmax_backward" : "softmax_backward");
  return std::move(op[0]);
}

template <class Meta, bool LogForm>
at::Tensor& forward(const at::Tensor& self, int64_t dim, bool half_to_float, at::Tensor& out) {
  OutOp<Meta> op(out);
  op.meta(self, dim, half_to_float);
  run(self, nullptr, op.result(), dim, LogForm, LogForm ? "log_softmax" : "softmax");
  op.finish();
  return out;
}

template <class Meta, bool LogForm>
at::Tensor& backward(const at::Tensor& grad_output, const at::Tensor& output, int64_t dim,
                     at::ScalarType input_dtype, at::Tensor& grad_input) {
  OutOp<Meta> op(grad_input);
  op.meta(grad_output, output, dim, input_dtype);
  run(grad_output, &output, op.result(), dim, LogForm, LogForm ? "log_softmax_backward" : "softmax_backward");
  op.finish();
  return grad_input;
}

}  // namespace

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("_softmax", new_forward<at::meta::structured__softmax, false>);
  m.impl("_log_softmax", new_forward<at::meta::structured__log_softmax, true>);
  m.impl("_softmax_backward_data", new_backward<at::meta::structured__softmax_backward_data, false>);
  m.impl("_log_softmax_backward_data", new_backward<at::meta::structured__log_softmax_backward_data, true>);
  m.impl("_softmax.out", forward<at::meta::structured__softmax, false>);
  m.impl("_log_softmax.out", forward<at::meta::structured__log_softmax, true>);
  m.impl("_softmax_backward_data.out", backward<at::meta::structured__softmax_backward_data, false>);
  m.impl("_log_softmax_backward_data.out", backward<at::meta::structured__log_softmax_backward_data, true>);
}

}  // namespace dlb
