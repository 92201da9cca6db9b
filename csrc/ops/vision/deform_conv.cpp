// torchvision's deformable convolution: what the filter's taps read goes to columns, of which a convolution
// of one element, with all of its solvers, makes the result.
#include <ATen/ops/convolution.h>
#include <ATen/ops/convolution_backward.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <torch/library.h>

#include <algorithm>

#include "codegen/pointwise.h"
#include "kernels/vision/params.h"
#include "ops/vision/vision.h"
#include "primitives/common/owners.h"
#include "primitives/common/split.h"
#include "runtime/fetch_kernel.h"

namespace dlb::vision {
namespace {

using at::Tensor;
using params::DeformParams;
using Pair = std::array<int64_t, 2>;

// The arguments of one call, of which all tensors but the input are contiguous.
struct Deform {
  Tensor input, weight, offset, mask, bias;
  Pair stride, pad, dilation;
  int64_t groups, offset_groups;
  bool use_mask;

  int64_t samples() const { return input.size(0); }
  int64_t channels() const { return input.size(1); }
  int64_t taps() const { return weight.size(2) * weight.size(3); }
  int64_t out(size_t axis) const {
    const int64_t at = static_cast<int64_t>(axis) + 2;
    return (input.size(at) + 2 * pad[axis] - (dilation[axis] * (weight.size(at) - 1) + 1)) / stride[axis] + 1;
  }
  // Images whose columns are made together.
  int64_t images_at_once() const {
    constexpr int64_t kMostElements = int64_t{1} << 26;
    return std::clamp<int64_t>(kMostElements / std::max<int64_t>(1, channels() * taps() * out(0) * out(1)), 1,
                               std::max<int64_t>(1, samples()));
  }
  void check() const;
  void check_places() const;
};

void Deform::check() const {
  for (const Tensor* t : {&input, &weight, &offset})
    TORCH_CHECK(t->dim() == 4, "deform_conv2d: expected 4D input, weight and offset, but got sizes ",
                t->sizes());
  TORCH_CHECK(!use_mask || mask.dim() == 4, "deform_conv2d: expected a 4D mask, but got sizes ",
              mask.sizes());
  for (const Tensor* t : {&weight, &offset, &mask, &bias}) {
    TORCH_CHECK(t->device() == input.device(), "deform_conv2d: expected all tensors on ", input.device(),
                ", but one is on ", t->device());
    TORCH_CHECK(t->scalar_type() == input.scalar_type(), "deform_conv2d: expected all tensors to have dtype ",
                input.scalar_type(), ", but one has ", t->scalar_type());
  }
  const auto positive = [](const Pair& pair) { return pair[0] > 0 && pair[1] > 0; };
  TORCH_CHECK(positive({weight.size(2), weight.size(3)}), "weight_h: ", weight.size(2),
              " weight_w: ", weight.size(3));
  TORCH_CHECK(positive(stride), "stride_h: ", stride[0], " stride_w: ", stride[1]);
  TORCH_CHECK(pad[0] >= 0 && pad[1] >= 0, "pad_h: ", pad[0], " pad_w: ", pad[1]);
  TORCH_CHECK(positive(dilation), "dil_h: ", dilation[0], " dil_w: ", dilation[1]);
  TORCH_CHECK(groups > 0 && offset_groups > 0,
              "deform_conv2d: groups and offset groups must be positive, but are ", groups, " and ",
              offset_groups);
  TORCH_CHECK(weight.size(1) * groups == channels() && weight.size(0) % groups == 0,
              "deform_conv2d: a weight of ", weight.sizes(), " in ", groups,
              " groups does not fit an input of ", input.sizes());
  TORCH_CHECK(channels() % offset_groups == 0, "deform_conv2d: ", channels(), " channels are no multiple of ",
              offset_groups, " offset groups");
  check_places();
}

// Sizes of offsets and masks.
void Deform::check_places() const {
  TORCH_CHECK(offset.size(1) == offset_groups * 2 * taps(),
              "offset.shape[1] is not valid: got: ", offset.size(1),
              " expected: ", offset_groups * 2 * taps());
  TORCH_CHECK(!use_mask || mask.size(1) == offset_groups * taps(),
              "mask.shape[1] is not valid: got: ", use_mask ? mask.size(1) : 0,
              " expected: ", offset_groups * taps());
  TORCH_CHECK(out(0) > 0 && out(1) > 0, "Calculated output size too small - out_h: ", out(0),
              " out_w: ", out(1));
  const auto check_one = [&](const Tensor& t, const char* name) {
    TORCH_CHECK(t.size(0) == samples(), "invalid batch size of ", name);
    TORCH_CHECK(t.size(2) == out(0) && t.size(3) == out(1), name, " output dims: (", t.size(2), ", ",
                t.size(3), ") - computed output dims: (", out(0), ", ", out(1), ")");
  };
  check_one(offset, "offset");
  if (use_mask) check_one(mask, "mask");
}

// The operands of the images [first, first + count).
struct Part {
  DeformParams p{};
  Tensor input, offset, mask;
  int64_t count;

