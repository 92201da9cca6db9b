// Resizing of 1, 2 and 3 spatial axes: nearest, nearest-exact, (bi-, tri-)linear, bicubic.
#include <ATen/ops/_upsample_nearest_exact1d_backward_meta.h>
#include <ATen/ops/_upsample_nearest_exact1d_meta.h>
#include <ATen/ops/_upsample_nearest_exact2d_backward_meta.h>
#include <ATen/ops/_upsample_nearest_exact2d_meta.h>
#include <ATen/ops/_upsample_nearest_exact3d_backward_meta.h>
#include <ATen/ops/_upsample_nearest_exact3d_meta.h>
#include <ATen/ops/upsample_bicubic2d_backward_meta.h>
#include <ATen/ops/upsample_bicubic2d_meta.h>
#include <ATen/ops/upsample_bilinear2d_backward_meta.h>
#include <ATen/ops/upsample_bilinear2d_meta.h>
#include <ATen/ops/upsample_linear1d_backward_meta.h>
#include <ATen/ops/upsample_linear1d_meta.h>
#include <ATen/ops/upsample_nearest1d_backward_meta.h>
#include <ATen/ops/upsample_nearest1d_meta.h>
#include <ATen/ops/upsample_nearest2d_backward_meta.h>
#include <ATen/ops/upsample_nearest2d_meta.h>
#include <ATen/ops/upsample_nearest3d_backward_meta.h>
#include <ATen/ops/upsample_nearest3d_meta.h>
#include <ATen/ops/upsample_trilinear3d_backward_meta.h>
#include <ATen/ops/upsample_trilinear3d_meta.h>
#include <torch/library.h>

#include "kernels/upsample/params.h"
#include "ops/common/structured.h"
#include "ops/resample.h"
#include "primitives/common/lines.h"
#include "primitives/common/split.h"
#include "runtime/fetch_kernel.h"
#include "runtime/tensor.h"

