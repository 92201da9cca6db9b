// Layer normalisation.
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <c10/util/accumulate.h>
#include <torch/library.h>

#include <bit>

#include "primitives/common/estimates.h"
#include "primitives/norm/norm.h"
#include "solver/execute.h"
#include "solver/solver_row.h"

namespace dlb {
namespace {

using at::Tensor;
using norm::buffer_of;
using norm::Context;
using norm::Finish;
using norm::Form;
using norm::optional_operand;
using OptionalTensor = std::optional<Tensor>;
using Three = std::tuple<Tensor, Tensor, Tensor>;

using solver::Applicability;
using solver::Config;
using solver::is_cpu;
using solver::LayerNormProblem;
using solver::MemoryOperands;
using solver::SolverRow;

// As layer_params in norm/layer_norm.cl; offsets of -1 say that a tensor is absent.
struct Params {
  int64_t x = 0, y = 0, dy = 0, mean = 0, rstd = 0, weight = -1, bias = -1;
  int32_t length = 0, padding = 0;
  float eps_high = 0, eps_low = 0;
};

constexpr int64_t kHeld = 16;  // HELD of the kernels

bool is_backward(const LayerNormProblem& p) {
  return p.is_backward();
}

struct Plan {
  const char* kernel;
  Team team;
};

// A config's value. CPU: work-items per compute unit; GPU: work-items that share a row. 0: by the sizes.
Team team_of(const LayerNormProblem& p, const cl::Device& device, const Config& config) {
  const int64_t rows = p.rows;
  Team team = make_team(device, rows, p.length);
  const int32_t value = config.values[0];
  if (value == 0) return team;
  if (is_cpu(device)) {
    const int64_t items = int64_t{device.compute_units} * value;
    team.per_item = static_cast<uint32_t>((rows + items - 1) / items);
  } else {
    team.lanes = static_cast<uint32_t>(value);
  }
  return team;
}

Plan plan_rows(const LayerNormProblem& p, const cl::Device& device, const Config& config) {
  return {is_backward(p) ? "layer_norm_rows_backward" : "layer_norm_rows", team_of(p, device, config)};
}
Plan plan_once(const LayerNormProblem& p, const cl::Device& device, const Config& config) {
  return {"layer_norm_rows_once", team_of(p, device, config)};
}
// GPU teams whose work-items hold their part of a row in registers.
Plan plan_held(const LayerNormProblem& p, const cl::Device& device, const Config& config) {
  Team team = team_of(p, device, config);
  if (config.values[0] == 0)
    for (team.lanes = 1; team.lanes * kHeld < p.length || (team.lanes < 32 && team.lanes * 4 < p.length);)
      team.lanes *= 2;
  return {is_backward(p) ? "layer_norm_held_backward" : "layer_norm_held", team};
}
Plan plan_reference(const LayerNormProblem& p, const cl::Device& device, const Config&) {
  return {is_backward(p) ? "layer_norm_reference_backward" : "layer_norm_reference",
          make_team(device, p.rows, p.length, 1)};
}

cl::Kernel& kernel_of(const LayerNormProblem& p, cl::Device& device, const Plan& plan) {
  const auto data = dtype_of(p.dtype, "layer_norm"), param = dtype_of(p.types[1], "layer_norm");
  return family_kernel(device, "norm/layer_norm.cl", plan.kernel, codegen::compute_type(data), {data, param});
}

void enqueue(const LayerNormProblem& p, const Plan& plan, cl::Kernel& kernel, const MemoryOperands& o,
             Stream& stream) {
  const auto optional = [&](size_t i, const Buffer& buffer) {
    return p.extents[i] ? buffer.offset : int64_t{-1};
  };
  const bool backward = is_backward(p);
  const Buffer &mean = backward ? o.in3 : o.out1, &rstd = backward ? o.in4 : o.out2;
  const auto eps = std::bit_cast<double>(p.eps);
  Params params{o.in0.offset, o.out0.offset, backward ? o.in2.offset : 0, mean.offset, rstd.offset};
  params.weight = optional(1, o.in1);
  if (!backward) params.bias = optional(2, o.in2);
  params.length = static_cast<int32_t>(p.length);
  params.eps_high = static_cast<float>(eps), params.eps_low = static_cast<float>(eps - params.eps_high);
  const cl::Range range = range_of(stream.device(), plan.team);
  if (backward)
    kernel.launch(stream.queue(), range, o.in0.mem, o.in2.mem, o.in1.mem, mean.mem, rstd.mem, o.out0.mem,
                  params, plan.team);
  else
    kernel.launch(stream.queue(), range, o.in0.mem, o.in1.mem, o.in2.mem, o.out0.mem, mean.mem, rstd.mem,
                  params, plan.team);
}

template <auto planner>
constexpr auto invoker = solver::planned_invoker<LayerNormProblem, planner, kernel_of, enqueue>;

bool suggests_once(const LayerNormProblem& p, const cl::Device& device) {
  return is_cpu(device) && p.length >= 256;
}

Applicability held_applicable(const LayerNormProblem& p, const cl::Device& device) {
  if (is_cpu(device)) return Applicability::no("for GPU-class devices");
  if (p.length > kHeld * kTeamGroup) return Applicability::no("rows do not fit in registers");
  return Applicability::yes();
}

template <int percent>
double estimate(const LayerNormProblem& p, const cl::Device& device) {
  return solver::streaming_microseconds(p, device) * percent / 100;
}

// Fewer passes gain where a row fills vectors.
double once_estimate(const LayerNormProblem& p, const cl::Device& device) {
  return suggests_once(p, device) ? estimate<90>(p, device) : estimate<110>(p, device);
}

std::vector<Config> rows_configs(const LayerNormProblem&, const cl::Device& device) {
  if (is_cpu(device)) return {{}, {{1}}};
  return {{}, {{32}}, {{128}}};
}
std::vector<Config> held_configs(const LayerNormProblem& p, const cl::Device&) {
  std::vector<Config> list(1);
  for (int32_t lanes = 32; lanes <= static_cast<int32_t>(kTeamGroup); lanes *= 2)
    if (lanes * kHeld >= p.length && lanes / 4 < p.length) list.push_back({{lanes}});
  return list;
}

const SolverRow<LayerNormProblem> kRowsForm{"rows", solver::always<LayerNormProblem>, estimate<100>,
                                            rows_configs, invoker<plan_rows>};
const SolverRow<LayerNormProblem> kOnceForm{"rows_once", solver::always<LayerNormProblem>, once_estimate,
                                            rows_configs, invoker<plan_once>};
const SolverRow<LayerNormProblem> kHeldForm{"rows_held", held_applicable, estimate<80>, held_configs,
                                            invoker<plan_held>};
const SolverRow<LayerNormProblem> kReferenceForm{"reference", solver::always<LayerNormProblem>,
                                                 estimate<5000>, solver::one_config<LayerNormProblem>,
                                                 invoker<plan_reference>};

std::vector<const solver::Solver<LayerNormProblem>*> forward_solvers() {
  static const solver::RowSolver<LayerNormProblem> held(kHeldForm), rows(kRowsForm), once(kOnceForm),
      reference(kReferenceForm);
  return {&held, &rows, &once, &reference};
}
std::vector<const solver::Solver<LayerNormProblem>*> backward_solvers() {
  static const solver::RowSolver<LayerNormProblem> held(kHeldForm), rows(kRowsForm),
      reference(kReferenceForm);
  return {&held, &rows, &reference};
}

void run(const Context& context, const LayerNormProblem& p, const MemoryOperands& o) {
  if (solver::is_worth_choosing(*p.op, p.extents[0])) return solver::run(p, o, context.stream);
  const auto planner = held_applicable(p, context.device)                    ? plan_held
                       : !is_backward(p) && suggests_once(p, context.device) ? plan_once
                                                                             : plan_rows;
  const Plan plan = planner(p, context.device, {});
  enqueue(p, plan, kernel_of(p, context.device, plan), o, context.stream);
}

struct Shape {
  int64_t rows, length;
};

LayerNormProblem problem_of(const Context& context, const solver::OpOf<LayerNormProblem>& op,
                            const Shape& shape, const Tensor& x, const Tensor& weight) {
  LayerNormProblem p = context.problem(op);
  p.rows = shape.rows, p.length = shape.length;
  p.types[solver::MemoryProblem::kInputs] = p.types[0];
  p.extents[0] = p.extents[solver::MemoryProblem::kInputs] = x.numel();
  p.types[1] = context.param_scalar, p.extents[1] = weight.defined() ? shape.length : 0;
  return p;
}

Shape check(const Tensor& input, at::IntArrayRef normalized, const Tensor& weight, const Tensor& bias) {
  const auto rank = static_cast<int64_t>(normalized.size());
  TORCH_CHECK(rank >= 1,
              "Expected normalized_shape to be at least 1-dimensional, i.e., containing at least one ",
              "element, but got normalized_shape = ", normalized);
  for (const Tensor* t : {&weight, &bias})
    TORCH_CHECK(!t->defined() || t->sizes().equals(normalized), "Expected ", t == &weight ? "weight" : "bias",
                " to be of same shape as normalized_shape, but got a tensor of shape ", t->sizes(),
                " and normalized_shape = ", normalized);
  TORCH_CHECK(input.dim() >= rank && input.sizes().slice(input.dim() - rank).equals(normalized),
              "Given normalized_shape=", normalized, ", expected input with shape [*, ", normalized,
              "], but got input of size", input.sizes());
  return {c10::multiply_integers(input.sizes().slice(0, input.dim() - rank)),
          c10::multiply_integers(normalized)};
}

Tensor param(const OptionalTensor& tensor, const Tensor& other, const Tensor& input) {
  if (!tensor || !tensor->defined()) return {};
  const c10::ScalarType type = other.defined() ? other.scalar_type() : tensor->scalar_type();
  return tensor->to(type).contiguous();
}

Three native_layer_norm(const Tensor& input, at::IntArrayRef normalized, const OptionalTensor& weight_,
                        const OptionalTensor& bias_, double eps) {
  const Tensor weight = param(weight_, {}, input), bias = param(bias_, {}, input);
  const Shape shape = check(input, normalized, weight, bias);
  norm::check_dtypes(input, {&weight, &bias}, "layer_norm");
  const Tensor x = input.contiguous();
  const Context context(x, weight.defined() ? weight : bias, "layer_norm");
  c10::SmallVector<int64_t, 6> stat_sizes(input.sizes().begin(), input.sizes().end());
  for (size_t i = stat_sizes.size() - normalized.size(); i < stat_sizes.size(); ++i) stat_sizes[i] = 1;
  Tensor y = at::empty_like(x, at::MemoryFormat::Contiguous);
  Tensor mean = at::empty(stat_sizes, x.options().dtype(context.compute_scalar)), rstd = at::empty_like(mean);
  if (x.numel() == 0) return {y, mean.zero_(), rstd.zero_()};

  LayerNormProblem p = problem_of(context, solver::layer_norm_op, shape, x, weight);
  p.eps = std::bit_cast<int64_t>(eps);
  p.types[2] = context.param_scalar, p.extents[2] = bias.defined() ? shape.length : 0;
  for (size_t i : {solver::MemoryProblem::kInputs + 1, solver::MemoryProblem::kInputs + 2})
    p.types[i] = context.compute_scalar, p.extents[i] = shape.rows;
  MemoryOperands o;
  o.in0 = buffer_of(x), o.in1 = buffer_of(weight), o.in2 = buffer_of(bias);
  o.out0 = buffer_of(y), o.out1 = buffer_of(mean), o.out2 = buffer_of(rstd);
  run(context, p, o);
  return {std::move(y), std::move(mean), std::move(rstd)};
}

Three native_layer_norm_backward(const Tensor& grad_out, const Tensor& input, at::IntArrayRef normalized,
                                 const Tensor& mean_, const Tensor& rstd_, const OptionalTensor& weight_,
                                 const OptionalTensor& bias_, std::array<bool, 3> mask) {
  const Tensor weight = param(weight_, {}, input), bias = param(bias_, weight, input);
  const Shape shape = check(input, normalized, weight, bias);
  const Tensor x = input.contiguous(), dy = grad_out.contiguous();
  const Context context(x, weight.defined() ? weight : bias, "layer_norm_backward");
  const Tensor mean = mean_.to(context.compute_scalar).contiguous(),
               rstd = rstd_.to(context.compute_scalar).contiguous();
  auto param_grad = [&](bool wanted, const Tensor& like) {
    if (!wanted) return Tensor();
    return at::empty(normalized, like.defined() ? like.options() : x.options());
  };
  Tensor dx = mask[0] ? at::empty_like(x, at::MemoryFormat::Contiguous) : Tensor();
  Tensor dw = param_grad(mask[1], weight), db = param_grad(mask[2], weight.defined() ? weight : bias);
  if (x.numel() == 0) {
    for (Tensor* t : {&dw, &db})
      if (t->defined()) t->zero_();
    return {dx, dw, db};
  }
  if (mask[0]) {
    LayerNormProblem p = problem_of(context, solver::layer_norm_bwd_op, shape, x, weight);
    p.types[2] = p.types[0], p.extents[2] = p.extents[0];
    for (size_t i : {3, 4}) p.types[i] = context.compute_scalar, p.extents[i] = shape.rows;
    MemoryOperands o;
    o.in0 = buffer_of(x), o.in1 = buffer_of(weight), o.in2 = buffer_of(dy);
    o.in3 = buffer_of(mean), o.in4 = buffer_of(rstd), o.out0 = buffer_of(dx);
    run(context, p, o);
  }
  if (mask[1] || mask[2]) {
    norm::Layout layout;
    layout.rows = static_cast<uint32_t>(shape.length), layout.count = static_cast<uint32_t>(shape.rows);
    layout.segment_stride = shape.length, layout.mean_group = 0;
    const norm::Partial partial = norm::gradient_sums(context, Form::Columns, layout, x, dy, mean, rstd);
    const Operand partials = operand_of(partial.values), dws = optional_operand(dw),
                  dbs = optional_operand(db);
    Finish p;
    p.partial = partials.offset, p.grad_weight = dws.offset, p.grad_bias = dbs.offset;
    p.rows = layout.rows, p.splits = partial.splits, p.count = layout.count, p.per_split = partial.per_split;
    const Team team = context.finish_team(shape.length, partial.splits);
    context.kernel("layer_norm_finish")
        .launch(context.stream.queue(), range_of(context.device, team), partials.mem, dws.mem, dbs.mem, p,
                team);
  }
  return {std::move(dx), std::move(dw), std::move(db)};
}

}  // namespace

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("native_layer_norm", native_layer_norm);
  m.impl("native_layer_norm_backward", native_layer_norm_backward);
}

}  // namespace dlb

namespace dlb::solver {

const OpOf<LayerNormProblem> layer_norm_op("layer_norm", forward_solvers),
    layer_norm_bwd_op("layer_norm_bwd", backward_solvers);

std::vector<CheckWindow<LayerNormProblem>> LayerNormProblem::check_windows() const {
  constexpr int64_t kElements = 64 * 1024, kMostRow = 4 << 20;

  const int64_t all = this->rows;
  if (length > kMostRow) return {};
  const int64_t some = std::min(all, std::max<int64_t>(1, kElements / length));
  std::vector<CheckWindow<LayerNormProblem>> list;
  for (const int64_t first : {int64_t{0}, all - some}) {
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

}  // namespace dlb::solver
