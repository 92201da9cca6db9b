// Fused LSTM and GRU cells: what nn.LSTM, nn.GRU and their cells run between the matrix products.
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/sum.h>
#include <torch/library.h>

#include "kernels/rnn/params.h"
#include "primitives/common/team.h"
#include "runtime/fetch_kernel.h"
#include "runtime/tensor.h"

namespace dlb {
namespace {

using at::Tensor;
using OptionalTensor = std::optional<Tensor>;

Tensor dense(const OptionalTensor& tensor) {
  return tensor && tensor->defined() ? tensor->contiguous() : Tensor();
}

// Runs a cell kernel over `samples` x `size` cells; undefined tensors are passed as absent.
void run(const char* kernel, std::initializer_list<const Tensor*> tensors, int64_t samples, int64_t size) {
  const Tensor& any = **(tensors.end() - 1);
  if (samples * size == 0) return;
  Stream& stream = current_stream(any.device().index());
  cl::Device& device = stream.device();
  const auto type = dtype_of(any.scalar_type(), kernel);
  TORCH_CHECK_NOT_IMPLEMENTED(codegen::class_of(type) == codegen::DClass::Float, "\"", kernel,
                              "\" not implemented for '", c10::toString(any.scalar_type()), "'");
  check_device_supports(device, type, kernel);
  TORCH_CHECK(samples * size * 5 < (int64_t{1} << 31), kernel, ": batch times hidden size is too large");
  params::RnnParams params{};
  params.size = static_cast<int32_t>(size);
  std::array<cl_mem, params::RNN_BUFFERS> mems{};
  size_t count = 0;
  for (const Tensor* t : tensors) {
    TORCH_CHECK(!t->defined() || t->scalar_type() == any.scalar_type(), kernel,
                ": all tensors must have the dtype ", any.scalar_type(), ", got ", t->scalar_type());
    const Buffer buffer = t->defined() ? buffer_of(*t) : Buffer{nullptr, -1};
    mems[count] = buffer.mem, params.offset[count++] = buffer.offset;
  }
  const bool cpu = device.cls == cl::DeviceClass::kCpu;
  const Team team = cpu ? make_team(device, samples, size * 64, 1) : make_team(device, samples * size, 1, 1);
  fetch_kernel(device, "rnn/rnn.cl", kernel, codegen::compute_type(type), {type})
      .launch_with(stream.queue(), range_of(device, team), [&](cl::Kernel::Arguments& arguments) {
        for (size_t i = 0; i < count; ++i) arguments.add(mems[i]);
        arguments.add(params);
        arguments.add(team);
      });
}

void check_gates(const Tensor& input_gates, const Tensor& hidden_gates, const Tensor& state,
                 const Tensor& input_bias, const Tensor& hidden_bias, int64_t factor, const char* op) {
  TORCH_CHECK(state.dim() == 2 && input_gates.dim() == 2, op, ": expected 2-dimensional gates and state");
  TORCH_CHECK(input_gates.sizes() == hidden_gates.sizes() && input_gates.size(0) == state.size(0) &&
                  input_gates.size(1) == factor * state.size(1),
              op, ": gates of sizes ", input_gates.sizes(), " and ", hidden_gates.sizes(),
              " do not fit a state of size ", state.sizes());
  TORCH_CHECK(input_bias.defined() == hidden_bias.defined(), op, ": needs both biases or neither");
  for (const Tensor* bias : {&input_bias, &hidden_bias})
    TORCH_CHECK(!bias->defined() || bias->numel() == input_gates.size(1), op, ": a bias of size ",
                bias->sizes(), " does not fit gates of size ", input_gates.sizes());
}

std::tuple<Tensor, Tensor, Tensor> lstm_cell(const Tensor& input_gates, const Tensor& hidden_gates,
                                             const Tensor& cx_, const OptionalTensor& input_bias,
                                             const OptionalTensor& hidden_bias) {
  const Tensor input = input_gates.contiguous(), hidden = hidden_gates.contiguous(), cx = cx_.contiguous(),
               bias_i = dense(input_bias), bias_h = dense(hidden_bias);
  check_gates(input, hidden, cx, bias_i, bias_h, 4, "_thnn_fused_lstm_cell");
  Tensor hy = at::empty_like(cx), cy = at::empty_like(cx), workspace = at::empty_like(input);
  run("lstm_cell", {&input, &hidden, &bias_i, &bias_h, &cx, &hy, &cy, &workspace}, cx.size(0), cx.size(1));
  return {std::move(hy), std::move(cy), std::move(workspace)};
}

std::tuple<Tensor, Tensor, Tensor> lstm_cell_backward(const OptionalTensor& grad_hy_,
                                                      const OptionalTensor& grad_cy_, const Tensor& cx_,
                                                      const Tensor& cy_, const Tensor& workspace_,
                                                      bool has_bias) {
  const Tensor grad_hy = dense(grad_hy_), grad_cy = dense(grad_cy_);
  if (!grad_hy.defined() && !grad_cy.defined()) return {};
  const Tensor cx = cx_.contiguous(), cy = cy_.contiguous(), workspace = workspace_.contiguous();
  Tensor grad_gates = at::empty_like(workspace), grad_cx = at::empty_like(cx);
  run("lstm_cell_backward", {&grad_hy, &grad_cy, &cx, &cy, &workspace, &grad_gates, &grad_cx}, cx.size(0),
      cx.size(1));
  Tensor grad_bias = has_bias ? grad_gates.sum(0) : Tensor();
  return {std::move(grad_gates), std::move(grad_cx), std::move(grad_bias)};
}

std::tuple<Tensor, Tensor> gru_cell(const Tensor& input_gates, const Tensor& hidden_gates, const Tensor& hx_,
                                    const OptionalTensor& input_bias, const OptionalTensor& hidden_bias) {
  const Tensor input = input_gates.contiguous(), hidden = hidden_gates.contiguous(), hx = hx_.contiguous(),
               bias_i = dense(input_bias), bias_h = dense(hidden_bias);
  check_gates(input, hidden, hx, bias_i, bias_h, 3, "_thnn_fused_gru_cell");
  Tensor hy = at::empty_like(hx), workspace = at::empty({hx.size(0), hx.size(1) * 5}, hx.options());
  run("gru_cell", {&input, &hidden, &bias_i, &bias_h, &hx, &hy, &workspace}, hx.size(0), hx.size(1));
  return {std::move(hy), std::move(workspace)};
}

std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor> gru_cell_backward(const Tensor& grad_hy_,
                                                                     const Tensor& workspace_,
                                                                     bool has_bias) {
  const Tensor grad_hy = grad_hy_.contiguous(), workspace = workspace_.contiguous();
  const int64_t samples = workspace.size(0), size = workspace.size(1) / 5;
  Tensor grad_input = at::empty({samples, size * 3}, workspace.options()),
         grad_hidden = at::empty_like(grad_input), grad_hx = at::empty_like(grad_hy);
  run("gru_cell_backward", {&grad_hy, &workspace, &grad_input, &grad_hidden, &grad_hx}, samples, size);
  Tensor bias_i, bias_h;
  if (has_bias) bias_i = grad_input.sum(0), bias_h = grad_hidden.sum(0);
  return {std::move(grad_input), std::move(grad_hidden), std::move(grad_hx), std::move(bias_i),
          std::move(bias_h)};
}

}  // namespace

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("_thnn_fused_lstm_cell", lstm_cell);
  m.impl("_thnn_fused_lstm_cell_backward_impl", lstm_cell_backward);
  m.impl("_thnn_fused_gru_cell", gru_cell);
  m.impl("_thnn_fused_gru_cell_backward", gru_cell_backward);
}

}  // namespace dlb
