// im2col and col2im, of which nn.Unfold and nn.Fold and their gradients are made, and the gradient of
// Tensor.unfold.
#include <ATen/WrapDimUtils.h>
#include <ATen/native/Resize.h>
#include <ATen/native/im2col_shape_check.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <torch/library.h>

#include <algorithm>

#include "codegen/pointwise.h"
#include "kernels/vision/params.h"
#include "primitives/common/split.h"
#include "runtime/fetch_kernel.h"
#include "runtime/tensor.h"

namespace dlb {
namespace {

using at::IntArrayRef;
using at::Tensor;
using params::ColumnParams;

constexpr int64_t kLanes = 128;  // elements of a row that CPUs' work-items take together

struct Windows {
  IntArrayRef kernel, dilation, pad, stride;

  void check() const {
    const auto check_one = [](IntArrayRef list, const char* name) {
      TORCH_CHECK(list.size() == 2, "It is expected ", name, " equals to 2, but got size ", list.size());
    };
    check_one(kernel, "kernel_size"), check_one(dilation, "dilation"), check_one(pad, "padding");
    check_one(stride, "stride");
  }
  int64_t out(size_t axis, int64_t in) const {
    return (in + 2 * pad[axis] - (dilation[axis] * (kernel[axis] - 1) + 1)) / stride[axis] + 1;
  }
};

void check_dtype(const Tensor& self, const char* op) {
  const at::ScalarType type = self.scalar_type();
  TORCH_CHECK_NOT_IMPLEMENTED(self.is_floating_point() || self.is_complex() || type == at::kBool, "\"", op,
                              "\" not implemented for '", c10::toString(type), "'");
}

// Launches `kernel` over the rows of what it writes, `width` elements each. Rows are rows of the image or of
// outputs, as `height` says.
void run(const char* kernel, codegen::DType type, const Tensor& written, const Tensor& read, ColumnParams& p,
         int64_t n, int64_t channels, int64_t height, int64_t width, bool per_tap) {
  Stream& stream = current_stream(written.device().index());
  cl::Device& device = stream.device();
  check_device_supports(device, type, kernel);
  TORCH_CHECK(written.numel() < (int64_t{1} << 31) && read.numel() < (int64_t{1} << 31), kernel,
              ": tensors of 2^31 elements or more are not supported");
  const bool cpu = device.cls == cl::DeviceClass::kCpu;  // whose work-items have a row of one tap
  const int64_t lanes = cpu ? kLanes : 1, pieces = (width + lanes - 1) / lanes;
  const int64_t taps = int64_t{p.filter[0]} * p.filter[1];
  const auto divider = [](int64_t size) { return codegen::make_divider(static_cast<uint32_t>(size)); };
  p.pieces = divider(pieces), p.height = divider(height), p.taps = divider(taps),
  p.channels = divider(channels);
  p.rows = static_cast<uint32_t>(n * channels * (per_tap && cpu ? taps : 1) * height * pieces);
  const int64_t work = std::min(lanes, width) * (per_tap ? 1 : taps);
  const Split split = split_work(device, p.rows, static_cast<uint32_t>(std::max<int64_t>(1, 16384 / work)));
  p.per_item = split.per_item;
  const Tensor &image = per_tap ? read : written, &columns = per_tap ? written : read;
  p.image = buffer_of(image).offset, p.columns = buffer_of(columns).offset;
  fetch_kernel(device, "vision/columns.cl", kernel, codegen::compute_type(type), {type})
      .launch(stream.queue(), split.range, buffer_of(image).mem, buffer_of(columns).mem, p);
}

ColumnParams params_of(const Windows& windows, int64_t height, int64_t width) {
  ColumnParams p{};
  const int64_t in[2] = {height, width};
  for (size_t i = 0; i < 2; ++i) {
    p.in[i] = static_cast<int32_t>(in[i]), p.out[i] = static_cast<int32_t>(windows.out(i, in[i]));
    p.filter[i] = static_cast<int32_t>(windows.kernel[i]),
    p.stride[i] = static_cast<int32_t>(windows.stride[i]);
    p.pad[i] = static_cast<int32_t>(windows.pad[i]),
    p.dilation[i] = static_cast<int32_t>(windows.dilation[i]);
  }
  return p;
}

Tensor& im2col_out(const Tensor& self, IntArrayRef kernel, IntArrayRef dilation, IntArrayRef pad,
                   IntArrayRef stride, Tensor& out) {
  const Windows windows{kernel, dilation, pad, stride};
  windows.check();
  at::native::im2col_shape_check(self, Tensor(), kernel[0], kernel[1], dilation[0], dilation[1], pad[0],
                                 pad[1], stride[0], stride[1]);
  check_dtype(self, "im2col");
  TORCH_CHECK(out.scalar_type() == self.scalar_type(), "Expected out tensor to have dtype ",
              self.scalar_type(), ", but got ", out.scalar_type(), " instead");
  const bool batched = self.dim() == 4;
  const Tensor image = batched ? self : self.unsqueeze(0);
  const int64_t n = image.size(0), channels = image.size(1);
  ColumnParams p = params_of(windows, image.size(2), image.size(3));
  const int64_t rows = channels * kernel[0] * kernel[1], length = int64_t{p.out[0]} * p.out[1];
  at::native::resize_output(out, batched ? at::DimVector{n, rows, length} : at::DimVector{rows, length});
  if (out.numel() == 0) return out;
  const Tensor dense = out.is_contiguous() ? out : at::empty(out.sizes(), out.options());
  std::copy_n(image.strides().begin(), 4, p.xs);
  run("im2col", codegen::bits_of(self.itemsize()), dense, image, p, n, channels, p.out[0], p.out[1], true);
  if (!dense.is_same(out)) out.copy_(dense);
  return out;
}
Tensor im2col(const Tensor& self, IntArrayRef kernel, IntArrayRef dilation, IntArrayRef pad,
              IntArrayRef stride) {
  Tensor out = at::empty({0}, self.options());
  return im2col_out(self, kernel, dilation, pad, stride, out);
}

Tensor& col2im_out(const Tensor& self, IntArrayRef output_size, IntArrayRef kernel, IntArrayRef dilation,
                   IntArrayRef pad, IntArrayRef stride, Tensor& out) {
  const Windows windows{kernel, dilation, pad, stride};
  TORCH_CHECK(output_size.size() == 2, "It is expected output_size equals to 2, but got size ",
              output_size.size());
  windows.check();
  at::native::col2im_shape_check(self, Tensor(), output_size[0], output_size[1], kernel[0], kernel[1],
                                 dilation[0], dilation[1], pad[0], pad[1], stride[0], stride[1]);
  check_dtype(self, "col2im");
  TORCH_CHECK(out.scalar_type() == self.scalar_type(), "Expected out tensor to have dtype ",
              self.scalar_type(), ", but got ", out.scalar_type(), " instead");
  const bool batched = self.dim() == 3;
  const int64_t n = batched ? self.size(0) : 1, channels = self.size(-2) / (kernel[0] * kernel[1]);
  at::native::resize_output(out, batched ? at::DimVector{n, channels, output_size[0], output_size[1]}
                                         : at::DimVector{channels, output_size[0], output_size[1]});
  if (out.numel() == 0) return out;
  ColumnParams p = params_of(windows, output_size[0], output_size[1]);
  const Tensor columns = self.contiguous(),
               dense = out.is_contiguous() ? out : at::empty(out.sizes(), out.options());
  run("col2im", dtype_of(self.scalar_type(), "col2im"), dense, columns, p, n, channels, output_size[0],
      output_size[1], false);
  if (!dense.is_same(out)) out.copy_(dense);
  return out;
}
Tensor col2im(const Tensor& self, IntArrayRef output_size, IntArrayRef kernel, IntArrayRef dilation,
              IntArrayRef pad, IntArrayRef stride) {
  Tensor out = at::empty({0}, self.options());
  return col2im_out(self, output_size, kernel, dilation, pad, stride, out);
}

Tensor unfold_backward(const Tensor& grad, IntArrayRef input_sizes, int64_t dim, int64_t size, int64_t step) {
  if (input_sizes.empty()) return grad.reshape({});  // one window of one element
  dim = at::maybe_wrap_dim(dim, static_cast<int64_t>(input_sizes.size()));
  const Tensor out = at::empty(input_sizes, grad.options());
  if (out.numel() == 0) return out;
  if (grad.numel() == 0) return out.zero_();
  const auto product = [](IntArrayRef sizes) { return c10::multiply_integers(sizes); };
  TORCH_CHECK(out.numel() < (int64_t{1} << 31), "unfold_backward: 2^31 elements or more are not supported");
  const Tensor from = grad.contiguous();
  const auto type = dtype_of(grad.scalar_type(), "unfold_backward");
  Stream& stream = current_stream(grad.device().index());
  check_device_supports(stream.device(), type, "unfold_backward");
  const auto at = static_cast<size_t>(dim);
  params::WindowParams p{};
  p.grad = buffer_of(from).offset, p.out = buffer_of(out).offset;
  p.windows = static_cast<int32_t>(grad.size(dim)), p.size = static_cast<int32_t>(size);
  p.step = static_cast<int32_t>(step);
  p.inner = codegen::make_divider(static_cast<uint32_t>(product(input_sizes.slice(at + 1))));
  p.length = codegen::make_divider(static_cast<uint32_t>(input_sizes[at]));
  p.count = static_cast<uint32_t>(out.numel());
  const bool lines = stream.device().cls == cl::DeviceClass::kCpu && p.inner.divisor == 1;
  if (lines) {
    const auto blocks = static_cast<uint32_t>((input_sizes[at] + kLanes - 1) / kLanes);
    p.inner = codegen::make_divider(blocks);
    p.count = static_cast<uint32_t>(out.numel() / input_sizes[at]) * blocks;
  }
  const Split split = split_work(stream.device(), p.count, lines ? 16 : 2048);
  p.per_item = split.per_item;
  fetch_kernel(stream.device(), "vision/columns.cl", lines ? "sum_windows_of_lines" : "sum_windows",
               codegen::compute_type(type), {type})
      .launch(stream.queue(), split.range, buffer_of(out).mem, buffer_of(from).mem, p);
  return out;
}

}  // namespace

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("im2col", im2col);
  m.impl("im2col.out", im2col_out);
  m.impl("col2im", col2im);
  m.impl("col2im.out", col2im_out);
  m.impl("unfold_backward", unfold_backward);
}

}  // namespace dlb
