// Code that the solvers of passes over the data share, and the first choice for small problems.
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

constexpr FinishKernel kMerge{"norm/pass_merge.cl", "norm_pass_merge"};

// Runs a pass and merges its splits, or leaves them to a caller who merges them anyway.
class PassInvoker final : public Invoker<NormPassProblem> {
 public:
  PassInvoker(const NormPassProblem& p, cl::Device& device, const PassLaunch& launch)
      : problem_(p),
        launch_(launch),
        kernel_(kernel_of(p, device, launch)),
        size_(static_cast<uint64_t>(codegen::size_of(Types(p).compute))) {
    if (launch.splits == 1) return;
    merge_ = &norm_kernel(device, kMerge.file, kMerge.name, Types(p));
    finish_.sums = p.is_sums();
    finish_.rows = launch.params.rows, finish_.splits = launch.splits;
    finish_.count = launch.params.count, finish_.per_split = launch.params.per_split;
    team_ = make_team(device, finish_.rows, finish_.splits, 32);
    range_ = range_of(device, team_);
  }

  void run(Stream& stream, const MemoryOperands& o, MemRef memory) override {
    if (!merge_) return enqueue(problem_, launch_, kernel_, o, o.out0, stream);
    const Buffer parts{memory.mem, static_cast<int64_t>(memory.offset / size_)};
    enqueue(problem_, launch_, kernel_, o, parts, stream);
    params::NormFinish last = finish_;
    last.partial = parts.offset, last.results = o.out0.offset;
    merge_->launch(stream.queue(), range_, parts.mem, o.out0.mem, last, team_);
  }

  Partial run_parts(const Context& context, const MemoryOperands& o) const {
    Partial result{context.scratch(2 * launch_.splits * problem_.rows), launch_.splits,
                   launch_.params.per_split};
    enqueue(problem_, launch_, kernel_, o, optional_buffer(result.values), context.stream);
    return result;
  }

 private:
  const NormPassProblem problem_;
  const PassLaunch launch_;
  cl::Kernel& kernel_;
  const uint64_t size_;
  cl::Kernel* merge_ = nullptr;
  params::NormFinish finish_{};
  Team team_{};
  cl::Range range_{};
};

// By what the solvers chose, or where that does not pay by the first choice. The caller merges the splits.
Partial run(const Context& context, const NormPassProblem& p, MemoryOperands o) {
  if (!is_worth_choosing(*p.op, p.extents[0])) {
    const PassLaunch launch = first_choice(p, context.device);
    Partial result{context.scratch(2 * launch.splits * p.rows), launch.splits, launch.params.per_split};
    enqueue(p, launch, kernel_of(p, context.device, launch), o, optional_buffer(result.values),
            context.stream);
    return result;
  }
  Partial parts;
  const auto run_parts = [&](const Solution& solution) {
    const auto* invoker = dynamic_cast<const PassInvoker*>(solution.invoker.get());
    if (invoker) parts = invoker->run_parts(context, o);
    return invoker != nullptr;
  };
  if (run_settled(p, context.stream, run_parts)) return parts;
  Partial result{context.scratch(2 * p.rows), 1, u32(p.count)};
  o.out0 = optional_buffer(result.values);
  solver::run(p, o, context.stream);
  return result;
}

void set_operands(NormPassProblem& p, const Context& context, const at::Tensor& x) {
  p.extents[0] = x.numel();
  p.result_type() = context.compute_scalar;
  p.result_extent() = 2 * p.rows;
}

Partial merged(const Context& context, const Partial& parts, int64_t rows, int64_t count, bool sums) {
  if (parts.splits == 1) return parts;
  Partial merged{context.scratch(2 * rows), 1, u32(count)};
  params::NormFinish p = finish_of(parts, rows, count);
  p.sums = sums;
  launch_finish(
      context, kMerge, p, merging_team(context, p),
      {{parts.values, &params::NormFinish::partial}, {merged.values, &params::NormFinish::results}});
  return merged;
}

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
  return std::make_unique<PassInvoker>(p, device, launch);
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

Partial merged_statistics(const Context& context, const Partial& statistics, int64_t rows, int64_t count) {
  return merged(context, statistics, rows, count, false);
}
Partial merged_sums(const Context& context, const Partial& sums, int64_t rows) {
  return merged(context, sums, rows, 1, true);
}

std::vector<CheckWindow<NormPassProblem>> NormPassProblem::check_windows() const {
  constexpr int64_t kMostElements = 32 << 20, kMostRow = 4 << 20;
  if (extents[0] > kMostElements || count > kMostRow) return {};
  return {{*this, {}}};
}

}  // namespace dlb::norm
