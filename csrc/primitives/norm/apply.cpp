// Applying a normalisation's coefficients to its input, forward and backward: any pointwise kernel can, or
// kernels that keep a row's coefficients in registers.
#include "codegen/registry.h"
#include "ops/common/pointwise.h"
#include "primitives/common/estimates.h"
#include "primitives/norm/norm.h"
#include "solver/execute.h"
#include "solver/solver_row.h"

namespace dlb::norm {
namespace {

using solver::Applicability;
using solver::Config;
using solver::is_cpu;
using solver::MemoryOperands;
using solver::NormApplyProblem;
using solver::SolverRow;

constexpr codegen::PointwiseOp kForward{.name = "norm_apply", .on_float = "(x0 - x1) * x2 + x3"};
constexpr codegen::PointwiseOp kBackward{.name = "norm_apply_backward",
                                         .on_float = "x0 * x3 - (x4 + (x1 - x2) * x5)"};

const codegen::RegisterOps kRegistered(codegen::RowKind::Pointwise,
                                       {{kForward, "", "fixed"}, {kBackward, "", "fixed"}});

// As norm_apply in norm.cl.
struct Params {
  int64_t x = 0, dy = 0, y = 0, coefficients = 0;
  uint32_t outer = 1, rows = 1, inner = 1, per_item = 1;
};

bool is_backward(const NormApplyProblem& p) {
  return p.is_backward();
}

// Three dimensions, the innermost first: steps between elements and between their coefficients.
struct Walk {
  std::array<uint32_t, 3> sizes;
  std::array<int32_t, 3> data, coefficients;
};

void run_as_pointwise(const NormApplyProblem& p, const MemoryOperands& o, const Types& types, Stream& stream,
                      const Walk& walk, int64_t rows) {
  c10::SmallVector<PointwiseBuffer, 7> list;
  list.push_back({o.out0.mem, o.out0.offset, types.data, walk.data});
  if (is_backward(p)) list.push_back({o.in1.mem, o.in1.offset, types.data, walk.data});
  list.push_back({o.in0.mem, o.in0.offset, types.data, walk.data});
  for (int i = 0; i < (is_backward(p) ? 4 : 3); ++i)
    list.push_back({o.in2.mem, o.in2.offset + i * rows, types.compute, walk.coefficients});
  run_pointwise_buffers(is_backward(p) ? kBackward : kForward, stream, list, 1, walk.sizes, p.dtype);
}

void run_as_pointwise(const NormApplyProblem& p, const MemoryOperands& o, const Types& types,
                      Stream& stream) {
  const auto rows = static_cast<int32_t>(p.rows), inner = static_cast<int32_t>(p.inner);
  const Walk walk{{static_cast<uint32_t>(inner), static_cast<uint32_t>(rows), static_cast<uint32_t>(p.outer)},
                  {1, inner, rows * inner},
                  {0, 1, 0}};
  run_as_pointwise(p, o, types, stream, walk, rows);
}

std::unique_ptr<solver::Invoker<NormApplyProblem>> pointwise_invoker(const NormApplyProblem& p, cl::Device&,
                                                                     const Config&) {
  return solver::make_invoker<NormApplyProblem>(
      [p, types = Types(p)](Stream& stream, const MemoryOperands& o, MemRef) {
        run_as_pointwise(p, o, types, stream);
      });
}

struct Plan {
  const char* kernel;
  Params params;
  Team team;
};

Params params_of(const NormApplyProblem& p) {
  Params params;
  params.outer = static_cast<uint32_t>(p.outer), params.rows = static_cast<uint32_t>(p.rows);
  params.inner = static_cast<uint32_t>(p.inner);
  return params;
}

// A config's value: work-items of a GPU that share a run; 0: by its length.
Plan plan_rows(const NormApplyProblem& p, const cl::Device& device, const Config& config) {
  Team team = make_team(device, p.outer * p.rows, p.inner);
  if (!is_cpu(device) && config.values[0]) team.lanes = static_cast<uint32_t>(config.values[0]);
  return {is_backward(p) ? "norm_apply_rows_backward" : "norm_apply_rows", params_of(p), team};
}

// A config's value: elements of a GPU's work-item.
Plan plan_columns(const NormApplyProblem& p, const cl::Device& device, const Config& config) {
  Plan plan{is_backward(p) ? "norm_apply_columns_backward" : "norm_apply_columns", params_of(p), {}};
  if (is_cpu(device)) {
    plan.team = make_team(device, p.outer, p.rows);
  } else {
    plan.params.per_item = static_cast<uint32_t>(config.values[0] ? config.values[0] : 8);
    const int64_t chunks = (p.outer + plan.params.per_item - 1) / plan.params.per_item;
    plan.team = make_team(device, chunks * p.rows, 1, 1);
  }
  return plan;
}

cl::Kernel& kernel_of(const NormApplyProblem& p, cl::Device& device, const Plan& plan) {
  return norm_kernel(device, "norm/norm.cl", plan.kernel, Types(p));
}

void enqueue(const NormApplyProblem&, const Plan& plan, cl::Kernel& kernel, const MemoryOperands& o,
             Stream& stream) {
  Params params = plan.params;
  params.x = o.in0.offset, params.dy = o.in1.offset, params.y = o.out0.offset;
  params.coefficients = o.in2.offset;
  kernel.launch(stream.queue(), range_of(stream.device(), plan.team), o.in0.mem,
                o.in1.mem ? o.in1.mem : o.in0.mem, o.out0.mem, o.in2.mem, params, plan.team);
}

template <auto planner>
constexpr auto invoker = solver::planned_invoker<NormApplyProblem, planner, kernel_of, enqueue>;

Applicability rows_applicable(const NormApplyProblem& p, const cl::Device&) {
  return p.inner > 1 ? Applicability::yes() : Applicability::no("rows are interleaved");
}
Applicability columns_applicable(const NormApplyProblem& p, const cl::Device&) {
  return p.inner == 1 ? Applicability::yes() : Applicability::no("rows are not interleaved");
}

template <int percent>
double estimate(const NormApplyProblem& p, const cl::Device& device) {
  return solver::streaming_microseconds(p, device) * percent / 100;
}

std::vector<Config> rows_configs(const NormApplyProblem&, const cl::Device& device) {
  if (is_cpu(device)) return {Config{}};
  return {{}, {{32}}, {{256}}};
}
std::vector<Config> columns_configs(const NormApplyProblem&, const cl::Device& device) {
  if (is_cpu(device)) return {Config{}};
  return {{}, {{32}}};
}

// A GPU's pointwise kernels load four neighbours at once.
double rows_estimate(const NormApplyProblem& p, const cl::Device& device) {
  return is_cpu(device) ? estimate<95>(p, device) : estimate<110>(p, device);
}

const SolverRow<NormApplyProblem> kRowsForm{"rows", rows_applicable, rows_estimate, rows_configs,
                                            invoker<plan_rows>};
const SolverRow<NormApplyProblem> kColumnsForm{"columns", columns_applicable, estimate<110>, columns_configs,
                                               invoker<plan_columns>};
// Also what the others are checked against: the generated kernel of an expression.
const SolverRow<NormApplyProblem> kPointwiseForm{"pointwise", solver::always<NormApplyProblem>, estimate<100>,
                                                 solver::one_config<NormApplyProblem>, pointwise_invoker};

std::vector<const solver::Solver<NormApplyProblem>*> apply_solvers() {
  static const solver::RowSolver<NormApplyProblem> rows(kRowsForm), columns(kColumnsForm),
      pointwise(kPointwiseForm);
  return {&rows, &columns, &pointwise};
}

MemoryOperands operands_of(const at::Tensor& y, const at::Tensor& x, const at::Tensor* dy,
                           const at::Tensor& coefficients) {
  MemoryOperands o;
  o.in0 = buffer_of(x), o.in2 = buffer_of(coefficients), o.out0 = buffer_of(y);
  if (dy) o.in1 = buffer_of(*dy);
  return o;
}

}  // namespace

void apply(const Context& context, const ChannelsLast& extent, const at::Tensor& y, const at::Tensor& x,
           const at::Tensor* dy, const at::Tensor& coefficients) {
  const NormApplyProblem p = context.problem(dy ? solver::norm_apply_bwd_op : solver::norm_apply_op);
  const MemoryOperands o = operands_of(y, x, dy, coefficients);
  const auto channels = static_cast<int32_t>(extent.channels), length = static_cast<int32_t>(extent.length);
  const Walk walk{
      {static_cast<uint32_t>(channels), static_cast<uint32_t>(length), static_cast<uint32_t>(extent.samples)},
      {1, channels, channels * length},
      {1, 0, channels}};
  run_as_pointwise(p, o, Types(p), context.stream, walk, extent.samples * extent.channels);
}

void apply(const Context& context, const Extent& extent, const at::Tensor& y, const at::Tensor& x,
           const at::Tensor* dy, const at::Tensor& coefficients) {
  NormApplyProblem p = context.problem(dy ? solver::norm_apply_bwd_op : solver::norm_apply_op);
  p.outer = extent.outer, p.rows = extent.rows, p.inner = extent.inner;
  p.types[solver::MemoryProblem::kInputs] = p.types[0];
  p.extents[0] = p.extents[solver::MemoryProblem::kInputs] = x.numel();
  if (dy) p.types[1] = p.types[0], p.extents[1] = p.extents[0];
  p.types[2] = context.compute_scalar, p.extents[2] = coefficients.numel();
  const MemoryOperands o = operands_of(y, x, dy, coefficients);
  if (solver::is_worth_choosing(*p.op, p.extents[0])) return solver::run(p, o, context.stream);
  if (!is_cpu(context.device) || extent.inner == 1) return run_as_pointwise(p, o, Types(p), context.stream);
  const Plan plan = plan_rows(p, context.device, {});
  enqueue(p, plan, context.kernel(plan.kernel), o, context.stream);
}

}  // namespace dlb::norm

namespace dlb::solver {

const OpOf<NormApplyProblem> norm_apply_op("norm_apply", norm::apply_solvers),
    norm_apply_bwd_op("norm_apply_bwd", norm::apply_solvers);

}  // namespace dlb::solver