namespace dlb {
namespace {

using at::IntArrayRef;
using at::Tensor;
using Scale = std::optional<double>;

enum class Mode : int32_t {
  Nearest = params::RESIZE_NEAREST,
  NearestExact = params::RESIZE_NEAREST_EXACT,
  Linear = params::RESIZE_LINEAR,
  Cubic = params::RESIZE_CUBIC
};

void set_scale(params::ResizeAxis& axis, double scale) {
  for (float& part : axis.scale) scale -= part = static_cast<float>(scale);
}

// Whether the CPU finds the nearest inputs in its kernel for channels that lie together, which it also takes
// for small images. That one rounds the scale to a float, and for `nearest` it does not heed a given scale
// where the size stays or doubles. `seen`: the input, or the output's gradient.
bool rounds_scale(const Tensor& seen, const Tensor& y, int axes) {
  if (axes == 1) return false;
  const auto together = axes == 2 ? at::MemoryFormat::ChannelsLast : at::MemoryFormat::ChannelsLast3d;
  if (seen.size(1) > 3 && seen.is_contiguous(together)) return true;
  return axes == 2 && y.size(2) + y.size(3) <= 128;
}

// Input positions per output position, for the scale that counts. As on the CPU a given one is not heeded by
// linear interpolation where the size stays, but by all others, save for what rounds_scale() tells. (The
// CPU's gradient of `nearest` does not heed it there either, nor where the size doubles, and is that of
// another function; here it is the gradient of what forward computes.)
double step(Mode mode, int64_t in, int64_t out, bool align_corners, Scale scale) {
  if (mode == Mode::Linear && in == out) return 1;
  const bool interpolates = mode == Mode::Linear || mode == Mode::Cubic;
  if (interpolates && align_corners)
    return out > 1 ? static_cast<double>(in - 1) / static_cast<double>(out - 1) : 0;
  if (scale && *scale > 0) return 1.0 / *scale;
  return static_cast<double>(in) / static_cast<double>(out);
}

// Interpolates on a GPU where a row's neighbours lie together: each work-item as many planes as leave enough
// work-items, since taps and weights are the same for all.
void resize_planes(Stream& stream, const params::ResizeParams& given, const View5& xs, const View5& ys,
                   codegen::DType type, int axes, const Buffer& in, const Buffer& out) {
  constexpr uint64_t kMostPlanes = 8, kItemsPerUnit = 4096;
  const auto divider = [](int64_t n) { return codegen::make_divider(static_cast<uint32_t>(n)); };
  params::ResizePlanes p{};
  p.x = given.x, p.y = given.y;
  std::copy(xs.stride.begin(), xs.stride.end(), p.xs), std::copy(ys.stride.begin(), ys.stride.end(), p.ys);
  std::copy(std::begin(given.axis), std::end(given.axis), p.axis);
  p.width = divider(ys.size[4]), p.height = divider(ys.size[3]), p.depth = divider(ys.size[2]);
  p.channels = divider(ys.size[1]);
  const auto planes = static_cast<uint64_t>(ys.size[0] * ys.size[1]);
  const auto positions = static_cast<uint64_t>(ys.size[2] * ys.size[3] * ys.size[4]);
  const uint64_t enough = kItemsPerUnit * stream.device().compute_units;
  const uint64_t each = std::clamp<uint64_t>(planes * positions / enough, 1, kMostPlanes);
  p.planes = static_cast<uint32_t>(planes), p.per_item = static_cast<uint32_t>(each);
  p.items = static_cast<uint32_t>((planes + each - 1) / each * positions);
  constexpr const char* kOptions[2][3] = {{"-DTAPS=2 -DAXES=1", "-DTAPS=2 -DAXES=2", "-DTAPS=2 -DAXES=3"},
                                          {"-DTAPS=4 -DAXES=1", "-DTAPS=4 -DAXES=2", "-DTAPS=4 -DAXES=3"}};
  const bool cubic = given.axis[2].mode == params::RESIZE_CUBIC;
  fetch_kernel(stream.device(), "upsample/planes.cl", "resize_planes", codegen::compute_type(type), {type},
               kOptions[cubic][axes - 1])
      .launch(stream.queue(), split_work(stream.device(), p.items).range, in.mem, out.mem, p);
}

// x: the input or its gradient, y: the output or its gradient; sizes [N, C, spatial...].
void run(bool backward, Mode mode, const Tensor& x, const Tensor& y, bool align_corners,
         std::initializer_list<Scale> scales) {
  const char* op = backward ? "upsample_backward" : "upsample";
  if (x.numel() == 0 || y.numel() == 0) return;
  const int axes = static_cast<int>(scales.size());
  Stream& stream = current_stream(x.device().index());
  cl::Device& device = stream.device();
  const auto type = dtype_of(x.scalar_type(), op);
  check_device_supports(device, type, op);
  TORCH_CHECK(x.numel() < (int64_t{1} << 31) && y.numel() < (int64_t{1} << 31), op,
              ": tensors of 2^31 elements or more are not supported");
  const View5 xs(x, axes), ys(y, axes);
  const Buffer in = buffer_of(x), out = buffer_of(y);
  params::ResizeParams p{in.offset, out.offset, lines_of(xs, ys), {}, 0};
  for (params::ResizeAxis& axis : p.axis) axis = {1, 1, 0, 0, {1, 0, 0}};
  const bool interpolates = mode == Mode::Linear || mode == Mode::Cubic;
  const bool rounds = !interpolates && rounds_scale(backward ? y : x, y, axes);
  for (size_t i = 0; i < scales.size(); ++i) {
    const size_t at = 3 - scales.size() + i;
    const int64_t size = xs.size[at + 2], wanted = ys.size[at + 2];
    const bool given = !(rounds && mode == Mode::Nearest && (wanted == size || wanted == 2 * size));
    const double s = step(mode, size, wanted, align_corners, given ? scales.begin()[i] : std::nullopt);
    p.axis[at] = {static_cast<int32_t>(size),
                  static_cast<int32_t>(wanted),
                  static_cast<int32_t>(mode),
                  align_corners,
                  {}};
    set_scale(p.axis[at], rounds ? static_cast<float>(s) : s);
  }
  if (!backward && interpolates && device.cls == cl::DeviceClass::kGpu && !has_channels_inside(ys))
    return resize_planes(stream, p, xs, ys, type, axes, in, out);
  // Kernels that interpolate hold weights of all neighbours, which do not fit a GPU's registers.
  const bool copies = !backward && (mode == Mode::Nearest || mode == Mode::NearestExact);
  const int32_t most = device.cls == cl::DeviceClass::kCpu ? kMostLineBlock : copies ? kGpuBlock : 1;
  const Team team = walk_lines(p.lines, device, backward ? xs : ys, !backward, 16, most);
  fetch_kernel(device, "upsample/upsample.cl", backward ? "resize_backward" : "resize",
               codegen::compute_type(type), {type}, line_options(p.lines, device, type))
      .launch(stream.queue(), range_of(device, team), in.mem, out.mem, p, team);
}

void check_float(const Tensor& self, const char* op) {
  TORCH_CHECK_NOT_IMPLEMENTED(self.is_floating_point(), "\"", op, "\" not implemented for '",
                              c10::toString(self.scalar_type()), "'");
}

// Interpolated bytes are rounded in a way of their own.
void resample_bytes(Mode mode, const Tensor& x, const Tensor& y, bool align_corners,
                    std::initializer_list<Scale> scales) {
  const auto step_of = [&](int64_t dim, Scale scale) {
    return step(mode, x.size(dim), y.size(dim), align_corners, scale);
  };
  resample(false, x, y,
           {mode == Mode::Cubic ? Filter::Cubic : Filter::Linear,
            false,
            align_corners,
            {step_of(2, scales.begin()[0]), step_of(3, scales.begin()[1])}});
}

// The ops of one mode and number of axes; Scales: an optional scale per axis.
template <class Meta, class MetaBackward, Mode M, class... Scales>
struct Resize {
  static Tensor& plain(const Tensor& self, IntArrayRef size, Scales... scales, Tensor& out) {
    if (self.scalar_type() != at::kByte) check_float(self, "upsample");
    OutOp<Meta>(out).meta(self, size, scales...);
    run(false, M, self, out, false, {scales...});
    return out;
  }
  static Tensor& aligned(const Tensor& self, IntArrayRef size, bool align_corners, Scales... scales,
                         Tensor& out) {
    const bool bytes = sizeof...(Scales) == 2 && self.scalar_type() == at::kByte;
    if (!bytes) check_float(self, "upsample");
    OutOp<Meta>(out).meta(self, size, align_corners, scales...);
    if (bytes)
      resample_bytes(M, self, out, align_corners, {scales...});
    else
      run(false, M, self, out, align_corners, {scales...});
    return out;
  }
  static Tensor& plain_backward(const Tensor& grad, IntArrayRef size, IntArrayRef input_size,
                                Scales... scales, Tensor& grad_input) {
    OutOp<MetaBackward>(grad_input).meta(grad, size, input_size, scales...);
    run(true, M, grad_input, grad, false, {scales...});
    return grad_input;
  }
  static Tensor& aligned_backward(const Tensor& grad, IntArrayRef size, IntArrayRef input_size,
                                  bool align_corners, Scales... scales, Tensor& grad_input) {
    OutOp<MetaBackward>(grad_input).meta(grad, size, input_size, align_corners, scales...);
    run(true, M, grad_input, grad, align_corners, {scales...});
    return grad_input;
  }
};

template <class Ops>
void register_plain(torch::Library& m, const std::string& name) {
  m.impl((name + ".out").c_str(), &Ops::plain);
  m.impl((name + "_backward.grad_input").c_str(), &Ops::plain_backward);
}
template <class Ops>
void register_aligned(torch::Library& m, const std::string& name) {
  m.impl((name + ".out").c_str(), &Ops::aligned);
  m.impl((name + "_backward.grad_input").c_str(), &Ops::aligned_backward);
}

}  // namespace

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  using namespace at::meta;
  register_plain<
      Resize<structured_upsample_nearest1d, structured_upsample_nearest1d_backward, Mode::Nearest, Scale>>(
      m, "upsample_nearest1d");
  register_plain<Resize<structured_upsample_nearest2d, structured_upsample_nearest2d_backward, Mode::Nearest,
                        Scale, Scale>>(m, "upsample_nearest2d");
  register_plain<Resize<structured_upsample_nearest3d, structured_upsample_nearest3d_backward, Mode::Nearest,
                        Scale, Scale, Scale>>(m, "upsample_nearest3d");
  register_plain<Resize<structured__upsample_nearest_exact1d, structured__upsample_nearest_exact1d_backward,
                        Mode::NearestExact, Scale>>(m, "_upsample_nearest_exact1d");
  register_plain<Resize<structured__upsample_nearest_exact2d, structured__upsample_nearest_exact2d_backward,
                        Mode::NearestExact, Scale, Scale>>(m, "_upsample_nearest_exact2d");
  register_plain<Resize<structured__upsample_nearest_exact3d, structured__upsample_nearest_exact3d_backward,
                        Mode::NearestExact, Scale, Scale, Scale>>(m, "_upsample_nearest_exact3d");
  register_aligned<
      Resize<structured_upsample_linear1d, structured_upsample_linear1d_backward, Mode::Linear, Scale>>(
      m, "upsample_linear1d");
  register_aligned<Resize<structured_upsample_bilinear2d, structured_upsample_bilinear2d_backward,
                          Mode::Linear, Scale, Scale>>(m, "upsample_bilinear2d");
  register_aligned<Resize<structured_upsample_trilinear3d, structured_upsample_trilinear3d_backward,
                          Mode::Linear, Scale, Scale, Scale>>(m, "upsample_trilinear3d");
  register_aligned<Resize<structured_upsample_bicubic2d, structured_upsample_bicubic2d_backward, Mode::Cubic,
                          Scale, Scale>>(m, "upsample_bicubic2d");
}

}  // namespace dlb
