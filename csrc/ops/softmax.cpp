// softmax and log_softmax with their gradients, over any dimension.
#include <ATen/WrapDimUtils.h>
#include <ATen/ops/_log_softmax_backward_data_meta.h>
#include <ATen/ops/_log_softmax_meta.h>
#include <ATen/ops/_softmax_backward_data_meta.h>
#include <ATen/ops/_softmax_meta.h>
#include <torch/library.h>

#include "ops/common/family.h"
#include "ops/common/structured.h"
#include "ops/common/team.h"
#include "ops/common/tensor.h"

namespace dlb {
namespace {

// As softmax_params in softmax.cl.
struct Params {
  int64_t x, y, z;
  int32_t dim, inner, log_form, padding = 0;
};

constexpr int64_t kColumnBlock = 64;  // MAX_BLOCK of the kernels
constexpr int64_t kHeld = 32;         // HELD of the kernels

// GPU teams whose work-items hold their part of a row in registers.
Team held_team(int64_t rows, int64_t dim) {
  Team team{static_cast<uint32_t>(rows), 1, 1};
  while (team.lanes * kHeld < dim || (team.lanes < 32 && team.lanes * 4 < dim)) team.lanes *= 2;
  return team;
}

struct Shape {
  int64_t outer = 1, dim = 1, inner = 1;
};
Shape shape_of(const at::Tensor& self, int64_t dim) {
  Shape s;
  const int64_t rank = self.dim();
  if (rank == 0) return s;
  dim = at::maybe_wrap_dim(dim, rank);
  for (int64_t i = 0; i < rank; ++i) (i < dim ? s.outer : i == dim ? s.dim : s.inner) *= self.size(i);
  return s;
}

// Backward when `result` is given: x is grad_output.
void run(const at::Tensor& x, const at::Tensor* result, const at::Tensor& y, int64_t dim, bool log_form,
         const char* op) {
  if (y.numel() == 0) return;
  const Shape s = shape_of(y, dim);
  TORCH_CHECK(y.numel() < (int64_t{1} << 31), op, ": tensors of 2^31 elements or more are not supported");
  Stream& stream = current_stream(y.device().index());
  cl::Device& device = stream.device();
  const auto from = dtype_of(x.scalar_type(), op), to = dtype_of(y.scalar_type(), op);
  TORCH_CHECK_NOT_IMPLEMENTED(codegen::class_of(from) == codegen::DClass::Float, "\"", op,
                              "\" not implemented for '", c10::toString(x.scalar_type()), "'");
  const auto compute = codegen::compute_type(to == codegen::DType::F64 ? to : from);
  check_device_supports(device, compute, op);

  const at::Tensor in = x.contiguous(), out_values = result ? result->contiguous() : at::Tensor();
  const Operand xs = operand_of(in), ys = operand_of(y);
  const Operand zs = result ? operand_of(out_values) : Operand{nullptr, 0};
  const Params params{
      xs.offset, ys.offset, zs.offset, static_cast<int32_t>(s.dim), static_cast<int32_t>(s.inner), log_form};
  const bool rows = s.inner == 1;
  const int64_t block = device.cls == cl::DeviceClass::kCpu ? kColumnBlock : 1;
  const bool held = rows && !result && device.cls != cl::DeviceClass::kCpu && s.dim <= kHeld * kTeamGroup;
  const Team team = held   ? held_team(s.outer, s.dim)
                    : rows ? make_team(device, s.outer, s.dim)
                           : make_team(device, s.outer * ((s.inner + block - 1) / block),
                                       s.dim * std::min(s.inner, block), 1);
  const char* name = result ? (rows ? "softmax_rows_backward" : "softmax_columns_backward")
                     : held ? "softmax_rows_held"
                            : (rows ? "softmax_rows" : "softmax_columns");
  cl::Kernel& kernel = family_kernel(device, "softmax.cl", name, compute, {from, to});
  if (result)
    kernel.launch(stream.queue(), range_of(device, team), xs.mem, zs.mem, ys.mem, params, team);
  else
    kernel.launch(stream.queue(), range_of(device, team), xs.mem, ys.mem, params, team);
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
  m.impl("_softmax.out", forward<at::meta::structured__softmax, false>);
  m.impl("_log_softmax.out", forward<at::meta::structured__log_softmax, true>);
  m.impl("_softmax_backward_data.out", backward<at::meta::structured__softmax_backward_data, false>);
  m.impl("_log_softmax_backward_data.out", backward<at::meta::structured__log_softmax_backward_data, true>);
}

}  // namespace dlb
