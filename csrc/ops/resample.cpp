// Resampling with antialiasing, and of bytes.
#include "ops/resample.h"

#include <ATen/ops/_upsample_bicubic2d_aa_backward_meta.h>
#include <ATen/ops/_upsample_bicubic2d_aa_meta.h>
#include <ATen/ops/_upsample_bilinear2d_aa_backward_meta.h>
#include <ATen/ops/_upsample_bilinear2d_aa_meta.h>
#include <ATen/ops/empty.h>
#if __has_include(<ATen/ops/_upsample_lanczos2d_aa_meta.h>)
#include <ATen/ops/_upsample_lanczos2d_aa_backward_meta.h>
#include <ATen/ops/_upsample_lanczos2d_aa_meta.h>
#define DLB_HAS_LANCZOS
#endif
#include <torch/library.h>

#include <algorithm>
#include <cmath>

#include "codegen/pointwise.h"
#include "ops/common/structured.h"
#include "primitives/common/split.h"
#include "runtime/fetch_kernel.h"
#include "runtime/tensor.h"

namespace dlb {
namespace {

using at::IntArrayRef;
using at::Tensor;
using codegen::DType;
using params::ResampleAxis;
using Scale = std::optional<double>;

int32_t i32(int64_t n) {
  return static_cast<int32_t>(n);
}

// Inputs of an output, at most.
int32_t most_taps(const Resampling& how, double step, int64_t in) {
  const double half_size = how.filter == Filter::Linear ? 1 : how.filter == Filter::Cubic ? 2 : 3;
  const double support = how.antialias ? half_size * std::max(step, 1.0) : half_size;
  return i32(std::min<int64_t>(static_cast<int64_t>(std::ceil(std::min(support, 1e9))) * 2 + 1, in));
}

// The tables of both axes, of H first, on the device.
struct Tables {
  params::ResampleTable p{};
  Tensor bounds, weights;  // weights of bytes: int32, with the numbers of binary places behind them
  int32_t places = 0;

  Tables(const Resampling& how, const Tensor& x, const Tensor& y, DType type, DType compute) {
    p.filter = static_cast<int32_t>(how.filter), p.antialias = how.antialias, p.align = how.align_corners;
    int64_t bound = 0, weight = 0;
    for (size_t i = 0; i < 2; ++i) {
      const int64_t dim = static_cast<int64_t>(i) + 2;
      ResampleAxis& axis = p.axis[i];
      axis.in = i32(x.size(dim)), axis.out = i32(y.size(dim));
      axis.taps = most_taps(how, how.steps[i], x.size(dim));
      // Kernels for bytes take eight weights at a time; those past an output's own are zero.
      if (type == DType::U8) axis.taps = (axis.taps + 7) / 8 * 8;
      axis.bounds = bound, axis.weights = weight;
      double rest = how.steps[i];
      for (float& part : axis.scale) rest -= part = static_cast<float>(rest);
      bound += 2 * int64_t{axis.out}, weight += int64_t{axis.out} * axis.taps;
    }
    places = i32(weight);
    bounds = at::empty({bound}, x.options().dtype(at::kInt).memory_format(std::nullopt));
    make(x, type, compute, weight);
  }

