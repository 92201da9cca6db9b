// The passes over the data of normalisations - statistics forward, two sums backward - as launch problems:
// how rows and columns are cut and shared.
#include "primitives/norm/norm.h"

#include <ATen/EmptyTensor.h>

#include "primitives/common/estimates.h"
#include "solver/execute.h"
#include "solver/solver_row.h"

namespace dlb::norm {
namespace {

using solver::Applicability;
using solver::Config;
using solver::is_cpu;
using solver::MemoryOperands;
using solver::NormPassProblem;
using solver::SolverRow;

constexpr int32_t kMostColumns = 256;  // MOST_COLUMNS in norm.cl
constexpr uint32_t kNeighbours = 4;    // WIDE there

bool is_backward(const NormPassProblem& p) {
  return p.is_sums();
}

Layout layout_of(const NormPassProblem& p) {
  const auto u32 = [](int64_t size) { return static_cast<uint32_t>(size); };
  Layout layout;
  layout.outer_stride = p.outer_stride, layout.inner_stride = p.inner_stride;
  layout.segment_stride = p.segment_stride;
  layout.inner_rows = u32(p.inner_rows), layout.rows = u32(p.rows), layout.length = u32(p.length);
  layout.count = u32(p.count), layout.mean_group = u32(p.mean_group);
  layout.length_divider = codegen::make_divider(layout.length);
  return layout;
}

// How one pass is launched.
struct Plan {
  const char* kernel;
  Layout layout;
  uint32_t splits = 1;
  Team team{};
  cl::Range range{};
  // Bytes of the parts' results, which a merge reads; 0 where there is one part.
  uint64_t workspace(codegen::DType compute) const {
    return splits == 1 ? 0 : uint64_t{2} * splits * layout.rows * codegen::size_of(compute);
  }
};

// A config's values: parts per compute unit (0: by the sizes; kPerRun: each run is a part, so that memory is
// read in order), and columns taken together or work-items of a GPU that share a row (0: by the sizes).
constexpr int32_t kPerRun = -1;
struct Tuning {
  int32_t parts, width;
  explicit Tuning(const Config& config) : parts(config.values[0]), width(config.values[1]) {}
};

// Cuts each of `units` independent pieces of `count` steps of `width` elements.
void split(Plan& plan, const cl::Device& device, int64_t units, int64_t width, const Tuning& tuning,
           uint32_t multiple) {
  Layout& layout = plan.layout;
  if (tuning.parts == kPerRun) {
    layout.per_split = layout.length;
    plan.splits = layout.count / layout.length;
    return;
  }
  const int64_t wanted = int64_t{device.compute_units} * (tuning.parts ? tuning.parts : 4);
  const int64_t most = std::max<int64_t>(1, layout.count * width / (is_cpu(device) ? 8192 : 4096));
  const auto splits = static_cast<uint32_t>(
      std::clamp<int64_t>((wanted + units - 1) / units, 1, std::min<int64_t>(most, 1024)));
  layout.per_split = ((layout.count + splits - 1) / splits + multiple - 1) / multiple * multiple;
  plan.splits = (layout.count + layout.per_split - 1) / layout.per_split;
}

template <bool wide>
Plan plan_rows(const NormPassProblem& p, const cl::Device& device, const Config& config) {
  Plan plan{.kernel = is_backward(p) ? (wide ? "norm_sums_rows_wide" : "norm_sums_rows")
                                     : (wide ? "norm_stats_rows_wide" : "norm_stats_rows"),
            .layout = layout_of(p)};
  const Tuning tuning(config);
  split(plan, device, plan.layout.rows, 1, tuning, wide ? kNeighbours : 1);
  const int64_t rows = int64_t{plan.splits} * plan.layout.rows;
  plan.team = make_team(device, rows, plan.layout.per_split);
  if (!is_cpu(device) && tuning.width) plan.team.lanes = static_cast<uint32_t>(tuning.width);
  plan.range = range_of(device, plan.team);
  return plan;
}

// CPU: long pieces of memory where enough of them are left for all compute units.
int32_t columns_together(const NormPassProblem& p, const cl::Device& device) {
  if (!is_cpu(device)) return 32;
  return p.rows >= kMostColumns && p.count >= 2048 ? kMostColumns : 64;
}

Plan plan_columns(const NormPassProblem& p, const cl::Device& device, const Config& config) {
  Plan plan{.kernel = is_backward(p) ? "norm_sums_columns" : "norm_stats_columns", .layout = layout_of(p)};
  Layout& layout = plan.layout;
  const Tuning tuning(config);
  layout.block = static_cast<uint32_t>(tuning.width ? tuning.width : columns_together(p, device));
  const int64_t units = (layout.rows + layout.block - 1) / layout.block;
  const int64_t width = std::min(layout.block, layout.rows);
  split(plan, device, units, width, tuning, 1);
  if (is_cpu(device)) {
    plan.team = make_team(device, units * plan.splits, layout.per_split * width);
    plan.range = range_of(device, plan.team);
  } else {
    plan.range = cl::Range::linear(static_cast<size_t>(units * plan.splits), kTeamGroup);
  }
  return plan;
}

Plan plan_reference(const NormPassProblem& p, const cl::Device& device, const Config&) {
  Plan plan{.kernel = is_backward(p) ? "norm_sums_reference" : "norm_stats_reference",
            .layout = layout_of(p)};
  Layout& layout = plan.layout;
  layout.per_split = layout.count;
  if (p.columns) layout.inner_rows = layout.rows, layout.inner_stride = layout.length = 1;
  plan.team = make_team(device, layout.rows, layout.count, 1);
  plan.range = range_of(device, plan.team);
  return plan;
}

cl::Kernel& kernel_of(const NormPassProblem& p, cl::Device& device, const char* name) {
  return norm_kernel(device, "norm/norm.cl", name, Types(p));
}

// Into `to`: the result, or the parts' results.
void enqueue(const NormPassProblem& p, const Plan& plan, cl::Kernel& kernel, const MemoryOperands& o,
             Buffer to, Stream& stream) {
  Layout layout = plan.layout;
  layout.x = o.in0.offset, layout.dy = o.in1.offset, layout.mean = o.in2.offset, layout.rstd = o.in3.offset;
  layout.partial = to.offset;
  if (is_backward(p))
    kernel.launch(stream.queue(), plan.range, o.in0.mem, o.in1.mem, o.in2.mem, o.in3.mem, to.mem, layout,
                  plan.team);
  else
    kernel.launch(stream.queue(), plan.range, o.in0.mem, to.mem, layout, plan.team);
}

using Planner = Plan (*)(const NormPassProblem&, const cl::Device&, const Config&);

template <Planner planner>
uint64_t workspace(const NormPassProblem& p, const cl::Device& device, const Config& config) {
  return planner(p, device, config).workspace(Types(p).compute);
}

template <Planner planner>
std::unique_ptr<solver::Invoker<NormPassProblem>> invoker(const NormPassProblem& p, cl::Device& device,
                                                          const Config& config) {
  const Plan plan = planner(p, device, config);
  cl::Kernel& kernel = kernel_of(p, device, plan.kernel);
  if (plan.splits == 1)
    return solver::make_invoker<NormPassProblem>(
        [p, plan, &kernel](Stream& stream, const MemoryOperands& o, MemRef) {
          enqueue(p, plan, kernel, o, o.out0, stream);
        });
  cl::Kernel& merge = kernel_of(p, device, is_backward(p) ? "norm_sums_merge" : "norm_stats_merge");
  Finish finish;
  finish.rows = plan.layout.rows, finish.splits = plan.splits;
  finish.count = plan.layout.count, finish.per_split = plan.layout.per_split;
  const Team team = make_team(device, finish.rows, finish.splits, 32);
  const cl::Range range = range_of(device, team);
  const auto size = static_cast<uint64_t>(codegen::size_of(Types(p).compute));
  return solver::make_invoker<NormPassProblem>(
      [=, &kernel, &merge](Stream& stream, const MemoryOperands& o, MemRef memory) {
        const Buffer parts{memory.mem, static_cast<int64_t>(memory.offset / size)};
        enqueue(p, plan, kernel, o, parts, stream);
        Finish last = finish;
        last.partial = parts.offset, last.coefficients = o.out0.offset;
        merge.launch(stream.queue(), range, parts.mem, o.out0.mem, last, team);
      });
}

Applicability rows_applicable(const NormPassProblem& p, const cl::Device&) {
  return p.columns ? Applicability::no("elements of a row are not neighbours") : Applicability::yes();
}
Applicability wide_applicable(const NormPassProblem& p, const cl::Device& device) {
  if (is_cpu(device)) return Applicability::no("for GPU-class devices");
  if (p.length % kNeighbours != 0) return Applicability::no("the length of a run is no multiple of four");
  return rows_applicable(p, device);
}
Applicability columns_applicable(const NormPassProblem& p, const cl::Device&) {
  return p.columns ? Applicability::yes() : Applicability::no("rows are not interleaved");
}

double streaming(const NormPassProblem& p, const cl::Device& device) {
  return solver::streaming_microseconds(p, device);
}
double rows_estimate(const NormPassProblem& p, const cl::Device& device) {
  return wide_applicable(p, device) ? 1.3 * streaming(p, device) : streaming(p, device);
}
double wide_estimate(const NormPassProblem& p, const cl::Device& device) {
  return streaming(p, device);
}
double reference_estimate(const NormPassProblem& p, const cl::Device& device) {
  return 50 * streaming(p, device);
}

bool has_long_runs(const NormPassProblem& p) {
  const int64_t runs = p.count / p.length;
  return runs > 1 && runs <= 4096 && p.length >= 1024;
}
std::vector<Config> rows_configs(const NormPassProblem& p, const cl::Device& device) {
  if (!is_cpu(device)) return {{}, {{2}}, {{16}}, {{0, 64}}};
  std::vector<Config> list = {{}, {{1}}};
  if (has_long_runs(p)) list.push_back({{kPerRun}});
  return list;
}
std::vector<Config> columns_configs(const NormPassProblem& p, const cl::Device& device) {
  if (!is_cpu(device)) return {{}, {{2}}, {{16}}, {{0, 8}}, {{0, 128}}};
  const int32_t guess = columns_together(p, device);
  std::vector<Config> list = {{}, {{0, 16}}};
  if (p.rows > 64) list.push_back({{0, guess == 64 ? kMostColumns : 64}});
  return list;
}

const SolverRow<NormPassProblem> kRowsForm{
    "rows",       rows_applicable,           rows_estimate,
    rows_configs, invoker<plan_rows<false>>, workspace<plan_rows<false>>};
const SolverRow<NormPassProblem> kWideForm{
    "rows_wide",  wide_applicable,          wide_estimate,
    rows_configs, invoker<plan_rows<true>>, workspace<plan_rows<true>>};
const SolverRow<NormPassProblem> kColumnsForm{
    "columns",       columns_applicable,    rows_estimate,
    columns_configs, invoker<plan_columns>, workspace<plan_columns>};
const SolverRow<NormPassProblem> kReferenceForm{"reference", solver::always<NormPassProblem>,
                                                reference_estimate, solver::one_config<NormPassProblem>,
                                                invoker<plan_reference>};

Plan first_guess(const NormPassProblem& p, const cl::Device& device) {
  if (p.columns) return plan_columns(p, device, {});
  return wide_applicable(p, device) ? plan_rows<true>(p, device, {}) : plan_rows<false>(p, device, {});
}

NormPassProblem problem_of(const Context& context, const solver::OpOf<NormPassProblem>& op, Form form,
                           const Layout& layout, const at::Tensor& x) {
  NormPassProblem p = context.problem(op);
  p.outer_stride = layout.outer_stride, p.inner_stride = layout.inner_stride;
  p.segment_stride = layout.segment_stride, p.inner_rows = layout.inner_rows, p.rows = layout.rows;
  p.length = layout.length, p.count = layout.count, p.mean_group = layout.mean_group;
  p.columns = form == Form::Columns;
  p.extents[0] = x.numel();
  p.result_type() = context.compute_scalar;
  p.result_extent() = int64_t{2} * layout.rows;
  return p;
}

// By what the solvers chose, or where that does not pay by the first guess, whose splits the caller merges.
Partial run(const Context& context, const NormPassProblem& p, MemoryOperands o) {
  const int64_t rows = p.rows;
  if (solver::is_worth_choosing(*p.op, p.extents[0])) {
    Partial result{context.scratch(2 * rows), 1, static_cast<uint32_t>(p.count)};
    o.out0 = buffer_of(result.values);
    solver::run(p, o, context.stream);
    return result;
  }
  const Plan plan = first_guess(p, context.device);
  Partial result{context.scratch(2 * plan.splits * rows), plan.splits, plan.layout.per_split};
  enqueue(p, plan, context.kernel(plan.kernel), o, buffer_of(result.values), context.stream);
  return result;
}

std::vector<const solver::Solver<NormPassProblem>*> pass_solvers() {
  static const solver::RowSolver<NormPassProblem> rows(kRowsForm), wide(kWideForm), columns(kColumnsForm),
      reference(kReferenceForm);
  return {&rows, &wide, &columns, &reference};
}

}  // namespace

Context::Context(const at::Tensor& input, const at::Tensor& param_tensor, const char* op)
    : stream(current_stream(input.device().index())),
      device(stream.device()),
      data(dtype_of(input.scalar_type(), op)),
      param(dtype_of(param_tensor.defined() ? param_tensor.scalar_type() : input.scalar_type(), op)),
      compute(codegen::compute_type(data)),
      data_scalar(input.scalar_type()),
      param_scalar(param_tensor.defined() ? param_tensor.scalar_type() : input.scalar_type()),
      compute_scalar(compute == codegen::DType::F64 ? c10::ScalarType::Double : c10::ScalarType::Float) {
  TORCH_CHECK_NOT_IMPLEMENTED(codegen::class_of(data) == codegen::DClass::Float, "\"", op,
                              "\" not implemented for '", c10::toString(input.scalar_type()), "'");
  check_device_supports(device, compute, op);
  TORCH_CHECK(input.numel() < (int64_t{1} << 31), op, ": tensors of 2^31 elements or more are not supported");
}

Types::Types(const solver::MemoryProblem& p)
    : data(dtype_of(p.dtype, "norm")),
      param(dtype_of(p.types[solver::kNormParamType], "norm")),
      compute(codegen::compute_type(data)) {}

at::Tensor Context::scratch(int64_t elements) const {
  return at::detail::empty_generic({elements}, allocator(),
                                   c10::DispatchKeySet(c10::DispatchKey::PrivateUse1), compute_scalar,
                                   std::nullopt);
}

Team Context::finish_team(int64_t rows, uint32_t splits) const {
  return make_team(device, rows, splits, 32);
}

void check_dtypes(const at::Tensor& input, std::initializer_list<const at::Tensor*> params, const char* op) {
  const c10::ScalarType type = input.scalar_type();
  const bool half = type == at::kHalf || type == at::kBFloat16;
  c10::ScalarType expected = c10::ScalarType::Undefined;
  for (const at::Tensor* param : params) {
    if (!param->defined()) continue;
    if (expected == c10::ScalarType::Undefined)
      expected = half && param->scalar_type() != type ? at::kFloat : type;
    TORCH_CHECK(param->scalar_type() == expected, op, ": expected parameters of dtype ", expected,
                " beside an input of ", type, ", but found ", param->scalar_type());
  }
}

Operand optional_operand(const at::Tensor& tensor) {
  return tensor.defined() && tensor.numel() ? operand_of(tensor) : Operand{nullptr, -1};
}

Buffer buffer_of(const at::Tensor& tensor) {
  const Operand operand = optional_operand(tensor);
  return {operand.mem, operand.offset};
}

Partial statistics(const Context& context, Form form, const Layout& layout, const at::Tensor& x) {
  MemoryOperands o;
  o.in0 = buffer_of(x);
  return run(context, problem_of(context, solver::norm_stats_op, form, layout, x), o);
}

Partial gradient_sums(const Context& context, Form form, const Layout& layout, const at::Tensor& x,
                      const at::Tensor& dy, const at::Tensor& mean, const at::Tensor& rstd) {
  NormPassProblem p = problem_of(context, solver::norm_sums_op, form, layout, x);
  p.types[1] = p.types[0], p.extents[1] = p.extents[0];
  p.types[2] = context.compute_scalar, p.extents[2] = mean.numel();
  if (layout.mean_group == 0) p.types[3] = context.compute_scalar, p.extents[3] = rstd.numel();
  MemoryOperands o;
  o.in0 = buffer_of(x), o.in1 = buffer_of(dy), o.in2 = buffer_of(mean), o.in3 = buffer_of(rstd);
  return run(context, p, o);
}

}  // namespace dlb::norm

namespace dlb::solver {

const OpOf<NormPassProblem> norm_stats_op("norm_stats", norm::pass_solvers),
    norm_sums_op("norm_sums", norm::pass_solvers);

std::vector<CheckWindow<NormPassProblem>> NormPassProblem::check_windows() const {
  constexpr int64_t kMostElements = 32 << 20, kMostRow = 4 << 20;
  if (extents[0] > kMostElements || count > kMostRow) return {};
  return {{*this, {}}};
}

}  // namespace dlb::solver
