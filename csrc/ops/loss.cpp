// Negative log likelihood loss of vectors (nll_loss) and images (nll_loss2d) of class scores.
#include <ATen/core/Reduction.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/nll_loss_backward_meta.h>
#include <ATen/ops/nll_loss_forward_meta.h>
#include <ATen/ops/zeros_like.h>
#include <torch/library.h>

#include "kernels/loss/params.h"
#include "ops/common/structured.h"
#include "primitives/common/team.h"
#include "runtime/device_error.h"
#include "runtime/fetch_kernel.h"
#include "runtime/tensor.h"

namespace dlb {
namespace {

using at::Tensor;
using OptionalTensor = std::optional<Tensor>;

using Params = params::NllParams;

// Whether height and width can be walked as one dimension.
bool merges(const Tensor& scores) {
  return scores.dim() < 4 || scores.size(2) == 1 || scores.stride(2) == scores.size(3) * scores.stride(3);
}

// The operands that forward and backward share. `scores` may be the gradient that is written.
struct Nll {
  Stream& stream;
  cl::Device& device;
  Tensor target, weight;
  codegen::DType type, index_type;
  Params params{};

  Nll(const Tensor& scores, const Tensor& target_, const Tensor& weight_, int64_t reduction,
      int64_t ignore_index, const char* op)
      : stream(current_stream(scores.device().index())),
        device(stream.device()),
        target(target_.contiguous()),
        weight(weight_.defined() ? weight_.contiguous() : weight_),
        type(dtype_of(scores.scalar_type(), op)),
        index_type(dtype_of(target.scalar_type(), op)) {
    static const int32_t site =
        register_error_site({"nll_loss", "Target %lld is out of bounds (%lld classes)"});
    TORCH_CHECK_NOT_IMPLEMENTED(codegen::class_of(type) == codegen::DClass::Float, "\"", op,
                                "\" not implemented for '", c10::toString(scores.scalar_type()), "'");
    TORCH_CHECK(target.scalar_type() == at::kLong || target.scalar_type() == at::kByte,
                "expected scalar type Long or Byte but found ", target.scalar_type());
    TORCH_CHECK(!weight.defined() || weight.scalar_type() == scores.scalar_type(), "expected scalar type ",
                scores.scalar_type(), " but found ", weight.scalar_type());
    check_device_supports(device, type, op);
    const int64_t class_dim = scores.dim() == 1 ? 0 : 1;
    params.weight = -1, params.spatial_stride = 1, params.spatial = 1, params.per_part = 1;
    params.x = scores.numel() ? buffer_of(scores).offset : 0;
    params.classes = static_cast<int32_t>(scores.size(class_dim));
    params.class_stride = scores.stride(class_dim);
    if (class_dim) params.sample_stride = scores.stride(0);
    if (scores.dim() == 4) {
      params.spatial = static_cast<int32_t>(scores.size(2) * scores.size(3));
      params.spatial_stride = scores.size(3) == 1 ? scores.stride(2) : scores.stride(3);
    }
    params.count = static_cast<int32_t>(target.numel());
    params.target = params.count ? buffer_of(target).offset : 0;
    if (weight.defined()) params.weight = buffer_of(weight).offset;
    params.reduction = static_cast<int32_t>(reduction);
    params.ignore_index = ignore_index;
    params.site = site;
  }

