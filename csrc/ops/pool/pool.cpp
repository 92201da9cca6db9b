// Launches of the pooling kernels.
#include "ops/pool/pool.h"

#include "ops/common/family.h"
#include "ops/common/lines.h"
#include "ops/common/tensor.h"

namespace dlb::pool {
namespace {

using at::Tensor;

// As pool_axis and pool_params in pool.cl.
struct Axis {
  int32_t in, out, kernel, stride, pad, dilation;
};
struct Params {
  int64_t x, y, index;
  Lines lines;
  Axis axis[3];
  int32_t count_include_pad, divisor;
};

struct Launch {
  Stream& stream;
  cl::Device& device;
  codegen::DType type;
  View5 x, y;
  Params params;

  Launch(const Tensor& in, const Tensor& out, const Windows& windows, int axes, const char* op)
      : stream(current_stream(in.device().index())),
        device(stream.device()),
        type(dtype_of(in.scalar_type(), op)),
        x(in, axes),
        y(out, axes),
        params{operand_of(in).offset, operand_of(out).offset, 0, Lines(x, y), {}, 0, 0} {
    TORCH_CHECK_NOT_IMPLEMENTED(
        codegen::class_of(type) == codegen::DClass::Float || codegen::class_of(type) == codegen::DClass::Int,
        "\"", op, "\" not implemented for '", c10::toString(in.scalar_type()), "'");
    check_device_supports(device, type, op);
    TORCH_CHECK(in.numel() < (int64_t{1} << 31) && out.numel() < (int64_t{1} << 31), op,
                ": tensors of 2^31 elements or more are not supported");
    for (size_t i = 0; i < 3; ++i)
      params.axis[i] = {static_cast<int32_t>(x.size[i + 2]),
                        static_cast<int32_t>(y.size[i + 2]),
                        windows[i].kernel,
                        windows[i].stride,
                        windows[i].pad,
                        windows[i].dilation};
  }

  cl::Kernel& kernel(const char* name) const {
    return family_kernel(device, "pool.cl", name, codegen::compute_type(type), {type});
  }
};

int64_t window_work(const Params& p) {
  int64_t work = 1;
  for (const Axis& a : p.axis) work *= a.kernel ? a.kernel : (a.in + a.out - 1) / a.out;
  return work;
}

void set_divisor(Params& p, const Divisor& divisor) {
  p.count_include_pad = divisor.count_include_pad;
  TORCH_CHECK(!divisor.override || *divisor.override != 0, "divisor must be not zero");
  p.divisor = static_cast<int32_t>(divisor.override.value_or(0));
}

int32_t element(at::IntArrayRef list, int axes, int i, int64_t missing) {
  if (list.empty()) return static_cast<int32_t>(missing);
  return static_cast<int32_t>(list.size() == 1 ? list[0] : list[static_cast<size_t>(i)]);
}

}  // namespace

Windows windows(int axes, at::IntArrayRef kernel, at::IntArrayRef stride, at::IntArrayRef pad,
                at::IntArrayRef dilation) {
  Windows result;
  for (size_t i = 0; i < 3; ++i) {
    const int k = static_cast<int>(i) - (3 - axes);
    result[i].kernel = 1;
    if (k < 0) continue;
    result[i].kernel = element(kernel, axes, k, 1);
    result[i].stride = element(stride, axes, k, result[i].kernel);
    result[i].pad = element(pad, axes, k, 0);
    result[i].dilation = element(dilation, axes, k, 1);
  }
  return result;
}

Windows adaptive_windows(int axes) {
  Windows result;
  if (axes == 2) result[0].kernel = 1;
  return result;
}

void max_forward(const Tensor& x, const Tensor& y, const Tensor& indices, const Windows& windows, int axes,
                 const char* op) {
  if (y.numel() == 0) return;
  TORCH_INTERNAL_ASSERT(indices.strides() == y.strides());
  Launch launch(x, y, windows, axes, op);
  launch.params.index = operand_of(indices).offset;
  const Team team =
      launch.params.lines.team(launch.device, launch.y, windows[2].kernel > 0, window_work(launch.params));
  launch.kernel("max_pool")
      .launch(launch.stream.queue(), range_of(launch.device, team), mem_of(x).mem, mem_of(y).mem,
              mem_of(indices).mem, launch.params, team);
}

void max_backward(const Tensor& grad_input, const Tensor& grad_output_, const Tensor& indices_,
                  const Windows& windows, int axes, const char* op) {
  if (grad_input.numel() == 0) return;
  if (grad_output_.numel() == 0) {
    grad_input.zero_();
    return;
  }
  // The two are read at the same positions.
  const Tensor indices = indices_.contiguous(grad_input.suggest_memory_format());
  const Tensor grad_output = grad_output_.contiguous(grad_input.suggest_memory_format());
  Launch launch(grad_input, grad_output, windows, axes, op);
  launch.params.index = operand_of(indices).offset;
  const bool planes = launch.device.cls == cl::DeviceClass::kCpu && grad_input.is_contiguous() &&
                      grad_output.is_contiguous() && codegen::size_of(launch.type) >= 4;
  Team team = launch.params.lines.team(launch.device, launch.x, false, 4);
  if (planes) {
    const int64_t count = launch.x.size[0] * launch.x.size[1];
    team = make_team(launch.device, count, grad_input.numel() / count, 1);
  }
  launch.kernel(planes ? "max_pool_backward_planes" : "max_pool_backward")
      .launch(launch.stream.queue(), range_of(launch.device, team), mem_of(grad_input).mem,
              mem_of(grad_output).mem, mem_of(indices).mem, launch.params, team);
}

void avg_forward(const Tensor& x, const Tensor& y, const Windows& windows, int axes, Divisor divisor,
                 const char* op) {
  if (y.numel() == 0) return;
  Launch launch(x, y, windows, axes, op);
  set_divisor(launch.params, divisor);
  const Team team =
      launch.params.lines.team(launch.device, launch.y, windows[2].kernel > 0, window_work(launch.params));
  launch.kernel("avg_pool")
      .launch(launch.stream.queue(), range_of(launch.device, team), mem_of(x).mem, mem_of(y).mem,
              launch.params, team);
}

void avg_backward(const Tensor& grad_input, const Tensor& grad_output, const Windows& windows, int axes,
                  Divisor divisor, const char* op) {
  if (grad_input.numel() == 0) return;
  if (grad_output.numel() == 0) {
    grad_input.zero_();
    return;
  }
  Launch launch(grad_input, grad_output, windows, axes, op);
  set_divisor(launch.params, divisor);
  const Team team = launch.params.lines.team(launch.device, launch.x, false, 4);
  launch.kernel("avg_pool_backward")
      .launch(launch.stream.queue(), range_of(launch.device, team), mem_of(grad_input).mem,
              mem_of(grad_output).mem, launch.params, team);
}

}  // namespace dlb::pool
