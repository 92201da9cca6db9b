// Connectionist temporal classification loss and its gradient.
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <torch/library.h>

#include <algorithm>
#include <tuple>
#include <vector>

#include "kernels/loss/params.h"
#include "primitives/common/team.h"
#include "runtime/fetch_kernel.h"
#include "runtime/tensor.h"

namespace dlb {
namespace {

using at::IntArrayRef;
using at::Tensor;

// The state that forward and backward share: checked operands, and the lengths on the device.
struct Ctc {
  Stream& stream;
  cl::Device& device;
  codegen::DType type, target_type;
  Tensor targets, lengths;
  params::CtcParams params{};

  Ctc(const Tensor& log_probs, const Tensor& targets_, IntArrayRef input_lengths, IntArrayRef target_lengths,
      int64_t blank, const char* op)
      : stream(current_stream(log_probs.device().index())),
        device(stream.device()),
        type(dtype_of(log_probs.scalar_type(), op)),
        target_type(dtype_of(targets_.scalar_type(), op)),
        targets(targets_) {
    check(log_probs, input_lengths, target_lengths, blank, op);
    const int64_t n = log_probs.size(1);
    std::vector<int64_t> host(input_lengths.begin(), input_lengths.end());
    host.insert(host.end(), target_lengths.begin(), target_lengths.end());
    int64_t begin = 0, longest = 0;
    for (int64_t i = 0; i < n; i++) {
      const int64_t length = target_lengths[static_cast<size_t>(i)];
      host.push_back(targets.dim() == 1 ? begin * targets.stride(0) : i * targets.stride(0));
      begin += length, longest = std::max(longest, length);
    }
    check_targets(n, begin, longest);
    const Tensor on_host = at::from_blob(host.data(), {static_cast<int64_t>(host.size())}, at::kLong);
    lengths = on_host.to(log_probs.device());
    params.x = buffer_of(log_probs).offset, params.target = targets.numel() ? buffer_of(targets).offset : 0;
    params.lengths = lengths.numel() ? buffer_of(lengths).offset : 0;
    for (int64_t d = 0; d < 3; d++) params.xs[d] = log_probs.stride(d);
    params.target_stride = targets.stride(targets.dim() - 1), params.blank = blank;
    params.times = static_cast<int32_t>(log_probs.size(0)), params.samples = static_cast<int32_t>(n);
    params.classes = static_cast<int32_t>(log_probs.size(2)),
    params.states = static_cast<int32_t>(2 * longest + 1);
  }

  void check(const Tensor& log_probs, IntArrayRef input_lengths, IntArrayRef target_lengths, int64_t blank,
             const char* op) const {
    TORCH_CHECK(log_probs.dim() == 3, "Expected 3-dimensional tensor, but got ", log_probs.dim(),
                "-dimensional tensor for argument #1 'log_probs' (while checking arguments for ", op, ")");
    TORCH_CHECK_NOT_IMPLEMENTED(
        log_probs.scalar_type() == at::kFloat || log_probs.scalar_type() == at::kDouble, "\"", op,
        "\" not implemented for '", c10::toString(log_probs.scalar_type()), "'");
    TORCH_CHECK(targets.scalar_type() == at::kLong || targets.scalar_type() == at::kInt,
                "expected targets of type Int or Long, but got ", targets.scalar_type());
    check_device_supports(device, type, op);
    TORCH_CHECK(log_probs.numel() > 0, "log_probs tensor must not be empty");
    TORCH_CHECK(blank >= 0 && blank < log_probs.size(2), "blank must be in label range");
    TORCH_CHECK(static_cast<int64_t>(input_lengths.size()) == log_probs.size(1),
                "input_lengths must be of size batch_size");
    TORCH_CHECK(static_cast<int64_t>(target_lengths.size()) == log_probs.size(1),
                "target_lengths must be of size batch_size");
    for (const int64_t length : input_lengths)
      TORCH_CHECK(length >= 0 && length <= log_probs.size(0), "Expected input_lengths to have value at most ",
                  log_probs.size(0), ", but got value ", length);
    for (const int64_t length : target_lengths)
      TORCH_CHECK(length >= 0, "Expected target_lengths to have value at least 0, but got value ", length);
  }
  void check_targets(int64_t n, int64_t total, int64_t longest) const {
    TORCH_CHECK(targets.dim() == 1 || targets.dim() == 2, "targets must be of 1 or 2 dimensions");
    if (targets.dim() == 1) {
      TORCH_CHECK(targets.size(0) == total, "Expected tensor to have size ", total,
                  " at dimension 0, but got size ", targets.size(0), " for argument #2 'targets'");
    } else {
      TORCH_CHECK(targets.size(0) == n && targets.size(1) >= longest,
                  "Expected tensor to have size at least ", longest, " at dimension 1, but got size ",
                  targets.size(1), " for argument #2 'targets'");
    }
  }

