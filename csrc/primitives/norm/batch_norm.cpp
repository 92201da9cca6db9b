// Batch norm: a pass, the kernel that makes coefficients of its results, and their application; on GPUs a
// pass and the rest.
#include "primitives/norm/apply.h"
#include "primitives/norm/batch_norm_apply.h"

namespace dlb::norm {
namespace {

using params::NormFinish;

constexpr const char* kFile = "norm/batch_norm.cl";

// A pass whose rows are the channels.
NormPassProblem pass_of(const Context& context, const OpOf<NormPassProblem>& op, const Shape& s) {
  NormPassProblem p = problem_of(context, op);
  p.rows = s.channels, p.count = s.samples * s.length;
  if (is_interleaved(s)) {
    p.columns = 1, p.segment_stride = s.channels;
  } else {
    p.length = p.inner_stride = s.length, p.inner_rows = p.rows, p.segment_stride = s.channels * s.length;
  }
  return p;
}

Extent extent_of(const Shape& s) {
  return is_interleaved(s) ? Extent{s.samples * s.length, s.channels, 1}
                           : Extent{s.samples, s.channels, s.length};
}

// Mean and rstd [2][channels] from the running statistics.
at::Tensor running_stats(const Context& context, const Running& running, int64_t channels, double eps) {
  const at::Tensor stats = context.scratch(2 * channels);
  NormFinish p{};
  p.rows = static_cast<uint32_t>(channels);
  p.eps = as_floats(eps);
  launch_finish(context, {kFile, "batch_norm_running"}, p, merging_team(context, p),
                {{running.mean, &NormFinish::running_mean},
                 {running.var, &NormFinish::running_var},
                 {stats, &NormFinish::results}});
  return stats;
}

}  // namespace

void batch_norm(const Context& context, const Shape& shape, const Forward& t, const Running& running,
                bool training, double momentum, double eps) {
  Partial partial;
  if (training) partial = statistics(context, pass_of(context, norm_stats_op, shape), t.x);
  NormFinish p = finish_of(partial, shape.channels, shape.samples * shape.length);
  p.training = training;
  p.eps = as_floats(eps), p.momentum = as_floats(momentum);
  if (!is_cpu(context.device)) return finish_and_apply(context, shape, partial, p, t, running);
  const at::Tensor coefficients = context.scratch(3 * shape.channels);
  launch_finish(context, {kFile, "batch_norm_finish"}, p, merging_team(context, p),
                {{partial.values, &NormFinish::partial},
                 {t.weight, &NormFinish::weight},
                 {t.bias, &NormFinish::bias},
                 {running.mean, &NormFinish::running_mean},
                 {running.var, &NormFinish::running_var},
                 {t.mean, &NormFinish::mean},
                 {t.rstd, &NormFinish::rstd},
                 {coefficients, &NormFinish::results}});
  apply(context, extent_of(shape), t.y, t.x, {}, coefficients);
}

void batch_norm_backward(const Context& context, const Shape& shape, const Backward& t,
                         const Running& running, bool training, double eps) {
  at::Tensor mean = t.mean, rstd = t.rstd;
  if (!training) {
    const at::Tensor stats = running_stats(context, running, shape.channels, eps);
    mean = stats.narrow(0, 0, shape.channels);
    rstd = stats.narrow(0, shape.channels, shape.channels);
  }
  const Partial partial =
      gradient_sums(context, pass_of(context, norm_sums_op, shape), t.x, t.dy, mean, rstd);
  NormFinish p = finish_of(partial, shape.channels, shape.samples * shape.length);
  p.training = training;
  if (!is_cpu(context.device) && t.dx.defined())
    return finish_and_apply_backward(context, shape, partial, p,
                                     {t.x, t.dy, t.weight, mean, rstd, t.dx, t.grad_weight, t.grad_bias});
  const at::Tensor coefficients = context.scratch(4 * shape.channels);
  launch_finish(context, {kFile, "batch_norm_backward_finish"}, p, merging_team(context, p),
                {{partial.values, &NormFinish::partial},
                 {t.weight, &NormFinish::weight},
                 {mean, &NormFinish::mean},
                 {rstd, &NormFinish::rstd},
                 {t.grad_weight, &NormFinish::grad_weight},
                 {t.grad_bias, &NormFinish::grad_bias},
                 {coefficients, &NormFinish::results}});
  if (t.dx.defined()) apply(context, extent_of(shape), t.dx, t.x, t.dy, coefficients);
}

}  // namespace dlb::norm
