// Problems of the pooling primitive from tensors.
#include "ops/pool/pool.h"

#include <algorithm>

#include "primitives/common/lines.h"
#include "runtime/tensor.h"

namespace dlb::pool {
namespace {

using at::Tensor;

// A problem on its way: the tensors are its operands.
struct Call {
  PoolProblem problem;
  PoolProblem::Operands operands;

  // `in` and `out`: the input's side and the output's side.
  Call(const solver::OpOf<PoolProblem>& which, const Tensor& in, const Tensor& out, const Windows& windows,
       int axes, const char* op);

  void set(size_t slot, Buffer& buffer, const Tensor& tensor) {
    problem.types[slot] = tensor.scalar_type();
    int64_t& extent = problem.extents[slot] = 1;
    for (int64_t d = 0; d < tensor.dim(); ++d) extent += (tensor.size(d) - 1) * tensor.stride(d);
    buffer = buffer_of(tensor);
  }
  void set_input(const Tensor& tensor) { set(0, operands.in0, tensor); }
  void set_result(const Tensor& tensor) { set(PoolProblem::kInputs, operands.out0, tensor); }
  void set_divisor(const Divisor& divisor) {
    TORCH_CHECK(!divisor.override || *divisor.override != 0, "divisor must be not zero");
    problem.include_pad = divisor.count_include_pad;
    problem.divisor = divisor.override.value_or(0);
  }
  void run() const { pool::run(problem, operands, current_stream(problem.device)); }
};

Call::Call(const solver::OpOf<PoolProblem>& which, const Tensor& in, const Tensor& out,
           const Windows& windows, int axes, const char* op) {
  const auto type = dtype_of(in.scalar_type(), op);
  TORCH_CHECK_NOT_IMPLEMENTED(
      codegen::class_of(type) == codegen::DClass::Float || codegen::class_of(type) == codegen::DClass::Int,
      "\"", op, "\" not implemented for '", c10::toString(in.scalar_type()), "'");
  check_device_supports(current_stream(in.device().index()).device(), type, op);
  TORCH_CHECK(in.numel() < (int64_t{1} << 31) && out.numel() < (int64_t{1} << 31), op,
              ": tensors of 2^31 elements or more are not supported");
  const View5 x(in, axes), y(out, axes);
  problem.op = &which;
  problem.device = static_cast<int8_t>(in.device().index());
  problem.dtype = in.scalar_type();
  std::copy(x.stride.begin(), x.stride.end(), problem.xs);
  std::copy(y.stride.begin(), y.stride.end(), problem.ys);
  problem.samples = x.size[0], problem.channels = x.size[1];
  for (size_t i = 0; i < 3; ++i) {
    problem.axes[i] = windows[i];
    problem.axes[i].in = x.size[2 + i], problem.axes[i].out = y.size[2 + i];
  }
}

// Gradients of a result without elements are zero. Whether that was so.
bool is_zero(const Tensor& grad_input, const Tensor& grad_output) {
  if (grad_output.numel() == 0 && grad_input.numel()) grad_input.zero_();
  return grad_output.numel() == 0 || grad_input.numel() == 0;
}

}  // namespace

Windows windows_of(int axes, at::IntArrayRef kernel, at::IntArrayRef stride, at::IntArrayRef pad,
                   at::IntArrayRef dilation) {
  const auto element = [](at::IntArrayRef list, int i, int64_t missing) {
    return list.empty() ? missing : list.size() == 1 ? list[0] : list[static_cast<size_t>(i)];
  };
  Windows windows;
  for (int i = 0; i < axes; ++i) {
    PoolAxis& window = windows[static_cast<size_t>(3 - axes + i)];
    window.kernel = element(kernel, i, 1);
    window.stride = element(stride, i, window.kernel);
    window.pad = element(pad, i, 0);
    window.dilation = element(dilation, i, 1);
  }
  return windows;
}

Windows adaptive_windows(int axes) {
  Windows windows;
  for (int i = 3 - axes; i < 3; ++i) windows[static_cast<size_t>(i)].kernel = 0;
  return windows;
}

void max_forward(const Tensor& x, const Tensor& y, const Tensor& indices, const Windows& windows, int axes,
                 const char* op) {
  if (y.numel() == 0) return;
  TORCH_INTERNAL_ASSERT(indices.strides() == y.strides());
  Call call(max_pool_op, x, y, windows, axes, op);
  call.set_input(x), call.set_result(y);
  call.set(PoolProblem::kInputs + 1, call.operands.out1, indices);
  call.run();
}

void max_backward(const Tensor& grad_input, const Tensor& grad_output_, const Tensor& indices_,
                  const Windows& windows, int axes, const char* op) {
  if (is_zero(grad_input, grad_output_)) return;
  // The two are read at the same positions.
  const Tensor indices = indices_.contiguous(grad_input.suggest_memory_format());
  const Tensor grad_output = grad_output_.contiguous(grad_input.suggest_memory_format());
  Call call(max_pool_backward_op, grad_input, grad_output, windows, axes, op);
  call.set_input(grad_output), call.set_result(grad_input);
  call.set(1, call.operands.in1, indices);
  call.run();
}

void avg_forward(const Tensor& x, const Tensor& y, const Windows& windows, int axes, Divisor divisor,
                 const char* op) {
  if (y.numel() == 0) return;
  Call call(avg_pool_op, x, y, windows, axes, op);
  call.set_divisor(divisor);
  call.set_input(x), call.set_result(y);
  call.run();
}

void avg_backward(const Tensor& grad_input, const Tensor& grad_output, const Windows& windows, int axes,
                  Divisor divisor, const char* op) {
  if (is_zero(grad_input, grad_output)) return;
  Call call(avg_pool_backward_op, grad_input, grad_output, windows, axes, op);
  call.set_divisor(divisor);
  call.set_input(grad_output), call.set_result(grad_input);
  call.run();
}

}  // namespace dlb::pool
