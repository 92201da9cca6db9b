// Code that the solvers of applying coefficients share, and the first choice for small problems.
#include "primitives/norm/apply.h"

#include "solver/execute.h"

namespace dlb::norm {
namespace {

MemoryOperands operands_of(const at::Tensor& y, const at::Tensor& x, const at::Tensor& dy,
                           const at::Tensor& coefficients) {
  MemoryOperands o;
  o.in0 = optional_buffer(x), o.in2 = optional_buffer(coefficients), o.out0 = optional_buffer(y);
  if (dy.defined()) o.in1 = optional_buffer(dy);
  return o;
}

NormApplyProblem problem_for(const Context& context, const at::Tensor& dy) {
  return problem_of(context, dy.defined() ? norm_apply_bwd_op : norm_apply_op);
}

}  // namespace

params::NormApply apply_params(const NormApplyProblem& p) {
  params::NormApply params{};
  params.outer = static_cast<uint32_t>(p.outer), params.rows = static_cast<uint32_t>(p.rows);
  params.inner = static_cast<uint32_t>(p.inner);
  return params;
}

cl::Kernel& kernel_of(const NormApplyProblem& p, cl::Device& device, const ApplyLaunch& launch) {
  return norm_kernel(device, launch.file, launch.kernel, Types(p));
}

void enqueue(const NormApplyProblem&, const ApplyLaunch& launch, cl::Kernel& kernel, const MemoryOperands& o,
             Stream& stream) {
  params::NormApply params = launch.params;
  params.x = o.in0.offset, params.dy = o.in1.offset, params.y = o.out0.offset;
  params.coefficients = o.in2.offset;
  kernel.launch(stream.queue(), range_of(stream.device(), launch.team), o.in0.mem,
                o.in1.mem ? o.in1.mem : o.in0.mem, o.out0.mem, o.in2.mem, params, launch.team);
}

void apply(const Context& context, const Extent& extent, const at::Tensor& y, const at::Tensor& x,
           const at::Tensor& dy, const at::Tensor& coefficients) {
  NormApplyProblem p = problem_for(context, dy);
  p.outer = extent.outer, p.rows = extent.rows, p.inner = extent.inner;
  p.result_type() = p.types[0];
  p.extents[0] = p.result_extent() = x.numel();
  if (dy.defined()) p.types[1] = p.types[0], p.extents[1] = p.extents[0];
  p.types[2] = context.compute_scalar, p.extents[2] = coefficients.numel();
  const MemoryOperands o = operands_of(y, x, dy, coefficients);
  if (is_worth_choosing(*p.op, p.extents[0])) return solver::run(p, o, context.stream);
  if (!is_cpu(context.device) || extent.inner == 1) return run_pointwise(p, o, context.stream);
  const ApplyLaunch launch = apply_rows_launch(p, context.device, {});
  enqueue(p, launch, kernel_of(p, context.device, launch), o, context.stream);
}

void apply_by_sample(const Context& context, const Shape& shape, const at::Tensor& y, const at::Tensor& x,
                     const at::Tensor& dy, const at::Tensor& coefficients) {
  if (!shape.channels_last)
    return apply(context, {1, shape.samples * shape.channels, shape.length}, y, x, dy, coefficients);
  run_pointwise(problem_for(context, dy), shape, operands_of(y, x, dy, coefficients), context.stream);
}

}  // namespace dlb::norm
