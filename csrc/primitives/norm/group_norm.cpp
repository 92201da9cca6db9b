// Group norm: a pass, the kernels that make coefficients and gradients of its results, and the coefficients'
// application.
#include "primitives/norm/apply.h"
#include "primitives/norm/finish.h"

namespace dlb::norm {
namespace {

using params::NormFinish;

constexpr const char* kFile = "norm/group_norm.cl";

// The parameters behind a pass of rows of `count` elements. Their number is that of groups.
NormFinish finish_of(const Partial& partial, const Shape& s, int64_t groups, int64_t count) {
  NormFinish p = finish_of(partial, s.samples * groups, count);
  p.groups = static_cast<uint32_t>(groups), p.channels = static_cast<uint32_t>(s.channels);
  p.samples = static_cast<uint32_t>(s.samples), p.length = static_cast<uint32_t>(s.length);
  return p;
}

// Statistics of a row per sample and group.
Partial group_statistics(const Context& context, const Shape& s, int64_t groups, const at::Tensor& x) {
  constexpr int64_t kShortRun = 4;  // shorter ones cost more than a contiguous copy
  const int64_t each = s.channels / groups;
  NormPassProblem p = problem_of(context, norm_stats_op);
  p.rows = s.samples * groups, p.count = each * s.length;
  if (s.channels_last && each >= kShortRun) {  // a run per pixel
    p.length = p.inner_stride = each, p.segment_stride = s.channels;
    p.inner_rows = groups, p.outer_stride = s.channels * s.length;
    return statistics(context, p, x);
  }
  p.length = p.inner_stride = p.count, p.inner_rows = p.rows;
  return statistics(context, p, x.contiguous());
}

// Sums of a row per sample and channel.
Partial channel_sums(const Context& context, const Shape& s, int64_t groups, const Backward& t) {
  NormPassProblem p = problem_of(context, norm_sums_op);
  p.rows = p.inner_rows = s.samples * s.channels;
  p.count = p.length = p.inner_stride = s.length;
  p.mean_group = s.channels / groups;
  // A channel of one sample is no run where pixels are; contiguous() copies nothing else.
  const Partial sums = gradient_sums(context, p, t.x.contiguous(), t.dy.contiguous(), t.mean, t.rstd);
  return merged_sums(context, sums, p.rows);
}

}  // namespace

void group_norm(const Context& context, const Shape& shape, int64_t groups, const Forward& t, double eps) {
  const Partial partial = group_statistics(context, shape, groups, t.x);
  const at::Tensor coefficients = context.scratch(3 * shape.samples * shape.channels);
  NormFinish p = finish_of(partial, shape, groups, shape.channels / groups * shape.length);
  p.eps = as_floats(eps);
  launch_finish(context, {kFile, "group_norm_finish"}, p, merging_team(context, p),
                {{partial.values, &NormFinish::partial},
                 {t.weight, &NormFinish::weight},
                 {t.bias, &NormFinish::bias},
                 {t.mean, &NormFinish::mean},
                 {t.rstd, &NormFinish::rstd},
                 {coefficients, &NormFinish::results}});
  apply_by_sample(context, shape, t.y, t.x, {}, coefficients);
}

void group_norm_backward(const Context& context, const Shape& shape, int64_t groups, const Backward& t) {
  const Partial sums = channel_sums(context, shape, groups, t);
  const NormFinish p = finish_of(sums, shape, groups, shape.length);
  if (t.grad_weight.defined() || t.grad_bias.defined())
    launch_finish(context, {kFile, "group_norm_weight_grad"}, p,
                  make_team(context.device, shape.channels, shape.samples, 1),
                  {{sums.values, &NormFinish::partial},
                   {t.rstd, &NormFinish::rstd},
                   {t.grad_weight, &NormFinish::grad_weight},
                   {t.grad_bias, &NormFinish::grad_bias}});
  if (!t.dx.defined()) return;
  const at::Tensor coefficients = context.scratch(4 * shape.samples * shape.channels);
  launch_finish(context, {kFile, "group_norm_backward_finish"}, p,
                make_team(context.device, p.rows, shape.channels / groups, 1),
                {{sums.values, &NormFinish::partial},
                 {t.weight, &NormFinish::weight},
                 {t.mean, &NormFinish::mean},
                 {t.rstd, &NormFinish::rstd},
                 {coefficients, &NormFinish::results}});
  apply_by_sample(context, shape, t.dx, t.x, t.dy, coefficients);
}

}  // namespace dlb::norm