  cl::Kernel& kernel(const char* name) const {
    return fetch_kernel(device, "loss/ctc.cl", name, codegen::compute_type(type), {type, target_type});
  }
  // A group for each sample; its work-items share the states.
  cl::Range groups() const {
    size_t lanes = 1;
    if (device.cls == cl::DeviceClass::kGpu)
      for (lanes = 32; lanes < 256 && static_cast<int64_t>(lanes) < params.states;) lanes *= 2;
    return cl::Range::linear(static_cast<size_t>(params.samples), lanes);
  }
  // An empty tensor of targets may have no memory.
  cl_mem target_mem() const { return targets.numel() ? mem_of(targets).mem : mem_of(lengths).mem; }
};

std::tuple<Tensor, Tensor> ctc_loss(const Tensor& log_probs, const Tensor& targets, IntArrayRef input_lengths,
                                    IntArrayRef target_lengths, int64_t blank, bool /*zero_infinity*/) {
  Ctc ctc(log_probs, targets, input_lengths, target_lengths, blank, "ctc_loss");
  const auto options = log_probs.options().memory_format(std::nullopt);
  Tensor loss = at::empty({log_probs.size(1)}, options);
  Tensor alpha = at::empty({log_probs.size(1), log_probs.size(0), ctc.params.states}, options);
  ctc.params.alpha = buffer_of(alpha).offset, ctc.params.loss = buffer_of(loss).offset;
  ctc.kernel("ctc_alpha")
      .launch(ctc.stream.queue(), ctc.groups(), mem_of(log_probs).mem, ctc.target_mem(),
              mem_of(ctc.lengths).mem, mem_of(alpha).mem, mem_of(loss).mem, ctc.params);
  return {loss, alpha};
}

Tensor ctc_loss_backward(const Tensor& grad, const Tensor& log_probs, const Tensor& targets,
                         IntArrayRef input_lengths, IntArrayRef target_lengths, const Tensor& loss_,
                         const Tensor& alpha_, int64_t blank, bool zero_infinity) {
  Ctc ctc(log_probs, targets, input_lengths, target_lengths, blank, "ctc_loss_backward");
  const auto options = log_probs.options().memory_format(std::nullopt);
  const Tensor alpha = alpha_.contiguous(), loss = loss_.contiguous();
  const Tensor beta = at::empty(alpha.sizes(), options);
  Tensor out = at::empty(log_probs.sizes(), options);
  params::CtcParams& p = ctc.params;
  p.alpha = buffer_of(alpha).offset, p.beta = buffer_of(beta).offset, p.loss = buffer_of(loss).offset;
  p.grad = buffer_of(grad).offset, p.grad_stride = grad.dim() ? grad.stride(0) : 0;
  p.out = buffer_of(out).offset, p.zero_infinity = zero_infinity;
  ctc.kernel("ctc_beta")
      .launch(ctc.stream.queue(), ctc.groups(), mem_of(log_probs).mem, ctc.target_mem(),
              mem_of(ctc.lengths).mem, mem_of(beta).mem, p);
  const Team team = make_team(ctc.device, int64_t{p.times} * p.samples, p.classes + 8 * p.states, 1);
  ctc.kernel("ctc_grad")
      .launch(ctc.stream.queue(), range_of(ctc.device, team), mem_of(log_probs).mem, ctc.target_mem(),
              mem_of(ctc.lengths).mem, mem_of(alpha).mem, mem_of(beta).mem, mem_of(loss).mem,
              mem_of(grad).mem, mem_of(out).mem, p, team);
  return out;
}

// Lengths given as a tensor, which kernels' sizes depend on: read from the device where they are there.
std::vector<int64_t> lengths_of(const Tensor& lengths) {
  TORCH_CHECK(at::isIntegralType(lengths.scalar_type(), false),
              "input_lengths and target_lengths must be integral");
  const Tensor host = lengths.to(at::kCPU, at::kLong).contiguous();
  return {host.const_data_ptr<int64_t>(), host.const_data_ptr<int64_t>() + host.numel()};
}

std::tuple<Tensor, Tensor> ctc_loss_tensor(const Tensor& log_probs, const Tensor& targets,
                                           const Tensor& input_lengths, const Tensor& target_lengths,
                                           int64_t blank, bool zero_infinity) {
  return ctc_loss(log_probs, targets, lengths_of(input_lengths), lengths_of(target_lengths), blank,
                  zero_infinity);
}

Tensor ctc_loss_backward_tensor(const Tensor& grad, const Tensor& log_probs, const Tensor& targets,
                                const Tensor& input_lengths, const Tensor& target_lengths, const Tensor& loss,
                                const Tensor& alpha, int64_t blank, bool zero_infinity) {
  return ctc_loss_backward(grad, log_probs, targets, lengths_of(input_lengths), lengths_of(target_lengths),
                           loss, alpha, blank, zero_infinity);
}

}  // namespace

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("_ctc_loss", ctc_loss);
  m.impl("_ctc_loss.Tensor", ctc_loss_tensor);
  m.impl("_ctc_loss_backward", ctc_loss_backward);
  m.impl("_ctc_loss_backward.Tensor", ctc_loss_backward_tensor);
}

}  // namespace dlb
