// Sampling images at the positions of a grid, in two and three dimensions, with both gradients.
#include <ATen/native/GridSamplerUtils.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <torch/library.h>

#include <algorithm>

#include "codegen/pointwise.h"
#include "kernels/vision/params.h"
#include "primitives/common/lines.h"
#include "primitives/common/owners.h"
#include "primitives/common/split.h"
#include "runtime/fetch_kernel.h"
#include "runtime/tensor.h"

namespace dlb {
namespace {

using at::Tensor;
using params::GridParams;

// The arguments of one call of a grid sampler.
struct Sampling {
  int64_t mode, padding;
  bool align;
};

void check(const Tensor& input, const Tensor& grid, const Sampling& how, int axes) {
  at::native::check_grid_sampler_common(input, grid);
  if (axes == 2)
    at::native::check_grid_sampler_2d(input, grid);
  else
    at::native::check_grid_sampler_3d(input, grid, how.mode);
  TORCH_CHECK(how.mode >= params::GRID_BILINEAR && how.mode <= params::GRID_BICUBIC,
              "grid_sampler(): unknown interpolation mode ", how.mode);
  TORCH_CHECK(how.padding >= params::GRID_ZEROS && how.padding <= params::GRID_REFLECTION,
              "grid_sampler(): unknown padding mode ", how.padding);
  TORCH_CHECK_NOT_IMPLEMENTED(input.is_floating_point(), "\"grid_sampler\" not implemented for '",
                              c10::toString(input.scalar_type()), "'");
  TORCH_CHECK(grid.scalar_type() == input.scalar_type(),
              "grid_sampler(): expected input and grid to have the same dtype, but input has ",
              input.scalar_type(), " and grid has ", grid.scalar_type());
}

// The number of elements that lie between a tensor's first and last.
int64_t extent_of(const Tensor& t) {
  int64_t extent = 1;
  for (int64_t d = 0; d < t.dim(); ++d) extent += (t.size(d) - 1) * t.stride(d);
  return extent;
}

// `x`: the input or its gradient, `y`: the output or its gradient.
GridParams params_of(const Tensor& x, const Tensor& y, const Tensor& grid, const Sampling& how, int axes) {
  for (const Tensor* t : {&x, &y, &grid})
    TORCH_CHECK(extent_of(*t) < (int64_t{1} << 31),
                "grid_sampler(): tensors that span 2^31 elements or more are not supported");
  const View5 xs(x, axes), ys(y, axes);
  GridParams p{};
  p.x = buffer_of(x).offset, p.y = buffer_of(y).offset, p.grid = buffer_of(grid).offset;
  std::copy(xs.stride.begin(), xs.stride.end(), p.xs);
  std::copy(ys.stride.begin(), ys.stride.end(), p.ys);
  p.gs[0] = grid.stride(0), p.gs[1] = axes == 3 ? grid.stride(1) : 0;
  p.gs[2] = grid.stride(-3), p.gs[3] = grid.stride(-2), p.gs[4] = grid.stride(-1);
  for (size_t i = 0; i < 3; ++i) {
    p.in[i] = static_cast<int32_t>(xs.size[2 + i]);
    p.out[i] = codegen::make_divider(static_cast<uint32_t>(ys.size[4 - i]));
  }
  p.positions = static_cast<uint32_t>(ys.size[0] * ys.size[2] * ys.size[3] * ys.size[4]);
  p.channels = static_cast<int32_t>(xs.size[1]);
  p.channel_parts = 1;
  p.padding = static_cast<int32_t>(how.padding), p.align = how.align;
  return p;
}

const char* options_of(int axes, int64_t mode) {
  switch (mode) {
    case params::GRID_BILINEAR:
      return axes == 2 ? "-DAXES=2 -DAXIS_TAPS=2" : "-DAXES=3 -DAXIS_TAPS=2";
    case params::GRID_NEAREST:
      return axes == 2 ? "-DAXES=2 -DAXIS_TAPS=1" : "-DAXES=3 -DAXIS_TAPS=1";
    default:
      return "-DAXES=2 -DAXIS_TAPS=4";
  }
}

codegen::DType checked_type(const Tensor& t, Stream& stream) {
  const auto type = dtype_of(t.scalar_type(), "grid_sampler");
  check_device_supports(stream.device(), type, "grid_sampler");
  return type;
}

template <int Axes>
Tensor grid_sample(const Tensor& input, const Tensor& grid, int64_t mode, int64_t padding, bool align) {
  const Sampling how{mode, padding, align};
  check(input, grid, how, Axes);
  c10::SmallVector<int64_t, 5> sizes{input.size(0), input.size(1)};
  for (int64_t d = 1; d <= Axes; ++d) sizes.push_back(grid.size(d));
  Tensor out = at::empty(sizes, input.options());
  if (out.numel() == 0) return out;
  Stream& stream = current_stream(input.device().index());
  cl::Device& device = stream.device();
  const auto type = checked_type(input, stream);
  GridParams p = params_of(input, out, grid, how, Axes);
  const bool cpu = device.cls == cl::DeviceClass::kCpu;
  const auto work = static_cast<uint32_t>(std::clamp<int64_t>(input.size(1) << Axes, 1, 8192));
  constexpr uint32_t kEnoughItems = 1 << 16;
  if (!cpu)
    p.channel_parts = static_cast<int32_t>(
        std::clamp<uint32_t>(kEnoughItems / p.positions, 1, static_cast<uint32_t>(input.size(1))));
  const Split split =
      split_work(device, cpu ? p.positions : uint64_t{p.positions} * static_cast<uint32_t>(p.channel_parts),
                 std::max(64u, 16384 / work));
  p.per_item = split.per_item;
  fetch_kernel(device, "vision/grid.cl", "grid_sample", codegen::compute_type(type), {type},
               options_of(Axes, mode))
      .launch(stream.queue(), split.range, buffer_of(input).mem, buffer_of(grid).mem, buffer_of(out).mem, p);
  return out;
}

// Adds into a contiguous tensor of the compute type.
Tensor grad_of_input(const Tensor& grad_output, const Tensor& input, const Tensor& grid, const Sampling& how,
                     int axes) {
  Stream& stream = current_stream(input.device().index());
  const auto type = checked_type(input, stream), compute = codegen::compute_type(type);
  const bool reduced = at::isReducedFloatingType(input.scalar_type());
  const Tensor sums =
      at::zeros(input.sizes(), input.options().dtype(reduced ? at::kFloat : input.scalar_type()));
  if (sums.numel() && grad_output.numel()) {
    const GridParams p = params_of(sums, grad_output, grid, how, axes);
    const int64_t rows = int64_t{p.in[0]} * p.in[1];
    const OwnedWork work = own_work(stream.device(), input.size(0), input.size(1), rows, p.positions,
                                    p.positions / input.size(0), codegen::size_of(compute) == 8,
                                    at::globalContext().deterministicAlgorithms());
    const std::string options = std::string(work.options) + " " + options_of(axes, how.mode);
    fetch_kernel(stream.device(), "vision/grid_backward.cl", "grid_sample_backward_input", compute,
                 {compute, type}, options)
        .launch(stream.queue(), work.range, buffer_of(sums).mem, buffer_of(grid).mem,
                buffer_of(grad_output).mem, p, work.owners);
  }
  return reduced ? sums.to(input.scalar_type()) : sums;
}

Tensor grad_of_grid(const Tensor& grad_output, const Tensor& input, const Tensor& grid, const Sampling& how,
                    int axes) {
  if (how.mode == params::GRID_NEAREST || grad_output.numel() == 0)
    return at::zeros(grid.sizes(), grid.options());
  const Tensor result = at::empty(grid.sizes(), grid.options());
  Stream& stream = current_stream(input.device().index());
  const auto type = checked_type(input, stream);
  GridParams p = params_of(input, grad_output, grid, how, axes);
  p.grid_grad = buffer_of(result).offset;
  const Split split = split_work(stream.device(), p.positions, 256);
  p.per_item = split.per_item;
  fetch_kernel(stream.device(), "vision/grid.cl", "grid_sample_backward_grid", codegen::compute_type(type),
               {type}, options_of(axes, how.mode))
      .launch(stream.queue(), split.range, buffer_of(input).mem, buffer_of(grid).mem,
              buffer_of(grad_output).mem, buffer_of(result).mem, p);
  return result;
}

template <int Axes>
std::tuple<Tensor, Tensor> grid_sample_backward(const Tensor& grad_output, const Tensor& input,
                                                const Tensor& grid, int64_t mode, int64_t padding, bool align,
                                                std::array<bool, 2> output_mask) {
  const Sampling how{mode, padding, align};
  check(input, grid, how, Axes);
  TORCH_CHECK(grad_output.scalar_type() == input.scalar_type(),
              "grid_sampler_backward(): expected gradient and input to have the same dtype, but they have ",
              grad_output.scalar_type(), " and ", input.scalar_type());
  Tensor grad_input, grad_grid;
  if (output_mask[0]) grad_input = grad_of_input(grad_output, input, grid, how, Axes);
  if (output_mask[1]) grad_grid = grad_of_grid(grad_output, input, grid, how, Axes);
  return {std::move(grad_input), std::move(grad_grid)};
}

// PyTorch's own kernel of this op reads memory as the CPU does.
std::tuple<Tensor, Tensor> plain_backward(const Tensor& grad_output, const Tensor& input, const Tensor& grid,
                                          int64_t mode, int64_t padding, bool align) {
  return grid_sample_backward<2>(grad_output, input, grid, mode, padding, align, {true, true});
}

}  // namespace

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("grid_sampler_2d", grid_sample<2>);
  m.impl("grid_sampler_3d", grid_sample<3>);
  m.impl("grid_sampler_2d_backward", grid_sample_backward<2>);
  m.impl("grid_sampler_3d_backward", grid_sample_backward<3>);
  m.impl("_grid_sampler_2d_cpu_fallback", grid_sample<2>);
  m.impl("_grid_sampler_2d_cpu_fallback_backward", plain_backward);
}

}  // namespace dlb
