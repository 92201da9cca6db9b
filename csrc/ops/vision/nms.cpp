// torchvision's non-maximum suppression. batched_nms() is made of it.
#include <ATen/ops/empty.h>
#include <ATen/ops/sort.h>
#include <torch/library.h>

#include <cmath>

#include "ops/vision/vision.h"
#include "runtime/fetch_kernel.h"

namespace dlb::vision {
namespace {

using at::Tensor;

// The greatest number of the compute type that is not above `threshold`: it compares to others as `threshold`
// does.
template <class Real>
Real floor_of(double threshold) {
  const auto rounded = static_cast<Real>(threshold);
  return double{rounded} > threshold ? std::nextafter(rounded, -std::numeric_limits<Real>::infinity())
                                     : rounded;
}

// Launches with the threshold as the last argument, in the compute type.
template <class... Args>
void launch(cl::Kernel& kernel, Stream& stream, const cl::Range& range, bool wide, double threshold,
            const Args&... args) {
  if (wide)
    kernel.launch(stream.queue(), range, args..., floor_of<double>(threshold));
  else
    kernel.launch(stream.queue(), range, args..., floor_of<float>(threshold));
}

void check(const Tensor& dets, const Tensor& scores) {
  TORCH_CHECK(dets.dim() == 2, "boxes should be a 2d tensor, got ", dets.dim(), "D");
  TORCH_CHECK(dets.size(1) == 4, "boxes should have 4 elements in dimension 1, got ", dets.size(1));
  TORCH_CHECK(scores.dim() == 1, "scores should be a 1d tensor, got ", scores.dim(), "D");
  TORCH_CHECK(dets.size(0) == scores.size(0), "boxes and scores should have same number of elements in ",
              "dimension 0, got ", dets.size(0), " and ", scores.size(0));
  TORCH_CHECK(dets.scalar_type() == scores.scalar_type(), "dets should have the same type as scores");
  TORCH_CHECK(dets.device() == scores.device(), "nms: boxes are on ", dets.device(), ", but scores on ",
              scores.device());
}

// The places of the boxes that are kept, best first, and at the end, behind room for all, their number.
Tensor suppress(const Tensor& dets, const Tensor& scores, double threshold) {
  const Tensor order =
      std::get<1>(at::sort(scores, /*stable=*/true, /*dim=*/0, /*descending=*/true)).contiguous();
  const Tensor boxes = dets.index_select(0, order).to(sum_type(dets)).t().contiguous();
  const auto type = dtype_of(boxes.scalar_type(), "nms");
  const auto n = static_cast<int32_t>(order.numel());
  const Tensor kept = at::empty({n + 1}, order.options());
  const bool wide = boxes.scalar_type() == at::kDouble;
  Stream& stream = current_stream(dets.device().index());
  cl::Device& device = stream.device();
  const Buffer from = buffer_of(boxes), ranks = buffer_of(order), to = buffer_of(kept);
  if (device.cls == cl::DeviceClass::kCpu) {
    const Tensor areas = at::empty({n}, boxes.options()),
                 gone = at::empty({n}, boxes.options().dtype(at::kInt));
    const Buffer a = buffer_of(areas), g = buffer_of(gone);
    launch(fetch_kernel(device, "vision/nms.cl", "nms_greedy", type, {type}), stream, cl::Range::linear(1, 1),
           wide, threshold, from.mem, from.offset, ranks.mem, ranks.offset, a.mem, a.offset, g.mem, g.offset,
           to.mem, to.offset, n);
    return kept;
  }
  constexpr int64_t kWord = 64;
  const int64_t words = (n + kWord - 1) / kWord;
  const Tensor masks = at::empty({n, words}, order.options()), gone = at::empty({words}, order.options());
  const Buffer m = buffer_of(masks), g = buffer_of(gone);
  launch(fetch_kernel(device, "vision/nms.cl", "nms_mask", type, {type}), stream,
         cl::Range::linear(static_cast<size_t>(words * words), kWord), wide, threshold, from.mem, from.offset,
         m.mem, m.offset, n);
  fetch_kernel(device, "vision/nms.cl", "nms_scan", type, {type})
      .launch(stream.queue(), cl::Range::linear(1, 256), m.mem, m.offset, ranks.mem, ranks.offset, g.mem,
              g.offset, to.mem, to.offset, n);
  return kept;
}

Tensor nms(const Tensor& dets, const Tensor& scores, double threshold) {
  check(dets, scores);
  float_type(dets, "nms");
  if (dets.numel() == 0) return at::empty({0}, dets.options().dtype(at::kLong));
  TORCH_CHECK(dets.size(0) < (int64_t{1} << 30), "nms: more than 2^30 boxes are not supported");
  const Tensor kept = suppress(dets, scores, threshold);
  return kept.narrow(0, 0, kept.select(0, -1).item<int64_t>());
}

}  // namespace

TORCH_LIBRARY_IMPL(torchvision, PrivateUse1, m) {
  m.impl("nms", nms);
}

}  // namespace dlb::vision
