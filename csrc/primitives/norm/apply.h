// Code that the solvers of applying coefficients share: their list, and how a kernel of theirs is launched.
#pragma once
#include "kernels/norm/params.h"
#include "primitives/common/estimates.h"
#include "primitives/common/team.h"
#include "primitives/norm/types.h"

namespace dlb::norm {

const Solver<NormApplyProblem>* apply_rows();
const Solver<NormApplyProblem>* apply_columns();
const Solver<NormApplyProblem>* apply_pointwise();

// How a kernel is launched. File and kernel must be string literals: fetch_kernel() compares their addresses.
struct ApplyLaunch {
  const char* file;
  const char* kernel;
  params::NormApply params{};
  Team team;
};
// The parameters of a problem, but for offsets.
params::NormApply apply_params(const NormApplyProblem& p);

// The launch for problems that are too small to choose for, with the solver's first config.
ApplyLaunch apply_rows_launch(const NormApplyProblem& p, const cl::Device& device, const Config& config);
// Runs the problem by the generated kernel of an expression.
void run_pointwise(const NormApplyProblem& p, const MemoryOperands& operands, Stream& stream);
// The same where each sample has coefficients of its own, one per channel, and x is channels-last. The sizes
// of the problem are not looked at.
void run_pointwise(const NormApplyProblem& p, const Shape& shape, const MemoryOperands& operands,
                   Stream& stream);

cl::Kernel& kernel_of(const NormApplyProblem& p, cl::Device& device, const ApplyLaunch& launch);
void enqueue(const NormApplyProblem& p, const ApplyLaunch& launch, cl::Kernel& kernel,
             const MemoryOperands& operands, Stream& stream);

template <auto launch_of>
constexpr auto apply_invoker = planned_invoker<NormApplyProblem, launch_of, kernel_of, enqueue>;

// The dense layout [outer][rows][inner] in which apply() reads x.
struct Extent {
  int64_t outer, rows, inner;
};

// y = (x - mean) * scale + shift with coefficients [3][rows]; where dy is defined,
// y = dy * k0 - (k1 + (x - mean) * k2) with [4][rows], the first of which is the mean. All of x's layout.
void apply(const Context& context, const Extent& extent, const at::Tensor& y, const at::Tensor& x,
           const at::Tensor& dy, const at::Tensor& coefficients);

// The same with coefficients [3] or [4][samples * channels].
void apply_by_sample(const Context& context, const Shape& shape, const at::Tensor& y, const at::Tensor& x,
                     const at::Tensor& dy, const at::Tensor& coefficients);

}  // namespace dlb::norm
