// softmax and log_softmax with their gradients, over any dimension: a family of launch problems, whose
// solvers differ in how work-items share rows.
#include <ATen/WrapDimUtils.h>
#include <ATen/ops/_log_softmax_backward_data_meta.h>
#include <ATen/ops/_log_softmax_meta.h>
#include <ATen/ops/_softmax_backward_data_meta.h>
#include <ATen/ops/_softmax_meta.h>
#include <torch/library.h>

#include "runtime/family.h"
#include "ops/common/structured.h"
#include "primitives/common/team.h"
#include "runtime/tensor.h"
#include "primitives/common/launch_problem.h"

namespace dlb {
namespace {

using solver::always;
using solver::Applicability;
using solver::Config;
using solver::is_cpu;
using solver::LaunchForm;
using solver::LaunchProblem;
using solver::one_config;
using solver::Op;

// As softmax_params in softmax.cl.
struct Params {
  int64_t x, y, z;
  int32_t dim, inner, log_form, block;
};

constexpr int64_t kHeld = 32;  // HELD of the kernels

// numbers[] of the problems; in0: input or grad_output, in1: the forward's output, out0: the result.
enum : size_t { kOuter, kDim, kInner, kLog };

struct Shape {
  int64_t outer = 1, dim = 1, inner = 1;
};
Shape shape_of(const at::Tensor& self, int64_t dim) {
  Shape s;
  const int64_t rank = self.dim();
  if (rank == 0) return s;
  dim = at::maybe_wrap_dim(dim, rank);
  for (int64_t i = 0; i < rank; ++i) (i < dim ? s.outer : i == dim ? s.dim : s.inner) *= self.size(i);
  return s;
}

bool is_backward(const LaunchProblem& p) {
  return p.what == Op::kSoftmaxBackward;
}
int64_t elements_of(const LaunchProblem& p) {
  return p.numbers[kOuter] * p.numbers[kDim] * p.numbers[kInner];
}

// How one kernel is launched.
struct Plan {
  const char* kernel;
  Team team;
  cl::Range range;
  int32_t block = 1;
};

Plan plan_teams(const char* kernel, const cl::Device& device, const Team& team, int64_t block = 1) {
  return {kernel, team, range_of(device, team), static_cast<int32_t>(block)};
}

// A config's first value. CPU: work-items per compute unit; GPU: work-items that share a row or a column. 0:
// by the sizes. The second: columns of a block.
Team team_of(const cl::Device& device, int64_t rows, int64_t work, const Config& config, uint32_t gpu_lanes) {
  Team team = make_team(device, rows, work, gpu_lanes);
  if (config.values[0] == 0) return team;
  if (is_cpu(device))
    team.per_item =
        static_cast<uint32_t>(std::max<int64_t>(1, (rows + config.values[0] * device.compute_units - 1) /
                                                       (config.values[0] * int64_t{device.compute_units})));
  else
    team.lanes = static_cast<uint32_t>(config.values[0]);
  return team;
}

Plan plan_rows(const LaunchProblem& p, const cl::Device& device, const Config& config) {
  return plan_teams(is_backward(p) ? "softmax_rows_backward" : "softmax_rows", device,
                    team_of(device, p.numbers[kOuter], p.numbers[kDim], config, kTeamGroup));
}

Plan plan_rows_once(const LaunchProblem& p, const cl::Device& device, const Config& config) {
  return plan_teams("softmax_rows_once", device,
                    team_of(device, p.numbers[kOuter], p.numbers[kDim], config, kTeamGroup));
}

// GPU teams whose work-items hold their part of a row in registers.
Plan plan_held(const LaunchProblem& p, const cl::Device& device, const Config& config) {
  const int64_t dim = p.numbers[kDim];
  Team team{static_cast<uint32_t>(p.numbers[kOuter]), 1, static_cast<uint32_t>(config.values[0])};
  if (config.values[0] == 0)
    for (team.lanes = 1; team.lanes * kHeld < dim || (team.lanes < 32 && team.lanes * 4 < dim);)
      team.lanes *= 2;
  return plan_teams("softmax_rows_held", device, team);
}

Plan plan_columns(const LaunchProblem& p, const cl::Device& device, const Config& config) {
  const int64_t inner = p.numbers[kInner];
  const int64_t block = is_cpu(device) ? (config.values[1] ? config.values[1] : 64) : 1;
  const int64_t rows = p.numbers[kOuter] * ((inner + block - 1) / block);
  const char* kernel = is_backward(p) ? "softmax_columns_backward" : "softmax_columns";
  return plan_teams(kernel, device,
                    team_of(device, rows, p.numbers[kDim] * std::min(inner, block), config, 1), block);
}

// GPU: as many work-items along the dimension as fill the device.
Plan plan_shared(const LaunchProblem& p, const cl::Device& device, const Config& config) {
  const int64_t inner = p.numbers[kInner];
  Team team{static_cast<uint32_t>(p.numbers[kOuter]), 1, 8};
  while (team.lanes < 64 && kTeamGroup / team.lanes > inner) team.lanes *= 2;
  if (config.values[0]) team.lanes = static_cast<uint32_t>(config.values[0]);
  const int64_t width = kTeamGroup / team.lanes;
  const auto groups = static_cast<size_t>(p.numbers[kOuter] * ((inner + width - 1) / width));
  return {is_backward(p) ? "softmax_columns_shared_backward" : "softmax_columns_shared", team,
          cl::Range::linear(groups, kTeamGroup)};
}

Plan plan_reference(const LaunchProblem& p, const cl::Device& device, const Config&) {
  const Team team{static_cast<uint32_t>(p.numbers[kOuter] * p.numbers[kInner]), 1, 1};
  return plan_teams(is_backward(p) ? "softmax_reference_backward" : "softmax_reference", device, team);
}

codegen::DType compute_of(const LaunchProblem& p) {
  const auto from = dtype_of(p.types[0], "softmax"),
             to = dtype_of(p.types[LaunchProblem::kInputs], "softmax");
  return codegen::compute_type(to == codegen::DType::F64 ? to : from);
}

cl::Kernel& kernel_of(const LaunchProblem& p, cl::Device& device, const Plan& plan) {
  return family_kernel(
      device, "softmax.cl", plan.kernel, compute_of(p),
      {dtype_of(p.types[0], "softmax"), dtype_of(p.types[LaunchProblem::kInputs], "softmax")});
}

void enqueue(const LaunchProblem& p, const Plan& plan, cl::Kernel& kernel, const LaunchProblem::Operands& o,
             Stream& stream) {
  const Params params{o.in0.offset,
                      o.out0.offset,
                      o.in1.offset,
                      static_cast<int32_t>(p.numbers[kDim]),
                      static_cast<int32_t>(p.numbers[kInner]),
                      static_cast<int32_t>(p.numbers[kLog]),
                      plan.block};
  if (is_backward(p))
    kernel.launch(stream.queue(), plan.range, o.in0.mem, o.in1.mem, o.out0.mem, params, plan.team);
  else
    kernel.launch(stream.queue(), plan.range, o.in0.mem, o.out0.mem, params, plan.team);
}

template <auto planner>
constexpr auto invoker = solver::planned_invoker<planner, kernel_of, enqueue>;

Applicability rows_applicable(const LaunchProblem& p, const cl::Device&) {
  return p.numbers[kInner] == 1 ? Applicability::yes() : Applicability::no("the dimension is not contiguous");
}
Applicability once_applicable(const LaunchProblem& p, const cl::Device& device) {
  if (p.numbers[kLog]) return Applicability::no("not for log_softmax");
  if (dtype_of(p.types[LaunchProblem::kInputs], "softmax") != compute_of(p))
    return Applicability::no("the result is less precise than what is computed in");
  return rows_applicable(p, device);
}
Applicability held_applicable(const LaunchProblem& p, const cl::Device& device) {
  if (is_cpu(device)) return Applicability::no("for GPU-class devices");
  if (p.numbers[kDim] > kHeld * kTeamGroup) return Applicability::no("rows do not fit in registers");
  return rows_applicable(p, device);
}
Applicability shared_applicable(const LaunchProblem& p, const cl::Device& device) {
  if (is_cpu(device)) return Applicability::no("for GPU-class devices");
  return p.numbers[kInner] > 1 ? Applicability::yes() : Applicability::no("the dimension is contiguous");
}

// Microseconds of a kernel that streams well, times what a form is expected to lose.
template <int percent>
double estimate(const LaunchProblem& p, const cl::Device& device) {
  const double rate = is_cpu(device) ? 400.0 * device.compute_units : 1e5;  // elements per microsecond
  return 5 + static_cast<double>(elements_of(p)) / rate * percent / 100;
}
// Columns of a GPU: a work-item each, which are too few where the inner dimensions are small.
double columns_estimate(const LaunchProblem& p, const cl::Device& device) {
  const double columns = static_cast<double>(p.numbers[kOuter] * p.numbers[kInner]);
  if (p.numbers[kInner] == 1) return estimate<1000>(p, device);
  if (is_cpu(device)) return estimate<100>(p, device);
  const double filled = columns / (device.compute_units * 512.0);
  return estimate<100>(p, device) / std::min(1.0, filled);
}

std::vector<Config> list_of(std::initializer_list<int32_t> first) {
  std::vector<Config> list(1);
  for (const int32_t value : first) list.push_back({{value}});
  return list;
}
std::vector<Config> rows_configs(const LaunchProblem&, const cl::Device& device) {
  return is_cpu(device) ? list_of({1, 16}) : list_of({16, 32, 64, 128, 256});
}
std::vector<Config> held_configs(const LaunchProblem& p, const cl::Device&) {
  std::vector<Config> list(1);
  for (int32_t lanes = 16; lanes <= static_cast<int32_t>(kTeamGroup); lanes *= 2)
    if (lanes * kHeld >= p.numbers[kDim] && lanes / 4 < p.numbers[kDim]) list.push_back({{lanes}});
  return list;
}
std::vector<Config> columns_configs(const LaunchProblem& p, const cl::Device& device) {
  if (!is_cpu(device)) return {Config{}};
  std::vector<Config> list = list_of({16});
  for (const int32_t block : {16, 256})
    if (p.numbers[kInner] > block / 2) list.push_back({{0, block}});
  return list;
}
std::vector<Config> shared_configs(const LaunchProblem& p, const cl::Device&) {
  return list_of({4, 16, 64, 256});
}

// Some rows at both ends; none where one alone is too much for one work-item.
std::vector<solver::Part<LaunchProblem>> parts(const LaunchProblem& p) {
  constexpr int64_t kElements = 64 * 1024, kMostElements = 16 << 20, kMostRow = 256 * 1024;
  const int64_t row = p.numbers[kDim] * p.numbers[kInner];
  if (p.numbers[kDim] > kMostRow || row > kMostElements) return {};
  std::vector<solver::Part<LaunchProblem>> list;
  for (const bool last : {false, true}) {
    solver::Part<LaunchProblem> part{p, {}};
    const int64_t rows = std::min(p.numbers[kOuter], std::max<int64_t>(1, kElements / row));
    part.problem.numbers[kOuter] = rows;
    for (int64_t& extent : part.problem.extents)
      if (extent) extent = rows * row;
    const int64_t begin = last ? (p.numbers[kOuter] - rows) * row : 0;
    part.shift.in0.offset = part.shift.in1.offset = part.shift.out0.offset = begin;
    list.push_back(part);
  }
  return list;
}

const LaunchForm kRows{"rows", rows_applicable, estimate<100>, rows_configs, invoker<plan_rows>};
const LaunchForm kRowsOnce{"rows_once", once_applicable, estimate<110>, rows_configs,
                           invoker<plan_rows_once>};
const LaunchForm kRowsHeld{"rows_held", held_applicable, estimate<80>, held_configs, invoker<plan_held>};
const LaunchForm kColumns{"columns", always, columns_estimate, columns_configs, invoker<plan_columns>};
const LaunchForm kShared{"columns_shared", shared_applicable, estimate<150>, shared_configs,
                         invoker<plan_shared>};
const LaunchForm kReference{"reference", always, estimate<5000>, one_config, invoker<plan_reference>};

const std::vector<solver::LaunchField> kFields = {{"outer"}, {"dim"}, {"inner"}, {"log"}};
const solver::RegisterLaunchFamily kForwardFamily(
    Op::kSoftmax,
    {kFields, solver::solvers_of({kRowsHeld, kRows, kRowsOnce, kColumns, kShared, kReference}), parts});
const solver::RegisterLaunchFamily kBackwardFamily(
    Op::kSoftmaxBackward, {kFields, solver::solvers_of({kRows, kColumns, kShared, kReference}), parts});

// What runs where choosing does not pay.
Plan first_guess(const LaunchProblem& p, const cl::Device& device) {
  const bool rows = p.numbers[kInner] == 1;
  if (rows && !is_backward(p) && held_applicable(p, device)) return plan_held(p, device, {});
  return rows ? plan_rows(p, device, {}) : plan_columns(p, device, {});
}

// Backward when `result` is given: x is grad_output.
void run(const at::Tensor& x, const at::Tensor* result, const at::Tensor& y, int64_t dim, bool log_form,
         const char* op) {
  if (y.numel() == 0) return;
  const Shape s = shape_of(y, dim);
  TORCH_CHECK(y.numel() < (int64_t{1} << 31), op, ": tensors of 2^31 elements or more are not supported");
  Stream& stream = current_stream(y.device().index());
  cl::Device& device = stream.device();
  const auto from = dtype_of(x.scalar_type(), op);
  TORCH_CHECK_NOT_IMPLEMENTED(codegen::class_of(from) == codegen::DClass::Float, "\"", op,
                              "\" not implemented for '", c10::toString(x.scalar_type()), "'");
  LaunchProblem p;
  p.what = result ? Op::kSoftmaxBackward : Op::kSoftmax;
  p.device = static_cast<int8_t>(y.device().index());
  p.dtype = p.types[0] = x.scalar_type();
  p.types[LaunchProblem::kInputs] = y.scalar_type();
  p.extents[0] = p.extents[LaunchProblem::kInputs] = y.numel();
  if (result) p.types[1] = x.scalar_type(), p.extents[1] = y.numel();
  p.numbers[kOuter] = s.outer, p.numbers[kDim] = s.dim, p.numbers[kInner] = s.inner;
  p.numbers[kLog] = log_form;
  check_device_supports(device, compute_of(p), op);

  const at::Tensor in = x.contiguous(), out_values = result ? result->contiguous() : at::Tensor();
  const Operand xs = operand_of(in), ys = operand_of(y);
  const Operand zs = result ? operand_of(out_values) : Operand{nullptr, 0};
  LaunchProblem::Operands o;
  o.in0 = {xs.mem, xs.offset}, o.in1 = {zs.mem, zs.offset}, o.out0 = {ys.mem, ys.offset};
  if (solver::is_worth_choosing(p.what, y.numel())) return solver::run(p, o, stream);
  const Plan plan = first_guess(p, device);
  enqueue(p, plan, kernel_of(p, device, plan), o, stream);
}

template <class Meta, bool LogForm>
at::Tensor& forward(const at::Tensor& self, int64_t dim, bool half_to_float, at::Tensor& out) {
  OutOp<Meta> op(out);
  op.meta(self, dim, half_to_float);
  run(self, nullptr, op.result(), dim, LogForm, LogForm ? "log_softmax" : "softmax");
  op.finish();
  return out;
}

template <class Meta, bool LogForm>
at::Tensor& backward(const at::Tensor& grad_output, const at::Tensor& output, int64_t dim,
                     at::ScalarType input_dtype, at::Tensor& grad_input) {
  OutOp<Meta> op(grad_input);
  op.meta(grad_output, output, dim, input_dtype);
  run(grad_output, &output, op.result(), dim, LogForm, LogForm ? "log_softmax_backward" : "softmax_backward");
  op.finish();
  return grad_input;
}

}  // namespace

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("_softmax.out", forward<at::meta::structured__softmax, false>);
  m.impl("_log_softmax.out", forward<at::meta::structured__log_softmax, true>);
  m.impl("_softmax_backward_data.out", backward<at::meta::structured__softmax_backward_data, false>);
  m.impl("_log_softmax_backward_data.out", backward<at::meta::structured__log_softmax_backward_data, true>);
}

}  // namespace dlb
