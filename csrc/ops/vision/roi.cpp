// torchvision's pooling of boxes: roi_align, roi_pool, ps_roi_align, ps_roi_pool and their gradients. They
// are registered whether torchvision is there or not; PyTorch joins them to its schemas when it is loaded.
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <torch/library.h>

#include <algorithm>

#include "codegen/pointwise.h"
#include "kernels/vision/params.h"
#include "ops/vision/vision.h"
#include "primitives/common/owners.h"
#include "primitives/common/team.h"
#include "runtime/fetch_kernel.h"

namespace dlb::vision {
namespace {

using at::Tensor;
using params::RoiParams;
using Two = std::tuple<Tensor, Tensor>;

// CPUs take channels together, which pays for laying them side by side where the boxes' samples are many.
bool wants_channels_last(const cl::Device& device, int64_t channels, int64_t samples, int64_t elements) {
  return device.cls == cl::DeviceClass::kCpu && channels >= 16 && samples * 4 > elements;
}

// The parameters of a pooling op.
struct Pooling {
  const char* op;
  double scale;
  int64_t height, width;  // bins
  int64_t sampling_ratio = 0;
  bool aligned = false;
  bool by_position = false;
};

void check(const Pooling& how, const Tensor& image, const Tensor& rois) {
  TORCH_CHECK(image.dim() == 4, how.op, ": expected a 4D tensor, but got sizes ", image.sizes());
  TORCH_CHECK(rois.dim() == 2 && rois.size(1) == 5, "rois must have shape as Tensor[K, 5]");
  TORCH_CHECK(rois.device() == image.device(), how.op,
              ": expected all tensors on one device, but they are on ", image.device(), " and ",
              rois.device());
  TORCH_CHECK(image.scalar_type() == rois.scalar_type(), how.op,
              ": input should have the same type as rois, but they are ", image.scalar_type(), " and ",
              rois.scalar_type());
  TORCH_CHECK(how.height > 0 && how.width > 0, how.op, ": pooled sizes must be positive, but are ",
              how.height, " and ", how.width);
}

// `x`: the input or its gradient, `rois`: contiguous.
RoiParams params_of(const Pooling& how, const Tensor& x, const Tensor& rois, int64_t pooled_channels) {
  const int64_t bins = how.height * how.width;
  TORCH_CHECK(x.numel() < (int64_t{1} << 31) && rois.size(0) * pooled_channels * bins < (int64_t{1} << 31),
              how.op, ": tensors of 2^31 elements or more are not supported");
  RoiParams p{};
  p.x = buffer_of(x).offset, p.rois = buffer_of(rois).offset;
  std::copy_n(x.strides().begin(), 4, p.xs);
  p.scale[0] = static_cast<float>(how.scale);
  p.scale[1] = static_cast<float>(how.scale - double{p.scale[0]});
  p.bins = codegen::make_divider(static_cast<uint32_t>(bins));
  const auto i32 = [](int64_t n) { return static_cast<int32_t>(n); };
  p.samples = i32(x.size(0)), p.channels = i32(x.size(1)), p.height = i32(x.size(2)),
  p.width = i32(x.size(3));
  p.pooled_height = i32(how.height), p.pooled_width = i32(how.width), p.count = i32(rois.size(0));
  p.pooled_channels = i32(pooled_channels);
  p.sampling_ratio = i32(how.sampling_ratio), p.aligned = how.aligned, p.by_position = how.by_position;
  return p;
}

// The pooled boxes, and where `with_places` the places of maxima or the map of channels.
Two forward(const Pooling& how, const char* kernel, const Tensor& input_, const Tensor& rois_,
            bool with_places) {
  check(how, input_, rois_);
  const int64_t bins = how.height * how.width;
  Stream& stream = current_stream(input_.device().index());
  cl::Device& device = stream.device();
  const bool rearranged =
      !how.by_position && wants_channels_last(device, input_.size(1), rois_.size(0) * bins,
                                              input_.size(0) * input_.size(2) * input_.size(3));
  const Tensor input = rearranged ? input_.contiguous(at::MemoryFormat::ChannelsLast) : input_;
  TORCH_CHECK(!how.by_position || input.size(1) % bins == 0,
              "input channels must be a multiple of pooling height * pooling width");
  const int64_t channels = how.by_position ? input.size(1) / bins : input.size(1);
  const Tensor rois = rois_.contiguous();
  const Tensor out = at::empty({rois.size(0), channels, how.height, how.width}, input.options());
  const Tensor places = with_places ? at::empty(out.sizes(), input.options().dtype(at::kInt)) : Tensor();
  const auto type = float_type(input, how.op);
  if (out.numel() == 0) return {out, places};
  if (input.numel() == 0) return {out.zero_(), with_places ? places.fill_(-1) : places};
  RoiParams p = params_of(how, input, rois, channels);
  const Buffer to = buffer_of(out), marks = with_places ? buffer_of(places) : to;
  p.y = to.offset, p.places = with_places ? marks.offset : 0;
  constexpr int64_t kCpuChannels = 64, kWork = 64;
  const int64_t block = device.cls == cl::DeviceClass::kCpu ? kCpuChannels : 1;
  const int64_t blocks = (channels + block - 1) / block;
  p.blocks = codegen::make_divider(static_cast<uint32_t>(blocks));
  const Team team = make_team(device, rois.size(0) * bins * blocks, std::min(block, channels) * kWork, 1);
  fetch_kernel(device, "vision/roi.cl", kernel, codegen::compute_type(type), {type})
      .launch(stream.queue(), range_of(device, team), buffer_of(input).mem, buffer_of(rois).mem, to.mem,
              marks.mem, p, team);
  return {out, places};
}

// The gradient of an input of these sizes. `places`: of maxima, or undefined.
Tensor backward(const Pooling& how, const char* kernel, const Tensor& grad, const Tensor& rois_,
                const Tensor& places_, at::IntArrayRef sizes) {
  check(how, grad, rois_);
  const auto type = float_type(grad, how.op), compute = codegen::compute_type(type);
  Stream& stream = current_stream(grad.device().index());
  const bool rearranged =
      !how.by_position && !places_.defined() &&
      wants_channels_last(stream.device(), sizes[1], rois_.size(0) * how.height * how.width,
                          sizes[0] * sizes[2] * sizes[3]);
  const Tensor sums = at::empty(sizes, grad.options()
                                           .dtype(sum_type(grad))
                                           .memory_format(rearranged ? at::MemoryFormat::ChannelsLast
                                                                     : at::MemoryFormat::Contiguous))
                          .zero_();
  if (grad.numel() == 0 || sums.numel() == 0) return sums.to(grad.scalar_type());
  const Tensor rois = rois_.contiguous();
  RoiParams p = params_of(how, sums, rois, grad.size(1));
  p.y = buffer_of(grad).offset;
  std::copy_n(grad.strides().begin(), 4, p.ys);
  const OwnedWork work =
      own_work(stream.device(), sizes[0], grad.size(1), sizes[2], rois.size(0) * how.height * how.width, 0,
               codegen::size_of(compute) == 8, at::globalContext().deterministicAlgorithms());
  cl::Kernel& found =
      fetch_kernel(stream.device(), "vision/roi_backward.cl", kernel, compute, {compute, type}, work.options);
  const cl_mem to = buffer_of(sums).mem, boxes = buffer_of(rois).mem, from = buffer_of(grad).mem;
  if (places_.defined()) {
    TORCH_CHECK(places_.scalar_type() == at::kInt && places_.sizes() == grad.sizes(), how.op,
                ": expected int32 places of the gradient's sizes");
    const Tensor places = places_.contiguous();
    p.places = buffer_of(places).offset;
    found.launch(stream.queue(), work.range, to, boxes, from, buffer_of(places).mem, p, work.owners);
  } else {
    found.launch(stream.queue(), work.range, to, boxes, from, p, work.owners);
  }
  return sums.contiguous().to(grad.scalar_type());
}

Tensor roi_align(const Tensor& input, const Tensor& rois, double scale, int64_t height, int64_t width,
                 int64_t ratio, bool aligned) {
  return std::get<0>(
      forward({"roi_align", scale, height, width, ratio, aligned}, "roi_align", input, rois, false));
}
Tensor roi_align_backward(const Tensor& grad, const Tensor& rois, double scale, int64_t height, int64_t width,
                          int64_t batch, int64_t channels, int64_t in_height, int64_t in_width, int64_t ratio,
                          bool aligned) {
  return backward({"roi_align", scale, height, width, ratio, aligned}, "roi_align_backward", grad, rois, {},
                  {batch, channels, in_height, in_width});
}

Two roi_pool(const Tensor& input, const Tensor& rois, double scale, int64_t height, int64_t width) {
  return forward({"roi_pool", scale, height, width}, "roi_max", input, rois, true);
}
Tensor roi_pool_backward(const Tensor& grad, const Tensor& rois, const Tensor& argmax, double scale,
                         int64_t height, int64_t width, int64_t batch, int64_t channels, int64_t in_height,
                         int64_t in_width) {
  return backward({"roi_pool", scale, height, width}, "roi_max_backward", grad, rois, argmax,
                  {batch, channels, in_height, in_width});
}

Two ps_roi_align(const Tensor& input, const Tensor& rois, double scale, int64_t height, int64_t width,
                 int64_t ratio) {
  return forward({"ps_roi_align", scale, height, width, ratio, true, true}, "roi_align", input, rois, true);
}
// The channel map is not used: a bin's channels follow from its place.
Tensor ps_roi_align_backward(const Tensor& grad, const Tensor& rois, const Tensor&, double scale,
                             int64_t height, int64_t width, int64_t ratio, int64_t batch, int64_t channels,
                             int64_t in_height, int64_t in_width) {
  return backward({"ps_roi_align", scale, height, width, ratio, true, true}, "roi_align_backward", grad, rois,
                  {}, {batch, channels, in_height, in_width});
}

Two ps_roi_pool(const Tensor& input, const Tensor& rois, double scale, int64_t height, int64_t width) {
  return forward({"ps_roi_pool", scale, height, width, 0, false, true}, "roi_average", input, rois, true);
}
Tensor ps_roi_pool_backward(const Tensor& grad, const Tensor& rois, const Tensor&, double scale,
                            int64_t height, int64_t width, int64_t batch, int64_t channels, int64_t in_height,
                            int64_t in_width) {
  return backward({"ps_roi_pool", scale, height, width, 0, false, true}, "roi_average_backward", grad, rois,
                  {}, {batch, channels, in_height, in_width});
}

}  // namespace

TORCH_LIBRARY_IMPL(torchvision, PrivateUse1, m) {
  m.impl("roi_align", roi_align);
  m.impl("_roi_align_backward", roi_align_backward);
  m.impl("roi_pool", roi_pool);
  m.impl("_roi_pool_backward", roi_pool_backward);
  m.impl("ps_roi_align", ps_roi_align);
  m.impl("_ps_roi_align_backward", ps_roi_align_backward);
  m.impl("ps_roi_pool", ps_roi_pool);
  m.impl("_ps_roi_pool_backward", ps_roi_pool_backward);
}

}  // namespace dlb::vision
