// Layer norm: what its solvers share, the first choice for small problems, and the gradients of its weights,
// which are a pass over columns.
#include "primitives/norm/layer_norm.h"

#include <bit>

#include "primitives/norm/finish.h"
#include "solver/execute.h"

namespace dlb::norm {
namespace {

constexpr size_t kWeightType = 1;  // the place of the weight in types[]

LayerNormLaunch first_choice(const LayerNormProblem& p, const cl::Device& device) {
  if (layer_norm_rows_held_applicable(p, device)) return layer_norm_rows_held_launch(p, device, {});
  if (!p.is_backward() && suggests_rows_once(p, device)) return layer_norm_rows_once_launch(p, device, {});
  return layer_norm_rows_launch(p, device, {});
}

void run(const LayerNormProblem& p, const MemoryOperands& o, Stream& stream) {
  if (is_worth_choosing(*p.op, p.extents[0])) return solver::run(p, o, stream);
  const LayerNormLaunch launch = first_choice(p, stream.device());
  enqueue(p, launch, kernel_of(p, stream.device(), launch), o, stream);
}

LayerNormProblem problem_for(const Context& context, const OpOf<LayerNormProblem>& op, int64_t rows,
                             int64_t length, const at::Tensor& weight) {
  LayerNormProblem p = problem_of(context, op);
  p.rows = rows, p.length = length;
  p.result_type() = p.types[0];
  p.extents[0] = p.result_extent() = rows * length;
  p.types[kWeightType] = context.param_scalar, p.extents[kWeightType] = weight.defined() ? length : 0;
  return p;
}

void input_gradient(const Context& context, int64_t rows, int64_t length, const Backward& t) {
  LayerNormProblem p = problem_for(context, layer_norm_bwd_op, rows, length, t.weight);
  p.types[2] = p.types[0], p.extents[2] = p.extents[0];
  for (size_t i : {3, 4}) p.types[i] = context.compute_scalar, p.extents[i] = rows;
  MemoryOperands o;
  o.in0 = optional_buffer(t.x), o.in1 = optional_buffer(t.weight), o.in2 = optional_buffer(t.dy);
  o.in3 = optional_buffer(t.mean), o.in4 = optional_buffer(t.rstd), o.out0 = optional_buffer(t.dx);
  run(p, o, context.stream);
}

void weight_gradients(const Context& context, int64_t rows, int64_t length, const Backward& t) {
  NormPassProblem p = problem_of(context, norm_sums_op);
  p.columns = 1, p.rows = length, p.count = rows, p.segment_stride = length, p.mean_group = 0;
  const Partial partial = gradient_sums(context, p, t.x, t.dy, t.mean, t.rstd);
  const params::NormFinish finish = finish_of(partial, length, rows);
  launch_finish(context, {"norm/layer_norm_weight_grad.cl", "layer_norm_weight_grad"}, finish,
                merging_team(context, finish),
                {{partial.values, &params::NormFinish::partial},
                 {t.grad_weight, &params::NormFinish::grad_weight},
                 {t.grad_bias, &params::NormFinish::grad_bias}});
}

}  // namespace

std::vector<CheckWindow<LayerNormProblem>> LayerNormProblem::check_windows() const {
  constexpr int64_t kElements = 64 * 1024, kMostRow = 4 << 20;
  if (length > kMostRow) return {};
  const int64_t some = std::min(rows, std::max<int64_t>(1, kElements / length));
  std::vector<CheckWindow<LayerNormProblem>> list;
  for (const int64_t first : {int64_t{0}, rows - some}) {
    CheckWindow<LayerNormProblem> part{*this, {}};
    part.problem.rows = some;
    auto& shift = part.shift;
    shift.in0.offset = shift.out0.offset = first * length;
    if (is_backward())
      shift.in2.offset = first * length, shift.in3.offset = shift.in4.offset = first;
    else
      shift.out1.offset = shift.out2.offset = first;
    list.push_back(part);
  }
  return list;
}

Team team_of(const LayerNormProblem& p, const cl::Device& device, const Config& config) {
  Team team = make_team(device, p.rows, p.length);
  const int32_t value = config.as<LayerNormConfig>().items;
  if (value == 0) return team;
  if (is_cpu(device)) {
    const int64_t items = int64_t{device.compute_units} * value;
    team.per_item = static_cast<uint32_t>((p.rows + items - 1) / items);
  } else {
    team.lanes = static_cast<uint32_t>(value);
  }
  return team;
}

std::vector<Config> layer_norm_rows_configs(const LayerNormProblem&, const cl::Device& device) {
  const auto config = [](int32_t items) { return Config::of(LayerNormConfig{items}); };
  return is_cpu(device) ? std::vector{Config{}, config(1)} : std::vector{Config{}, config(32), config(128)};
}

cl::Kernel& kernel_of(const LayerNormProblem& p, cl::Device& device, const LayerNormLaunch& launch) {
  return norm_kernel(device, launch.file, launch.kernel, Types(p, kWeightType));
}

void enqueue(const LayerNormProblem& p, const LayerNormLaunch& launch, cl::Kernel& kernel,
             const MemoryOperands& o, Stream& stream) {
  const bool backward = p.is_backward();
  const Buffer &mean = backward ? o.in3 : o.out1, &rstd = backward ? o.in4 : o.out2;
  params::LayerNorm params{};
  params.x = o.in0.offset, params.y = o.out0.offset, params.mean = mean.offset, params.rstd = rstd.offset;
  if (p.extents[kWeightType]) params.weight = o.in1.offset;
  if (backward)
    params.dy = o.in2.offset;
  else if (p.extents[2])
    params.bias = o.in2.offset;
  params.length = static_cast<int32_t>(p.length);
  params.eps = as_floats(std::bit_cast<double>(p.eps));
  const cl::Range range = range_of(stream.device(), launch.team);
  if (backward)
    kernel.launch(stream.queue(), range, o.in0.mem, o.in2.mem, o.in1.mem, mean.mem, rstd.mem, o.out0.mem,
                  params, launch.team);
  else
    kernel.launch(stream.queue(), range, o.in0.mem, o.in1.mem, o.in2.mem, o.out0.mem, mean.mem, rstd.mem,
                  params, launch.team);
}

void layer_norm(const Context& context, int64_t rows, int64_t length, const Forward& t, double eps) {
  LayerNormProblem p = problem_for(context, layer_norm_op, rows, length, t.weight);
  p.eps = std::bit_cast<int64_t>(eps);
  p.types[2] = context.param_scalar, p.extents[2] = t.bias.defined() ? length : 0;
  for (size_t i : {1, 2}) p.result_type(i) = context.compute_scalar, p.result_extent(i) = rows;
  MemoryOperands o;
  o.in0 = optional_buffer(t.x), o.in1 = optional_buffer(t.weight), o.in2 = optional_buffer(t.bias);
  o.out0 = optional_buffer(t.y), o.out1 = optional_buffer(t.mean), o.out2 = optional_buffer(t.rstd);
  run(p, o, context.stream);
}

void layer_norm_backward(const Context& context, int64_t rows, int64_t length, const Backward& t) {
  if (t.dx.defined()) input_gradient(context, rows, length, t);
  if (t.grad_weight.defined() || t.grad_bias.defined()) weight_gradients(context, rows, length, t);
}

}  // namespace dlb::norm
