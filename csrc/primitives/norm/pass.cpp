// What the solvers of passes over the data share, and the first choice for small problems.
#include "primitives/norm/pass.h"

#include "primitives/norm/finish.h"
#include "solver/execute.h"

namespace dlb::norm {
namespace {

constexpr uint32_t u32(int64_t size) {
  return static_cast<uint32_t>(size);
}

cl::Kernel& kernel_of(const NormPassProblem& p, cl::Device& device, const PassLaunch& launch) {
  return norm_kernel(device, launch.file, launch.kernel, Types(p));
}

// Into `to`: the result, or the splits' results.
void enqueue(const NormPassProblem& p, const PassLaunch& launch, cl::Kernel& kernel, const MemoryOperands& o,
             Buffer to, Stream& stream) {
  params::NormPass params = launch.params;
  params.x = o.in0.offset, params.dy = o.in1.offset, params.mean = o.in2.offset, params.rstd = o.in3.offset;
  params.results = to.offset;
  if (p.is_sums())
    kernel.launch(stream.queue(), launch.range, o.in0.mem, o.in1.mem, o.in2.mem, o.in3.mem, to.mem, params,
                  launch.team);
  else
    kernel.launch(stream.queue(), launch.range, o.in0.mem, to.mem, params, launch.team);
}

PassLaunch first_choice(const NormPassProblem& p, const cl::Device& device) {
  if (p.columns) return pass_columns_launch(p, device, {});
  if (pass_rows_wide_applicable(p, device)) return pass_rows_wide_launch(p, device, {});
  return pass_rows_launch(p, device, {});
}

// By what the solvers chose, or where that does not pay by the first choice, whose splits the caller merges.
Partial run(const Context& context, const NormPassProblem& p, MemoryOperands o) {
  if (is_worth_choosing(*p.op, p.extents[0])) {
    Partial result{context.scratch(2 * p.rows), 1, u32(p.count)};
    o.out0 = optional_buffer(result.values);
    solver::run(p, o, context.stream);
    return result;
  }
  const PassLaunch launch = first_choice(p, context.device);
  Partial result{context.scratch(2 * launch.splits * p.rows), launch.splits, launch.params.per_split};
  enqueue(p, launch, kernel_of(p, context.device, launch), o, optional_buffer(result.values), context.stream);
  return result;
}

void set_operands(NormPassProblem& p, const Context& context, const at::Tensor& x) {
  p.extents[0] = x.numel();
  p.result_type() = context.compute_scalar;
  p.result_extent() = 2 * p.rows;
}

constexpr FinishKernel kMerge{"norm/pass_merge.cl", "norm_pass_merge"};

}  // namespace

PassLaunch::PassLaunch(const char* file_name, const char* kernel_name, const NormPassProblem& p)
    : file(file_name), kernel(kernel_name) {
  params.outer_stride = p.outer_stride, params.inner_stride = p.inner_stride;
  params.segment_stride = p.segment_stride;
  params.inner_rows = u32(p.inner_rows), params.rows = u32(p.rows), params.length = u32(p.length);
  params.count = u32(p.count), params.mean_group = u32(p.mean_group);
  params.length_divider = codegen::make_divider(params.length);
}

void split(PassLaunch& launch, const cl::Device& device, int64_t units, int64_t width, int32_t parts,
           uint32_t multiple) {
  params::NormPass& p = launch.params;
  if (parts == kPerRun) {
    p.per_split = p.length;
    launch.splits = p.count / p.length;
    return;
  }
  const int64_t wanted = int64_t{device.compute_units} * (parts ? parts : 4);
  const int64_t most = std::max<int64_t>(1, p.count * width / (is_cpu(device) ? 8192 : 4096));
  const uint32_t splits =
      u32(std::clamp<int64_t>((wanted + units - 1) / units, 1, std::min<int64_t>(most, 1024)));
  p.per_split = ((p.count + splits - 1) / splits + multiple - 1) / multiple * multiple;
  launch.splits = (p.count + p.per_split - 1) / p.per_split;
}

std::unique_ptr<Invoker<NormPassProblem>> pass_invoker_of(const NormPassProblem& p, cl::Device& device,
                                                          const PassLaunch& launch) {
  cl::Kernel& kernel = kernel_of(p, device, launch);
  if (launch.splits == 1)
    return make_invoker<NormPassProblem>([=, &kernel](Stream& stream, const MemoryOperands& o, MemRef) {
      enqueue(p, launch, kernel, o, o.out0, stream);
    });
  cl::Kernel& merge = norm_kernel(device, kMerge.file, kMerge.name, Types(p));
  params::NormFinish finish{};
  finish.sums = p.is_sums();
  finish.rows = launch.params.rows, finish.splits = launch.splits;
  finish.count = launch.params.count, finish.per_split = launch.params.per_split;
  const Team team = make_team(device, finish.rows, finish.splits, 32);
  const cl::Range range = range_of(device, team);
  const auto size = static_cast<uint64_t>(codegen::size_of(Types(p).compute));
  return make_invoker<NormPassProblem>(
      [=, &kernel, &merge](Stream& stream, const MemoryOperands& o, MemRef memory) {
        const Buffer parts{memory.mem, static_cast<int64_t>(memory.offset / size)};
        enqueue(p, launch, kernel, o, parts, stream);
        params::NormFinish last = finish;
        last.partial = parts.offset, last.results = o.out0.offset;
        merge.launch(stream.queue(), range, parts.mem, o.out0.mem, last, team);
      });
}

Partial statistics(const Context& context, NormPassProblem p, const at::Tensor& x) {
  set_operands(p, context, x);
  MemoryOperands o;
  o.in0 = optional_buffer(x);
  return run(context, p, o);
}

Partial gradient_sums(const Context& context, NormPassProblem p, const at::Tensor& x, const at::Tensor& dy,
                      const at::Tensor& mean, const at::Tensor& rstd) {
  set_operands(p, context, x);
  p.types[1] = p.types[0], p.extents[1] = p.extents[0];
  p.types[2] = context.compute_scalar, p.extents[2] = mean.numel();
  if (p.mean_group == 0) p.types[3] = context.compute_scalar, p.extents[3] = rstd.numel();
  MemoryOperands o;
  o.in0 = optional_buffer(x), o.in1 = optional_buffer(dy), o.in2 = optional_buffer(mean),
  o.in3 = optional_buffer(rstd);
  return run(context, p, o);
}

Partial merged_sums(const Context& context, const Partial& sums, int64_t rows) {
  if (sums.splits == 1) return sums;
  Partial merged{context.scratch(2 * rows)};
  params::NormFinish p = finish_of(sums, rows, 0);
  p.sums = 1;
  launch_finish(context, kMerge, p, merging_team(context, p),
                {{sums.values, &params::NormFinish::partial}, {merged.values, &params::NormFinish::results}});
  return merged;
}

std::vector<CheckWindow<NormPassProblem>> NormPassProblem::check_windows() const {
  constexpr int64_t kMostElements = 32 << 20, kMostRow = 4 << 20;
  if (extents[0] > kMostElements || count > kMostRow) return {};
  return {{*this, {}}};
}

}  // namespace dlb::norm
