// Launches of the shared normalisation kernels.
#include "ops/norm/norm.h"

#include <ATen/EmptyTensor.h>
#include <ATen/TensorIterator.h>
#include <ATen/native/TensorShape.h>
#include <ATen/ops/as_strided_native.h>

#include "ops/common/pointwise.h"

namespace dlb::norm {
namespace {

constexpr codegen::PointwiseOp kForward{.name = "norm_apply", .on_float = "(x0 - x1) * x2 + x3"};
constexpr codegen::PointwiseOp kBackward{.name = "norm_apply_backward",
                                         .on_float = "x0 * x3 - (x4 + (x1 - x2) * x5)"};
constexpr uint32_t kColumnBlockCpu = 64, kColumnBlockGpu = 32;  // COLUMN_BLOCK in norm.cl

// How many parts to cut each of `units` independent pieces of `count` steps of `width` elements into.
uint32_t choose_splits(const cl::Device& device, int64_t units, int64_t count, int64_t width) {
  const bool cpu = device.cls == cl::DeviceClass::kCpu;
  const int64_t wanted = device.compute_units * 4, grain = cpu ? 8192 : 4096;
  const int64_t most = std::max<int64_t>(1, count * width / grain);
  return static_cast<uint32_t>(
      std::clamp<int64_t>((wanted + units - 1) / units, 1, std::min<int64_t>(most, 1024)));
}

struct Plan {
  Partial partial;
  Team team;
};

Plan plan(const Context& context, Form form, Layout& layout) {
  const bool cpu = context.device.cls == cl::DeviceClass::kCpu;
  const int64_t block = form == Form::Rows ? 1 : cpu ? kColumnBlockCpu : kColumnBlockGpu;
  const int64_t units = (layout.rows + block - 1) / block;
  const int64_t width = std::min<int64_t>(block, layout.rows);
  uint32_t splits = choose_splits(context.device, units, layout.count, width);
  layout.per_split = (layout.count + splits - 1) / splits;
  splits = (layout.count + layout.per_split - 1) / layout.per_split;
  Plan result{{context.scratch(int64_t{2} * splits * layout.rows), splits, layout.per_split}, {}};
  // A group of the GPU's column kernels is always whole.
  const int64_t work = form == Form::Columns && !cpu ? int64_t{1} << 30 : int64_t{layout.per_split} * width;
  result.team = make_team(context.device, units * splits, work);
  return result;
}

}  // namespace

Context::Context(const at::Tensor& input, const at::Tensor& param_tensor, const char* op)
    : stream(current_stream(input.device().index())),
      device(stream.device()),
      data(dtype_of(input.scalar_type(), op)),
      param(dtype_of(param_tensor.defined() ? param_tensor.scalar_type() : input.scalar_type(), op)),
      compute(codegen::compute_type(data)),
      compute_scalar(compute == codegen::DType::F64 ? c10::ScalarType::Double : c10::ScalarType::Float) {
  TORCH_CHECK_NOT_IMPLEMENTED(codegen::class_of(data) == codegen::DClass::Float, "\"", op,
                              "\" not implemented for '", c10::toString(input.scalar_type()), "'");
  check_device_supports(device, compute, op);
  TORCH_CHECK(input.numel() < (int64_t{1} << 31), op, ": tensors of 2^31 elements or more are not supported");
}

at::Tensor Context::scratch(int64_t elements) const {
  return at::detail::empty_generic({elements}, allocator(),
                                   c10::DispatchKeySet(c10::DispatchKey::PrivateUse1), compute_scalar,
                                   std::nullopt);
}

Team Context::finish_team(int64_t rows, uint32_t splits) const {
  return make_team(device, rows, splits, 32);
}

Operand optional_operand(const at::Tensor& tensor) {
  return tensor.defined() && tensor.numel() ? operand_of(tensor) : Operand{nullptr, -1};
}

Partial statistics(const Context& context, Form form, Layout layout, const at::Tensor& x) {
  const Operand xs = operand_of(x);
  layout.x = xs.offset;
  layout.length_divider = codegen::make_divider(layout.length);
  const Plan p = plan(context, form, layout);
  const Operand partial = operand_of(p.partial.values);
  layout.partial = partial.offset;
  context.kernel(form == Form::Rows ? "norm_stats_rows" : "norm_stats_columns")
      .launch(context.stream.queue(), range_of(context.device, p.team), xs.mem, partial.mem, layout, p.team);
  return p.partial;
}

Partial gradient_sums(const Context& context, Form form, Layout layout, const at::Tensor& x,
                      const at::Tensor& dy, const at::Tensor& mean, const at::Tensor& rstd) {
  const Operand xs = operand_of(x), dys = operand_of(dy), means = optional_operand(mean),
                rstds = optional_operand(rstd);
  layout.x = xs.offset, layout.dy = dys.offset, layout.mean = means.offset, layout.rstd = rstds.offset;
  layout.length_divider = codegen::make_divider(layout.length);
  const Plan p = plan(context, form, layout);
  const Operand partial = operand_of(p.partial.values);
  layout.partial = partial.offset;
  const cl::Range range = range_of(context.device, p.team);
  if (form == Form::Rows)
    context.kernel("norm_sums_rows")
        .launch(context.stream.queue(), range, xs.mem, dys.mem, means.mem, partial.mem, layout, p.team);
  else
    context.kernel("norm_sums_columns")
        .launch(context.stream.queue(), range, xs.mem, dys.mem, means.mem, rstds.mem, partial.mem, layout,
                p.team);
  return p.partial;
}

namespace {
at::Tensor stretched(const at::Tensor& coefficients, int64_t index, int64_t size, const at::Tensor& over,
                     at::IntArrayRef strides) {
  return at::native::as_strided_tensorimpl(coefficients, over.sizes(), strides,
                                           coefficients.storage_offset() + index * size);
}
at::TensorIteratorConfig config() {
  at::TensorIteratorConfig c;
  c.set_check_mem_overlap(false).check_all_same_dtype(false).resize_outputs(false);
  return c;
}
}  // namespace

void apply_forward(const at::Tensor& y, const at::Tensor& x, const at::Tensor& coefficients, int64_t size,
                   at::IntArrayRef strides) {
  auto c = config();
  c.add_output(y).add_const_input(x);
  for (int64_t i = 0; i < 3; ++i) c.add_owned_const_input(stretched(coefficients, i, size, x, strides));
  auto iter = c.build();
  run_pointwise(kForward, iter, coefficients.scalar_type());
}

void apply_backward(const at::Tensor& dx, const at::Tensor& dy, const at::Tensor& x,
                    const at::Tensor& coefficients, int64_t size, at::IntArrayRef strides) {
  auto c = config();
  c.add_output(dx).add_const_input(dy).add_const_input(x);
  for (int64_t i = 0; i < 4; ++i) c.add_owned_const_input(stretched(coefficients, i, size, x, strides));
  auto iter = c.build();
  run_pointwise(kBackward, iter, coefficients.scalar_type());
}

}  // namespace dlb::norm