 private:
  void make(const Tensor& x, DType type, DType compute, int64_t weight_count) {
    Stream& stream = current_stream(x.device().index());
    cl::Device& device = stream.device();
    const bool bytes = type == DType::U8;
    const DType real = bytes ? (device.fp64 ? DType::F64 : DType::F32) : compute;
    const Tensor reals =
        at::empty({weight_count}, bounds.options().dtype(real == DType::F64 ? at::kDouble : at::kFloat));
    const Buffer to = buffer_of(bounds), table = buffer_of(reals);
    params::ResampleTable placed = p;
    for (ResampleAxis& axis : placed.axis) axis.bounds += to.offset, axis.weights += table.offset;
    const size_t outputs = static_cast<size_t>(p.axis[0].out) + static_cast<size_t>(p.axis[1].out);
    const bool cpu = device.cls == cl::DeviceClass::kCpu;
    const Split split = split_work(device, outputs, 512);
    placed.per_item = i32(split.per_item);
    fetch_kernel(device, "upsample/resample_table.cl", "resample_table", real, {})
        .launch(stream.queue(), split.range, to.mem, table.mem, placed);
    weights = reals;
    if (!bytes) return;
    weights = at::empty({weight_count + 2}, bounds.options());
    const Buffer integers = buffer_of(weights);
    for (ResampleAxis& axis : placed.axis) axis.weights -= table.offset;
    fetch_kernel(device, "upsample/resample_table.cl", "resample_quantise", real, {})
        .launch(stream.queue(), cl::Range::linear(2, cpu ? 1 : 64), to.mem, table.mem, table.offset,
                integers.mem, integers.offset, places, placed);
  }
};

// One pass along axis `which` of x and y, which lie alike: [outer, axis, inner] by `channels_last`.
void run_pass(bool backward, const Tensor& x, const Tensor& y, const Tables& tables, size_t which,
              bool channels_last, DType compute) {
  Stream& stream = current_stream(x.device().index());
  cl::Device& device = stream.device();
  const bool cpu = device.cls == cl::DeviceClass::kCpu;
  const Tensor &written = backward ? x : y, &read = backward ? y : x;
  const int64_t channels = x.size(1);
  const int64_t inner = (channels_last ? channels : 1) * (which == 0 ? written.size(3) : 1);
  const int64_t length = written.size(static_cast<int64_t>(which) + 2);
  const int64_t outer = written.numel() / (inner * length);
  const Buffer from = buffer_of(x), to = buffer_of(y), bounds = buffer_of(tables.bounds),
               weights = buffer_of(tables.weights);
  params::ResamplePass p{};
  p.x = from.offset, p.y = to.offset, p.axis = tables.p.axis[which];
  p.axis.bounds += bounds.offset, p.axis.weights += weights.offset;
  p.precision = i32(weights.offset) + tables.places + i32(static_cast<int64_t>(which));
  constexpr int64_t kLanes = 64;
  // CPUs take lines along the axis where nothing lies beside it: forward in blocks of outputs, backward
  // whole.
  const bool lines =
      cpu && inner <= (written.scalar_type() == at::kByte ? int64_t{params::BYTES_OF_PIXEL} : 1);
  const bool whole = lines && backward;
  const int64_t lanes = cpu ? kLanes : 1, line = lines ? length : inner;
  const int64_t blocks = whole ? 1 : (line + lanes - 1) / lanes, rows = outer * blocks * (lines ? 1 : length);
  p.blocks = codegen::make_divider(static_cast<uint32_t>(blocks));
  p.length = codegen::make_divider(static_cast<uint32_t>(length));
  p.inner = i32(inner), p.rows = static_cast<uint32_t>(rows);
  const int64_t work = (whole ? length : std::min(lanes, line)) * p.axis.taps;
  const Split split = split_work(device, p.rows, static_cast<uint32_t>(std::max<int64_t>(1, 16384 / work)));
  p.per_item = split.per_item;
  const DType read_type = dtype_of(read.scalar_type(), "resample"),
              written_type = dtype_of(written.scalar_type(), "resample");
  fetch_kernel(device, "upsample/resample.cl",
               whole      ? "resample_backward_rows"
               : backward ? "resample_backward"
                          : "resample",
               compute, {read_type, written_type}, written_type == DType::U8 ? "-DBYTES" : "")
      .launch(stream.queue(), split.range, from.mem, to.mem, bounds.mem, weights.mem, p);
}

}  // namespace

void resample(bool backward, const Tensor& x_, const Tensor& y_, const Resampling& how) {
  if (x_.numel() == 0 || y_.numel() == 0) return;
  const Tensor &written_ = backward ? x_ : y_, &read_ = backward ? y_ : x_;
  const auto type = dtype_of(x_.scalar_type(), "upsample");
  check_device_supports(current_stream(x_.device().index()).device(), type, "upsample");
  const DType compute = type == DType::U8 ? DType::I32 : codegen::compute_type(type);
  // Both lie as the one that is written, if that is one of the two formats.
  const at::MemoryFormat format = written_.suggest_memory_format();
  const bool channels_last = format == at::MemoryFormat::ChannelsLast && written_.size(1) > 1;
  const Tensor read = read_.contiguous(format);
  const Tensor written = written_.is_contiguous(format)
                             ? written_
                             : at::empty(written_.sizes(), written_.options().memory_format(format));
  const Tensor &x = backward ? written : read, &y = backward ? read : written;
  TORCH_CHECK(std::max(x.numel(), y.numel()) * 2 < (int64_t{1} << 31),
              "upsample: tensors of 2^30 elements or more are not supported here");
  const Tables tables(how, x, y, type, compute);
  // Along W first, then H, and backward the other way round; sums of half precision are kept in float
  // between.
  const at::ScalarType between = type == DType::U8       ? at::kByte
                                 : compute == DType::F64 ? at::kDouble
                                                         : at::kFloat;
  const Tensor middle = at::empty({x.size(0), x.size(1), read.size(2), written.size(3)},
                                  x.options().dtype(between).memory_format(format));
  if (backward) {
    run_pass(true, middle, y, tables, 1, channels_last, compute);
    run_pass(true, x, middle, tables, 0, channels_last, compute);
  } else {
    run_pass(false, x, middle, tables, 1, channels_last, compute);
    run_pass(false, middle, y, tables, 0, channels_last, compute);
  }
  if (!written.is_same(written_)) written_.copy_(written);
}

namespace {

double step_of(int64_t in, int64_t out, bool align_corners, Scale scale) {
  if (align_corners) return out > 1 ? static_cast<double>(in - 1) / static_cast<double>(out - 1) : 0;
  return scale && *scale > 0 ? 1.0 / *scale : static_cast<double>(in) / static_cast<double>(out);
}

void run(bool backward, Filter filter, const Tensor& x, const Tensor& y, bool align_corners, Scale scale_h,
         Scale scale_w) {
  TORCH_CHECK_NOT_IMPLEMENTED(x.is_floating_point() || (x.scalar_type() == at::kByte && !backward),
                              "\"upsample_aa\" not implemented for '", c10::toString(x.scalar_type()), "'");
  resample(backward, x, y,
           {filter,
            true,
            align_corners,
            {step_of(x.size(2), y.size(2), align_corners, scale_h),
             step_of(x.size(3), y.size(3), align_corners, scale_w)}});
}

template <class Meta, Filter F>
Tensor& antialiased(const Tensor& self, IntArrayRef size, bool align_corners, Scale scale_h, Scale scale_w,
                    Tensor& out) {
  OutOp<Meta>(out).meta(self, size, align_corners, scale_h, scale_w);
  run(false, F, self, out, align_corners, scale_h, scale_w);
  return out;
}
template <class Meta, Filter F>
Tensor& antialiased_backward(const Tensor& grad, IntArrayRef size, IntArrayRef input_size, bool align_corners,
                             Scale scale_h, Scale scale_w, Tensor& grad_input) {
  OutOp<Meta>(grad_input).meta(grad, size, input_size, align_corners, scale_h, scale_w);
  run(true, F, grad_input, grad, align_corners, scale_h, scale_w);
  return grad_input;
}

}  // namespace

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  using namespace at::meta;
  m.impl("_upsample_bilinear2d_aa.out", antialiased<structured__upsample_bilinear2d_aa, Filter::Linear>);
  m.impl("_upsample_bicubic2d_aa.out", antialiased<structured__upsample_bicubic2d_aa, Filter::Cubic>);
  m.impl("_upsample_bilinear2d_aa_backward.grad_input",
         antialiased_backward<structured__upsample_bilinear2d_aa_backward, Filter::Linear>);
  m.impl("_upsample_bicubic2d_aa_backward.grad_input",
         antialiased_backward<structured__upsample_bicubic2d_aa_backward, Filter::Cubic>);
#ifdef DLB_HAS_LANCZOS
  m.impl("_upsample_lanczos2d_aa.out", antialiased<structured__upsample_lanczos2d_aa, Filter::Lanczos>);
  m.impl("_upsample_lanczos2d_aa_backward.grad_input",
         antialiased_backward<structured__upsample_lanczos2d_aa_backward, Filter::Lanczos>);
#endif
}

}  // namespace dlb