  cl::Kernel& kernel(const char* name) const {
    return fetch_kernel(device, "loss/loss.cl", name, codegen::compute_type(type), {type, index_type});
  }
  cl_mem weight_mem() const { return weight.defined() ? mem_of(weight).mem : nullptr; }
};

void forward(const Tensor& scores, const Tensor& target, const Tensor& weight, int64_t reduction,
             int64_t ignore_index, const Tensor& output, const Tensor& total_weight) {
  Nll nll(scores, target, weight, reduction, ignore_index, "nll_loss");
  Params& p = nll.params;
  if (reduction == at::Reduction::None) {
    total_weight.zero_();
    if (p.count == 0) return;
    p.out = buffer_of(output).offset;
    const Team team = make_team(nll.device, p.count, 4, 1);
    nll.kernel("nll_none")
        .launch(nll.stream.queue(), range_of(nll.device, team), mem_of(scores).mem, mem_of(nll.target).mem,
                nll.weight_mem(), mem_of(output).mem, ErrorBuffer(nll.stream).mem(), p, team);
    return;
  }
  const Buffer out = buffer_of(output), total = buffer_of(total_weight);
  p.out = out.offset, p.total = total.offset;
  const bool cpu = nll.device.cls == cl::DeviceClass::kCpu;
  const int32_t wanted = std::clamp<int32_t>(p.count / 2048, 1, cpu ? nll.device.compute_units * 4 : 128);
  p.per_part = std::max(1, (p.count + wanted - 1) / wanted);
  const int32_t parts = (p.count + p.per_part - 1) / p.per_part;
  const Tensor partial = new_tensor(
      {std::max(1, 2 * parts)}, nll.type == codegen::DType::F64 ? at::kDouble : at::kFloat, scores.device());
  const Buffer partials = buffer_of(partial);
  p.partial = partials.offset;
  Team team = make_team(nll.device, parts, p.per_part);
  if (cpu) team.per_item = 1;
  if (parts)
    nll.kernel("nll_parts")
        .launch(nll.stream.queue(), range_of(nll.device, team), mem_of(scores).mem, mem_of(nll.target).mem,
                nll.weight_mem(), partials.mem, ErrorBuffer(nll.stream).mem(), p, team);
  nll.kernel("nll_finish")
      .launch(nll.stream.queue(), cl::Range::linear(1, 1), partials.mem, out.mem, total.mem, p, parts);
}

void backward(const Tensor& grad_output, const Tensor& grad_input, const Tensor& target, const Tensor& weight,
              int64_t reduction, int64_t ignore_index, const Tensor& total_weight) {
  grad_input.zero_();
  if (target.numel() == 0 || grad_input.numel() == 0) return;
  Nll nll(grad_input, target, weight, reduction, ignore_index, "nll_loss_backward");
  Params& p = nll.params;
  const Tensor grad = grad_output.contiguous();
  const Buffer out = buffer_of(grad), total = buffer_of(total_weight);
  p.out = out.offset, p.total = total.offset;
  const Team team = make_team(nll.device, p.count, 4, 1);
  nll.kernel("nll_backward")
      .launch(nll.stream.queue(), range_of(nll.device, team), mem_of(grad_input).mem, mem_of(nll.target).mem,
              nll.weight_mem(), out.mem, total.mem, ErrorBuffer(nll.stream).mem(), p, team);
}

Tensor value(const OptionalTensor& tensor) {
  return tensor ? *tensor : Tensor();
}
at::OptionalTensorRef reference(const OptionalTensor& tensor) {
  return tensor && tensor->defined() ? at::OptionalTensorRef(*tensor) : at::OptionalTensorRef();
}

std::tuple<Tensor, Tensor> new_nll_loss_forward(const Tensor& self, const Tensor& target,
                                                const OptionalTensor& weight, int64_t reduction,
                                                int64_t ignore_index) {
  NewOp<at::meta::structured_nll_loss_forward, 2> op;
  op.meta(self, target, reference(weight), reduction, ignore_index);
  forward(self, target, value(weight), reduction, ignore_index, op[0], op[1]);
  return {std::move(op[0]), std::move(op[1])};
}

Tensor new_nll_loss_backward(const Tensor& grad_output, const Tensor& self, const Tensor& target,
                             const OptionalTensor& weight, int64_t reduction, int64_t ignore_index,
                             const Tensor& total_weight) {
  NewOp<at::meta::structured_nll_loss_backward> op;
  op.meta(grad_output, self, target, reference(weight), reduction, ignore_index, total_weight);
  backward(grad_output, op[0], target, value(weight), reduction, ignore_index, total_weight);
  return std::move(op[0]);
}

std::tuple<Tensor&, Tensor&> nll_loss_forward(const Tensor& self, const Tensor& target,
                                              const OptionalTensor& weight, int64_t reduction,
                                              int64_t ignore_index, Tensor& output, Tensor& total_weight) {
  OutOp<at::meta::structured_nll_loss_forward, 2> op({output, total_weight});
  op.meta(self, target, reference(weight), reduction, ignore_index);
  forward(self, target, value(weight), reduction, ignore_index, op.result(0), op.result(1));
  op.finish();
  return {output, total_weight};
}

Tensor& nll_loss_backward(const Tensor& grad_output, const Tensor& self, const Tensor& target,
                          const OptionalTensor& weight, int64_t reduction, int64_t ignore_index,
                          const Tensor& total_weight, Tensor& grad_input) {
  OutOp<at::meta::structured_nll_loss_backward>(grad_input)
      .meta(grad_output, self, target, reference(weight), reduction, ignore_index, total_weight);
  backward(grad_output, grad_input, target, value(weight), reduction, ignore_index, total_weight);
  return grad_input;
}

void check_2d(const Tensor& self, const Tensor& target, const OptionalTensor& weight) {
  TORCH_CHECK(
      target.dim() == 3,
      "only batches of spatial targets supported (3D tensors) but got targets of dimension: ", target.dim());
  TORCH_CHECK(
      self.dim() == 4,
      "only batches of spatial inputs supported (4D tensors), but got input of dimension: ", self.dim());
  TORCH_CHECK(!weight || !weight->defined() || weight->numel() == self.size(1),
              "weight tensor should be defined either for all or no classes");
  TORCH_CHECK(
      self.size(0) == target.size(0) && self.size(2) == target.size(1) && self.size(3) == target.size(2),
      "size mismatch (got input: ", self.sizes(), " , target: ", target.sizes());
}

std::tuple<Tensor&, Tensor&> nll_loss2d_forward_out(const Tensor& self, const Tensor& target,
                                                    const OptionalTensor& weight, int64_t reduction,
                                                    int64_t ignore_index, Tensor& output,
                                                    Tensor& total_weight) {
  check_2d(self, target, weight);
  const bool none = reduction == at::Reduction::None;
  at::native::resize_output(output, none ? target.sizes() : at::IntArrayRef());
  at::native::resize_output(total_weight, {});
  const Tensor dense = output.is_contiguous() ? output : at::empty(output.sizes(), output.options());
  forward(merges(self) ? self : self.contiguous(), target, value(weight), reduction, ignore_index, dense,
          total_weight);
  if (!dense.is_same(output)) output.copy_(dense);
  return {output, total_weight};
}
std::tuple<Tensor, Tensor> nll_loss2d_forward(const Tensor& self, const Tensor& target,
                                              const OptionalTensor& weight, int64_t reduction,
                                              int64_t ignore_index) {
  const auto options = self.options().memory_format(std::nullopt);
  Tensor output = at::empty({0}, options), total_weight = at::empty({0}, options);
  nll_loss2d_forward_out(self, target, weight, reduction, ignore_index, output, total_weight);
  return {output, total_weight};
}

Tensor& nll_loss2d_backward_out(const Tensor& grad_output, const Tensor& self, const Tensor& target,
                                const OptionalTensor& weight, int64_t reduction, int64_t ignore_index,
                                const Tensor& total_weight, Tensor& grad_input) {
  check_2d(self, target, weight);
  at::native::resize_output(grad_input, self.sizes());
  const Tensor dense = merges(grad_input) ? grad_input : at::empty(self.sizes(), self.options());
  backward(grad_output, dense, target, value(weight), reduction, ignore_index, total_weight);
  if (!dense.is_same(grad_input)) grad_input.copy_(dense);
  return grad_input;
}
Tensor nll_loss2d_backward(const Tensor& grad_output, const Tensor& self, const Tensor& target,
                           const OptionalTensor& weight, int64_t reduction, int64_t ignore_index,
                           const Tensor& total_weight) {
  Tensor grad_input = at::empty(self.sizes(), self.options().memory_format(self.suggest_memory_format()));
  return nll_loss2d_backward_out(grad_output, self, target, weight, reduction, ignore_index, total_weight,
                                 grad_input);
}

}  // namespace

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("nll_loss_forward", new_nll_loss_forward);
  m.impl("nll_loss_backward", new_nll_loss_backward);
  m.impl("nll_loss_forward.output", nll_loss_forward);
  m.impl("nll_loss_backward.grad_input", nll_loss_backward);
  m.impl("nll_loss2d_forward", nll_loss2d_forward);
  m.impl("nll_loss2d_forward.output", nll_loss2d_forward_out);
  m.impl("nll_loss2d_backward", nll_loss2d_backward);
  m.impl("nll_loss2d_backward.grad_input", nll_loss2d_backward_out);
}

}  // namespace dlb