  Part(const Deform& d, const Tensor& image, int64_t first, int64_t images)
      : input(image.narrow(0, first, images)),
        offset(d.offset.narrow(0, first, images)),
        mask(d.use_mask ? d.mask.narrow(0, first, images) : offset),
        count(images) {
    const auto divider = [](int64_t n) { return codegen::make_divider(static_cast<uint32_t>(n)); };
    const auto i32 = [](int64_t n) { return static_cast<int32_t>(n); };
    const int64_t positions = images * d.offset_groups * d.taps() * d.out(0) * d.out(1);
    int64_t span = 1;
    for (int64_t axis = 0; axis < 4; ++axis) span += (input.size(axis) - 1) * input.stride(axis);
    TORCH_CHECK(positions < (int64_t{1} << 31) && span < (int64_t{1} << 31),
                "deform_conv2d: tensors of 2^31 elements or more are not supported");
    p.x = buffer_of(input).offset, p.offset = buffer_of(offset).offset, p.mask = buffer_of(mask).offset;
    std::copy_n(input.strides().begin(), 4, p.xs);
    for (size_t i = 0; i < 2; ++i) {
      const int64_t at = static_cast<int64_t>(i) + 2;
      p.in[i] = i32(input.size(at)), p.out[i] = i32(d.out(i)), p.filter[i] = i32(d.weight.size(at));
      p.stride[i] = i32(d.stride[i]), p.pad[i] = i32(d.pad[i]), p.dilation[i] = i32(d.dilation[i]);
    }
    p.width = divider(d.out(1)), p.height = divider(d.out(0));
    p.taps = divider(d.taps()), p.groups = divider(d.offset_groups);
    p.channels = i32(d.channels()), p.use_mask = d.use_mask, p.positions = static_cast<uint32_t>(positions);
  }
};

Tensor columns_of(const Deform& d, Part& part) {
  const Tensor columns =
      at::empty({part.count, d.channels() * d.taps(), d.out(0), d.out(1)}, d.input.options());
  Stream& stream = current_stream(d.input.device().index());
  const auto type = dtype_of(d.input.scalar_type(), "deform_conv2d");
  const Split split = split_work(stream.device(), part.p.positions, 256);
  part.p.per_item = split.per_item;
  part.p.columns = buffer_of(columns).offset;
  fetch_kernel(stream.device(), "vision/deform.cl", "deform_columns", codegen::compute_type(type), {type})
      .launch(stream.queue(), split.range, buffer_of(part.input).mem, buffer_of(part.offset).mem,
              buffer_of(part.mask).mem, buffer_of(columns).mem, part.p);
  return columns;
}

Deform arguments_of(const Tensor& input, const Tensor& weight, const Tensor& offset, const Tensor& mask,
                    const Tensor& bias, Pair stride, Pair pad, Pair dilation, int64_t groups,
                    int64_t offset_groups, bool use_mask) {
  Deform d{input,
           weight.contiguous(),
           offset.contiguous(),
           mask.contiguous(),
           bias,
           stride,
           pad,
           dilation,
           groups,
           offset_groups,
           use_mask};
  float_type(input, "deform_conv2d");
  d.check();
  return d;
}

Tensor deform_conv2d(const Tensor& input, const Tensor& weight, const Tensor& offset, const Tensor& mask,
                     const Tensor& bias, int64_t stride_h, int64_t stride_w, int64_t pad_h, int64_t pad_w,
                     int64_t dilation_h, int64_t dilation_w, int64_t groups, int64_t offset_groups,
                     bool use_mask) {
  const Deform d = arguments_of(input, weight, offset, mask, bias, {stride_h, stride_w}, {pad_h, pad_w},
                                {dilation_h, dilation_w}, groups, offset_groups, use_mask);
  const int64_t step = d.images_at_once();
  const Tensor filter = d.weight.view({d.weight.size(0), -1, 1, 1});
  const auto product = [&](int64_t first) {
    Part part(d, d.input, first, std::min(step, d.samples() - first));
    return at::convolution(columns_of(d, part), filter, d.bias, {1, 1}, {0, 0}, {1, 1}, false, {0, 0},
                           groups);
  };
  if (d.samples() > 0 && d.samples() <= step) return product(0);
  Tensor out = at::empty({d.samples(), d.weight.size(0), d.out(0), d.out(1)}, input.options());
  for (int64_t first = 0; first < d.samples(); first += step)
    out.narrow(0, first, std::min(step, d.samples() - first)).copy_(product(first));
  return out;
}

// Gradients of a call. Those of the input are added up in `input`.
struct Gradients {
  Tensor input, weight, offset, mask;
};

void add_gradients(const Deform& d, const Tensor& grad, int64_t first, int64_t count, Gradients& sums) {
  Part part(d, d.input, first, count);
  const Tensor columns = columns_of(d, part), filter = d.weight.view({d.weight.size(0), -1, 1, 1});
  const auto [of_columns, of_filter, none] =
      at::convolution_backward(grad.narrow(0, first, count), columns, filter, std::nullopt, {1, 1}, {0, 0},
                               {1, 1}, false, {0, 0}, d.groups, {true, true, false});
  sums.weight.add_(of_filter.view_as(sums.weight));
  const Tensor gradient = of_columns.contiguous(), offset = sums.offset.narrow(0, first, count),
               mask = d.use_mask ? sums.mask.narrow(0, first, count) : offset;
  Stream& stream = current_stream(grad.device().index());
  cl::Device& device = stream.device();
  const auto type = dtype_of(grad.scalar_type(), "deform_conv2d"), compute = codegen::compute_type(type);
  DeformParams p = part.p;
  p.columns = buffer_of(gradient).offset;
  p.offset_grad = buffer_of(offset).offset, p.mask_grad = buffer_of(mask).offset;
  fetch_kernel(device, "vision/deform.cl", "deform_backward_places", compute, {type})
      .launch(stream.queue(), split_work(device, p.positions, 256).range, buffer_of(part.input).mem,
              buffer_of(part.offset).mem, buffer_of(part.mask).mem, buffer_of(gradient).mem,
              buffer_of(offset).mem, buffer_of(mask).mem, p);
  const Part target(d, sums.input, first, count);
  std::copy_n(target.p.xs, 4, p.xs);
  p.x = target.p.x;
  const OwnedWork work =
      own_work(device, count, d.channels(), p.in[0], p.positions, p.positions / count,
               codegen::size_of(compute) == 8, at::globalContext().deterministicAlgorithms());
  fetch_kernel(device, "vision/deform_backward.cl", "deform_backward_input", compute, {compute, type},
               work.options)
      .launch(stream.queue(), work.range, buffer_of(sums.input).mem, buffer_of(part.offset).mem,
              buffer_of(part.mask).mem, buffer_of(gradient).mem, p, work.owners);
}

std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor> deform_conv2d_backward(
    const Tensor& grad, const Tensor& input, const Tensor& weight, const Tensor& offset, const Tensor& mask,
    const Tensor& bias, int64_t stride_h, int64_t stride_w, int64_t pad_h, int64_t pad_w, int64_t dilation_h,
    int64_t dilation_w, int64_t groups, int64_t offset_groups, bool use_mask) {
  const Deform d = arguments_of(input, weight, offset, mask, bias, {stride_h, stride_w}, {pad_h, pad_w},
                                {dilation_h, dilation_w}, groups, offset_groups, use_mask);
  const std::array<int64_t, 4> sizes{d.samples(), d.weight.size(0), d.out(0), d.out(1)};
  TORCH_CHECK(grad.sizes() == at::IntArrayRef(sizes), "deform_conv2d: expected a gradient of ",
              at::IntArrayRef(sizes), ", but got ", grad.sizes());
  const auto zeros = [](const Tensor& t, at::ScalarType type) {
    return at::zeros(t.sizes(), t.options().dtype(type));
  };
  Gradients sums{zeros(input, sum_type(input)), zeros(weight, weight.scalar_type()),
                 at::empty(offset.sizes(), offset.options()),
                 use_mask ? at::empty(mask.sizes(), mask.options()) : zeros(mask, mask.scalar_type())};
  const int64_t step = d.images_at_once();
  if (d.input.numel() && grad.numel())
    for (int64_t first = 0; first < d.samples(); first += step)
      add_gradients(d, grad, first, std::min(step, d.samples() - first), sums);
  return {sums.input.to(input.scalar_type()), sums.weight, sums.offset, sums.mask,
          grad.sum({0, 2, 3}).expand_as(bias).contiguous()};
}

}  // namespace

TORCH_LIBRARY_IMPL(torchvision, PrivateUse1, m) {
  m.impl("deform_conv2d", deform_conv2d);
  m.impl("_deform_conv2d_backward", deform_conv2d_backward);
}

}  // namespace dlb::vision
