// Pooling as launch problems: the solvers differ in which neighbours a work-item takes, and backward in
// whether inputs gather or outputs scatter.
#include "primitives/pool/pool.h"

#include "runtime/family.h"
#include "primitives/common/lines.h"
#include "runtime/tensor.h"
#include "primitives/common/launch_problem.h"

namespace dlb::pool {
namespace {

using at::Tensor;
using solver::always;
using solver::Applicability;
using solver::Config;
using solver::is_cpu;
using solver::LaunchForm;
using solver::LaunchProblem;
using solver::one_config;
using solver::Op;

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

// numbers[] of the problems: strides of the input's side (x, or its gradient) and the output's side, samples
// and channels, the axes, what an average divides by. Forward in0: x, out0: y, out1: indices. Backward in0:
// y's gradient, in1: indices, out0: x's gradient.
enum : size_t { kXs = 0, kYs = 5, kSamples = 10, kChannels, kAxes, kIncludePad = kAxes + 18, kDivisor };

bool is_max(const LaunchProblem& p) {
  return p.what == Op::kMaxPool || p.what == Op::kMaxPoolBackward;
}
bool is_backward(const LaunchProblem& p) {
  return p.what == Op::kMaxPoolBackward || p.what == Op::kAvgPoolBackward;
}

View5 view_of(const LaunchProblem& p, bool input_side) {
  View5 view;
  view.size[0] = p.numbers[kSamples], view.size[1] = p.numbers[kChannels];
  for (size_t i = 0; i < 3; ++i) view.size[2 + i] = p.numbers[kAxes + 6 * i + (input_side ? 0 : 1)];
  for (size_t i = 0; i < 5; ++i) view.stride[i] = p.numbers[(input_side ? kXs : kYs) + i];
  return view;
}

Params params_of(const LaunchProblem& p) {
  const auto i32 = [&](size_t i) { return static_cast<int32_t>(p.numbers[i]); };
  Params params{0, 0, 0, Lines(view_of(p, true), view_of(p, false)), {}, i32(kIncludePad), i32(kDivisor)};
  for (size_t i = 0; i < 3; ++i) {
    const size_t at = kAxes + 6 * i;
    params.axis[i] = {i32(at), i32(at + 1), i32(at + 2), i32(at + 3), i32(at + 4), i32(at + 5)};
  }
  return params;
}

int64_t elements_of(const View5& view) {
  int64_t all = 1;
  for (const int64_t size : view.size) all *= size;
  return all;
}

int64_t window_work(const Params& p) {
  int64_t work = 1;
  for (const Axis& a : p.axis) work *= a.kernel ? a.kernel : (a.in + a.out - 1) / a.out;
  return work;
}

// How one kernel is launched.
struct Plan {
  const char* kernel;
  Params params;
  Team team{};
  const char* options = "";
};

// Whether neighbours along the width can be taken together. Backward they go through all windows that hold
// any of them, which are few for the short pieces of GPUs.
bool takes_widths(const LaunchProblem& p, const cl::Device& device) {
  return is_backward(p) ? !is_cpu(device) : p.numbers[kAxes + 2 * 6 + 2] > 0;
}

// A config's value: neighbours taken together; 0: one on a GPU, kLineBlock on a CPU.
Plan plan_lines(const LaunchProblem& p, const cl::Device& device, const Config& config) {
  Plan plan{is_max(p) ? "max_pool" : "avg_pool", params_of(p)};
  const bool backward = is_backward(p);
  if (backward) plan.kernel = is_max(p) ? "max_pool_backward" : "avg_pool_backward";
  const int64_t work = backward ? 4 : window_work(plan.params);
  const int32_t most = config.values[0] ? config.values[0] : is_cpu(device) ? kLineBlock : 1;
  plan.team = plan.params.lines.team(device, view_of(p, backward), takes_widths(p, device), work, most);
  plan.options = plan.params.lines.options(device, dtype_of(p.dtype, "pool"));
  return plan;
}

Plan plan_planes(const LaunchProblem& p, const cl::Device& device, const Config&) {
  Plan plan{is_max(p) ? "max_pool_backward_planes" : "avg_pool_backward_planes", params_of(p)};
  const View5 x = view_of(p, true);
  const int64_t planes = x.size[0] * x.size[1];
  plan.team = make_team(device, planes, elements_of(x) / planes, 1);
  return plan;
}

Plan plan_windows(const LaunchProblem& p, const cl::Device& device, const Config&) {
  Plan plan{is_max(p) ? "max_pool_backward_windows" : "avg_pool_backward_windows", params_of(p)};
  plan.team = plan.params.lines.team(device, view_of(p, false), is_cpu(device), window_work(plan.params),
                                     is_cpu(device) ? kLineBlock : 1);
  return plan;
}

Plan plan_reference(const LaunchProblem& p, const cl::Device& device, const Config&) {
  Plan plan{is_max(p) ? "max_pool_reference" : "avg_pool_reference", params_of(p)};
  if (is_backward(p)) plan.kernel = is_max(p) ? "max_pool_reference_backward" : "avg_pool_reference_backward";
  plan.team = make_team(device, elements_of(view_of(p, is_backward(p))), window_work(plan.params), 1);
  return plan;
}

cl::Kernel& kernel_of(const LaunchProblem& p, cl::Device& device, const Plan& plan) {
  const auto type = dtype_of(p.dtype, "pool");
  return family_kernel(device, "pool.cl", plan.kernel, codegen::compute_type(type), {type}, plan.options);
}

void enqueue(const LaunchProblem& p, const Plan& plan, cl::Kernel& kernel, const LaunchProblem::Operands& o,
             Stream& stream) {
  const bool backward = is_backward(p);
  const solver::Buffer &x = backward ? o.out0 : o.in0, &y = backward ? o.in0 : o.out0,
                       &index = backward ? o.in1 : o.out1;
  Params params = plan.params;
  params.x = x.offset, params.y = y.offset, params.index = index.offset;
  const cl::Range range = range_of(stream.device(), plan.team);
  if (is_max(p))
    kernel.launch(stream.queue(), range, x.mem, y.mem, index.mem, params, plan.team);
  else
    kernel.launch(stream.queue(), range, x.mem, y.mem, params, plan.team);
}

template <auto planner>
constexpr auto invoker = solver::planned_invoker<planner, kernel_of, enqueue>;

// Whether samples, channels and spatial axes lie behind each other without gaps.
bool is_dense(const View5& view) {
  int64_t expected = 1;
  for (size_t i = 5; i-- > 0;) {
    if (view.size[i] != 1 && view.stride[i] != expected) return false;
    expected *= view.size[i];
  }
  return true;
}

Applicability planes_applicable(const LaunchProblem& p, const cl::Device& device) {
  if (!is_cpu(device)) return Applicability::no("for CPU-class devices");
  if (!is_dense(view_of(p, true)) || !is_dense(view_of(p, false)))
    return Applicability::no("planes are not contiguous");
  if (c10::elementSize(p.dtype) < 4) return Applicability::no("sums would be rounded to the result's type");
  return Applicability::yes();
}
Applicability windows_applicable(const LaunchProblem& p, const cl::Device&) {
  for (const Axis& a : params_of(p).axis) {
    if (a.kernel == 0 && a.in % a.out != 0) return Applicability::no("windows of different sizes");
    if (a.kernel > 1 && a.dilation > 1) return Applicability::no("windows have gaps");
    if (a.kernel > a.stride) return Applicability::no("windows overlap");
  }
  return Applicability::yes();
}

// Microseconds, times what a form is expected to lose.
double work_estimate(const LaunchProblem& p, const cl::Device& device) {
  const double rate = is_cpu(device) ? 400.0 * device.compute_units : 1e5;  // elements per microsecond
  return 5 + static_cast<double>(elements_of(view_of(p, true))) / rate;
}
template <int percent>
double estimate(const LaunchProblem& p, const cl::Device& device) {
  return work_estimate(p, device) * percent / 100;
}

// Pieces of another length where lines are long enough; the usual one first.
std::vector<Config> lines_configs(const LaunchProblem& p, const cl::Device& device) {
  const Params params = plan_lines(p, device, {}).params;
  const int64_t line = params.lines.channels_inner || takes_widths(p, device) ? params.lines.line : 1;
  if (is_cpu(device))
    return line > kLineBlock ? std::vector<Config>{{}, {{kMostLineBlock}}} : std::vector<Config>{{}};
  return line > 1 ? std::vector<Config>{{{kGpuBlock}}, {}} : std::vector<Config>{{}};
}

// The first and the last sample.
std::vector<solver::Part<LaunchProblem>> parts(const LaunchProblem& p) {
  constexpr int64_t kMostElements = 32 << 20;
  std::vector<solver::Part<LaunchProblem>> list;
  const int64_t last = p.numbers[kSamples] - 1;
  if (elements_of(view_of(p, true)) / (last + 1) > kMostElements) return {};
  for (int64_t sample = 0; sample <= last; sample += std::max<int64_t>(last, 1)) {
    solver::Part<LaunchProblem> part{p, {}};
    part.problem.numbers[kSamples] = 1;
    const int64_t x = sample * p.numbers[kXs], y = sample * p.numbers[kYs];
    auto& shift = part.shift;
    shift.in0.offset = is_backward(p) ? y : x, shift.in1.offset = y;
    shift.out0.offset = is_backward(p) ? x : y, shift.out1.offset = y;
    list.push_back(part);
  }
  return list;
}

void fill_indices(const LaunchProblem& p, const LaunchProblem::Operands& o, Stream& stream) {
  Plan plan{"max_pool_any_indices", params_of(p)};
  plan.team = make_team(stream.device(), elements_of(view_of(p, false)), 4, 1);
  plan.params.index = o.in1.offset;
  kernel_of(p, stream.device(), plan)
      .launch(stream.queue(), range_of(stream.device(), plan.team), o.in1.mem, plan.params, plan.team);
}

// Nothing is read twice. An H100 takes a fifth of gathering's time.
double windows_estimate(const LaunchProblem& p, const cl::Device& device) {
  return is_cpu(device) ? estimate<110>(p, device) : estimate<30>(p, device);
}

const LaunchForm kLines{"lines", always, estimate<100>, lines_configs, invoker<plan_lines>};
const LaunchForm kGather{"gather", always, estimate<120>, lines_configs, invoker<plan_lines>, nullptr, 2};
const LaunchForm kPlanes{"planes", planes_applicable, estimate<100>, one_config, invoker<plan_planes>};
const LaunchForm kWindows{"windows", windows_applicable, windows_estimate, one_config, invoker<plan_windows>};
const LaunchForm kReference{"reference", always, estimate<5000>, one_config, invoker<plan_reference>};

const std::vector<solver::LaunchField> kFields = {{"xs", 5}, {"ys", 5}, {"n"},           {"c"},      {"d", 6},
                                                  {"h", 6},  {"w", 6},  {"include_pad"}, {"divisor"}};
const solver::RegisterLaunchFamily kMaxFamily(Op::kMaxPool,
                                              {kFields, solver::solvers_of({kLines, kReference}), parts});
const solver::RegisterLaunchFamily kAvgFamily(Op::kAvgPool,
                                              {kFields, solver::solvers_of({kLines, kReference}), parts});
const solver::RegisterLaunchFamily kMaxBackwardFamily(
    Op::kMaxPoolBackward,
    {kFields, solver::solvers_of({kPlanes, kWindows, kGather, kReference}), parts, 0, fill_indices});
const solver::RegisterLaunchFamily kAvgBackwardFamily(
    Op::kAvgPoolBackward, {kFields, solver::solvers_of({kPlanes, kWindows, kGather, kReference}), parts});

// `in` and `out`: the input's side and the output's side.
LaunchProblem problem_of(Op what, const Tensor& in, const Tensor& out, const Windows& windows, int axes,
                         const char* op) {
  const cl::Device& device = current_stream(in.device().index()).device();
  const auto type = dtype_of(in.scalar_type(), op);
  TORCH_CHECK_NOT_IMPLEMENTED(
      codegen::class_of(type) == codegen::DClass::Float || codegen::class_of(type) == codegen::DClass::Int,
      "\"", op, "\" not implemented for '", c10::toString(in.scalar_type()), "'");
  check_device_supports(device, type, op);
  TORCH_CHECK(in.numel() < (int64_t{1} << 31) && out.numel() < (int64_t{1} << 31), op,
              ": tensors of 2^31 elements or more are not supported");
  const View5 x(in, axes), y(out, axes);
  LaunchProblem p;
  p.what = what;
  p.device = static_cast<int8_t>(in.device().index());
  p.dtype = in.scalar_type();
  std::copy(x.stride.begin(), x.stride.end(), p.numbers + kXs);
  std::copy(y.stride.begin(), y.stride.end(), p.numbers + kYs);
  p.numbers[kSamples] = x.size[0], p.numbers[kChannels] = x.size[1];
  for (size_t i = 0; i < 3; ++i) {
    const Window& w = windows[i];
    const int64_t axis[] = {x.size[2 + i], y.size[2 + i], w.kernel, w.stride, w.pad, w.dilation};
    std::copy(std::begin(axis), std::end(axis), p.numbers + kAxes + 6 * i);
  }
  return p;
}

void set_operand(LaunchProblem& p, size_t slot, solver::Buffer& buffer, const Tensor& tensor) {
  p.types[slot] = tensor.scalar_type();
  p.extents[slot] = 1;
  for (int64_t d = 0; d < tensor.dim(); ++d) p.extents[slot] += (tensor.size(d) - 1) * tensor.stride(d);
  const Operand operand = operand_of(tensor);
  buffer = {operand.mem, operand.offset};
}

void set_divisor(LaunchProblem& p, const Divisor& divisor) {
  p.numbers[kIncludePad] = divisor.count_include_pad;
  TORCH_CHECK(!divisor.override || *divisor.override != 0, "divisor must be not zero");
  p.numbers[kDivisor] = divisor.override.value_or(0);
}

// By what the solvers chose, or where that does not pay by the first guess.
void run(const LaunchProblem& p, const LaunchProblem::Operands& o) {
  Stream& stream = current_stream(p.device);
  cl::Device& device = stream.device();
  if (solver::is_worth_choosing(p.what, elements_of(view_of(p, true)))) return solver::run(p, o, stream);
  const bool cpu_backward = is_backward(p) && is_cpu(device);
  const auto planner = cpu_backward && planes_applicable(p, device)    ? plan_planes
                       : cpu_backward && windows_applicable(p, device) ? plan_windows
                                                                       : plan_lines;
  const Plan plan = planner(p, device, {});
  enqueue(p, plan, kernel_of(p, device, plan), o, stream);
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
  LaunchProblem p = problem_of(Op::kMaxPool, x, y, windows, axes, op);
  LaunchProblem::Operands o;
  set_operand(p, 0, o.in0, x);
  set_operand(p, LaunchProblem::kInputs, o.out0, y);
  set_operand(p, LaunchProblem::kInputs + 1, o.out1, indices);
  run(p, o);
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
  LaunchProblem p = problem_of(Op::kMaxPoolBackward, grad_input, grad_output, windows, axes, op);
  LaunchProblem::Operands o;
  set_operand(p, 0, o.in0, grad_output);
  set_operand(p, 1, o.in1, indices);
  set_operand(p, LaunchProblem::kInputs, o.out0, grad_input);
  run(p, o);
}

void avg_forward(const Tensor& x, const Tensor& y, const Windows& windows, int axes, Divisor divisor,
                 const char* op) {
  if (y.numel() == 0) return;
  LaunchProblem p = problem_of(Op::kAvgPool, x, y, windows, axes, op);
  set_divisor(p, divisor);
  LaunchProblem::Operands o;
  set_operand(p, 0, o.in0, x);
  set_operand(p, LaunchProblem::kInputs, o.out0, y);
  run(p, o);
}

void avg_backward(const Tensor& grad_input, const Tensor& grad_output, const Windows& windows, int axes,
                  Divisor divisor, const char* op) {
  if (grad_input.numel() == 0) return;
  if (grad_output.numel() == 0) {
    grad_input.zero_();
    return;
  }
  LaunchProblem p = problem_of(Op::kAvgPoolBackward, grad_input, grad_output, windows, axes, op);
  set_divisor(p, divisor);
  LaunchProblem::Operands o;
  set_operand(p, 0, o.in0, grad_output);
  set_operand(p, LaunchProblem::kInputs, o.out0, grad_input);
  run(p, o);
}

}  // namespace dlb::pool
