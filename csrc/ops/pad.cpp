// Reflection and replication padding of 1, 2 and 3 axes. Constant padding is a composite, circular too.
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/reflection_pad1d_backward_meta.h>
#include <ATen/ops/reflection_pad1d_meta.h>
#include <ATen/ops/reflection_pad3d_backward_meta.h>
#include <ATen/ops/reflection_pad3d_meta.h>
#include <ATen/ops/replication_pad1d_backward_meta.h>
#include <ATen/ops/replication_pad1d_meta.h>
#include <ATen/ops/replication_pad2d_meta.h>
#include <ATen/ops/replication_pad3d_meta.h>
#include <torch/library.h>

#include "kernels/pad/params.h"
#include "ops/common/structured.h"
#include "primitives/common/lines.h"
#include "runtime/fetch_kernel.h"
#include "runtime/tensor.h"

namespace dlb {
namespace {

using at::IntArrayRef;
using at::Tensor;

enum class PadMode : int32_t { Replicate, Reflect };

// x: the input or its gradient, y: the output or its gradient. padding: pairs, the last axis first.
void run(bool backward, PadMode mode, const Tensor& x, const Tensor& y, IntArrayRef padding) {
  if (y.numel() == 0 && !backward) return;
  if (x.numel() == 0) return;
  if (y.numel() == 0) {
    x.zero_();
    return;
  }
  const int axes = static_cast<int>(padding.size() / 2);
  Stream& stream = current_stream(x.device().index());
  cl::Device& device = stream.device();
  const auto type = dtype_of(x.scalar_type(), "pad");
  const codegen::DClass cls = codegen::class_of(type);
  const bool adds = cls == codegen::DClass::Float || cls == codegen::DClass::Complex;
  TORCH_CHECK_NOT_IMPLEMENTED(!backward || adds, "\"pad_backward\" not implemented for '",
                              c10::toString(x.scalar_type()), "'");
  const auto moved = backward ? type : codegen::bits_of(x.itemsize());
  check_device_supports(device, moved, "pad");
  TORCH_CHECK(x.numel() < (int64_t{1} << 31) && y.numel() < (int64_t{1} << 31),
              "pad: tensors of 2^31 elements or more are not supported");
  const View5 xs(x, axes), ys(y, axes);
  const Buffer in = buffer_of(x), out = buffer_of(y);
  constexpr params::PadAxis kAbsent{1, 1, 0};
  params::PadParams p{
      in.offset, out.offset, lines_of(xs, ys), {kAbsent, kAbsent, kAbsent}, mode == PadMode::Reflect};
  for (int i = 0; i < axes; ++i) {
    const auto at = static_cast<size_t>(2 - i);
    p.axis[at] = {static_cast<int32_t>(xs.size[at + 2]), static_cast<int32_t>(ys.size[at + 2]),
                  static_cast<int32_t>(padding[static_cast<size_t>(2 * i)])};
  }
  const Team team = walk_lines(p.lines, device, backward ? xs : ys, true, 4,
                               device.cls == cl::DeviceClass::kCpu ? kMostLineBlock : kGpuBlock);
  fetch_kernel(device, "pad/pad.cl", backward ? "pad_backward" : "pad", codegen::compute_type(moved), {moved},
               line_options(p.lines, device, moved))
      .launch(stream.queue(), range_of(device, team), in.mem, out.mem, p, team);
}

// The metas ask for no layout; the CPU's kernels give results the input's. An out= tensor of the right size
// keeps its own.
void lay_out_as(const Tensor& self, const Tensor& result) {
  const auto format = self.suggest_memory_format();
  if (format != at::MemoryFormat::Contiguous) result.unsafeGetTensorImpl()->empty_tensor_restride(format);
}

template <class Meta, PadMode M>
Tensor& pad_out(const Tensor& self, IntArrayRef padding, Tensor& out) {
  const bool fresh = out.numel() == 0;
  OutOp<Meta>(out).meta(self, padding);
  if (fresh) lay_out_as(self, out);
  run(false, M, self, out, padding);
  return out;
}
template <class Meta, PadMode M>
Tensor pad(const Tensor& self, IntArrayRef padding) {
  Tensor out = at::empty({0}, self.options());
  return pad_out<Meta, M>(self, padding, out);
}
template <class Meta, PadMode M>
Tensor& pad_backward_out(const Tensor& grad_output, const Tensor& self, IntArrayRef padding,
                         Tensor& grad_input) {
  const bool fresh = grad_input.numel() == 0;
  OutOp<Meta>(grad_input).meta(grad_output, self, padding);
  if (fresh) lay_out_as(self, grad_input);
  run(true, M, grad_input, grad_output, padding);
  return grad_input;
}
template <class Meta, PadMode M>
Tensor pad_backward(const Tensor& grad_output, const Tensor& self, IntArrayRef padding) {
  Tensor grad_input = at::empty({0}, self.options());
  return pad_backward_out<Meta, M>(grad_output, self, padding, grad_input);
}

// The checks of the ops that have no meta function.
c10::SmallVector<int64_t, 5> padded_sizes(const Tensor& self, IntArrayRef padding, bool reflect) {
  const int64_t axes = static_cast<int64_t>(padding.size()) / 2;
  TORCH_CHECK(
      self.dim() == axes + 1 || self.dim() == axes + 2, "Expected ", axes + 1, "D or ", axes + 2,
      "D (batch mode) tensor with possibly 0 batch size and other non-zero dimensions for input, but got: ",
      self.sizes());
  TORCH_CHECK(self.size(self.dim() - axes - 1) > 0, "Expected ", axes + 1, "D or ", axes + 2,
              "D tensor with at least one channel, but got: ", self.sizes());
  c10::SmallVector<int64_t, 5> sizes(self.sizes().begin(), self.sizes().end());
  for (int64_t i = 0; i < axes; ++i) {
    const auto at = sizes.size() - 1 - static_cast<size_t>(i);
    const int64_t before = padding[static_cast<size_t>(2 * i)],
                  after = padding[static_cast<size_t>(2 * i + 1)];
    TORCH_CHECK(sizes[at] > 0, "Expected non-zero padded dimensions, got ", self.sizes());
    TORCH_CHECK(
        !reflect || (before < sizes[at] && after < sizes[at]),
        "Argument #4: Padding size should be less than the corresponding input dimension, but got: padding (",
        before, ", ", after, ") at dimension ", at, " of input ", self.sizes());
    sizes[at] += before + after;
    TORCH_CHECK(sizes[at] >= 1, "input is too small for the padding: ", self.sizes(), " padded by ", padding);
  }
  return sizes;
}

Tensor& reflection_pad2d_out(const Tensor& self, IntArrayRef padding, Tensor& out) {
  if (at::native::resize_output(out, padded_sizes(self, padding, true))) lay_out_as(self, out);
  run(false, PadMode::Reflect, self, out, padding);
  return out;
}
Tensor reflection_pad2d(const Tensor& self, IntArrayRef padding) {
  Tensor out = at::empty(padded_sizes(self, padding, true),
                         self.options().memory_format(self.suggest_memory_format()));
  run(false, PadMode::Reflect, self, out, padding);
  return out;
}

template <PadMode M>
Tensor& checked_backward_out(const Tensor& grad_output, const Tensor& self, IntArrayRef padding,
                             Tensor& grad_input) {
  const auto sizes = padded_sizes(self, padding, M == PadMode::Reflect);
  TORCH_CHECK(grad_output.sizes().equals(sizes), "grad_output unexpected: expected sizes ",
              IntArrayRef(sizes), ", got ", grad_output.sizes());
  if (at::native::resize_output(grad_input, self.sizes())) lay_out_as(self, grad_input);
  run(true, M, grad_input, grad_output, padding);
  return grad_input;
}
template <PadMode M>
Tensor checked_backward(const Tensor& grad_output, const Tensor& self, IntArrayRef padding) {
  Tensor grad_input = at::empty_like(self, self.suggest_memory_format());
  return checked_backward_out<M>(grad_output, self, padding, grad_input);
}

}  // namespace

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  using namespace at::meta;
  constexpr PadMode kReflect = PadMode::Reflect, kReplicate = PadMode::Replicate;
  m.impl("reflection_pad1d.out", pad_out<structured_reflection_pad1d, kReflect>);
  m.impl("reflection_pad2d", reflection_pad2d);
  m.impl("reflection_pad2d.out", reflection_pad2d_out);
  m.impl("reflection_pad3d", pad<structured_reflection_pad3d, kReflect>);
  m.impl("reflection_pad3d.out", pad_out<structured_reflection_pad3d, kReflect>);
  m.impl("replication_pad1d.out", pad_out<structured_replication_pad1d, kReplicate>);
  m.impl("replication_pad2d", pad<structured_replication_pad2d, kReplicate>);
  m.impl("replication_pad2d.out", pad_out<structured_replication_pad2d, kReplicate>);
  m.impl("replication_pad3d", pad<structured_replication_pad3d, kReplicate>);
  m.impl("replication_pad3d.out", pad_out<structured_replication_pad3d, kReplicate>);
  m.impl("reflection_pad1d_backward.grad_input",
         pad_backward_out<structured_reflection_pad1d_backward, kReflect>);
  m.impl("reflection_pad2d_backward", checked_backward<kReflect>);
  m.impl("reflection_pad2d_backward.grad_input", checked_backward_out<kReflect>);
  m.impl("reflection_pad3d_backward", pad_backward<structured_reflection_pad3d_backward, kReflect>);
  m.impl("reflection_pad3d_backward.grad_input",
         pad_backward_out<structured_reflection_pad3d_backward, kReflect>);
  m.impl("replication_pad1d_backward.grad_input",
         pad_backward_out<structured_replication_pad1d_backward, kReplicate>);
  m.impl("replication_pad2d_backward", checked_backward<kReplicate>);
  m.impl("replication_pad2d_backward.grad_input", checked_backward_out<kReplicate>);
  m.impl("replication_pad3d_backward", checked_backward<kReplicate>);
  m.impl("replication_pad3d_backward.grad_input", checked_backward_out<kReplicate>);
}

}  // namespace dlb
