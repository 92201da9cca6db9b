// Code that the solvers of passes over the data share: their list, and how a kernel of theirs is launched.
#pragma once
#include "codegen/pointwise.h"
#include "kernels/norm/params.h"
#include "primitives/common/estimates.h"
#include "primitives/common/team.h"
#include "primitives/norm/types.h"

namespace dlb::norm {

const Solver<NormPassProblem>* pass_rows();
const Solver<NormPassProblem>* pass_rows_wide();
const Solver<NormPassProblem>* pass_columns();
const Solver<NormPassProblem>* pass_reference();

// How a pass is launched. File and kernel are literals.
struct PassLaunch {
  const char* file;
  const char* kernel;
  params::NormPass params{};
  uint32_t splits = 1;
  Team team{};
  cl::Range range{};

  PassLaunch(const char* file, const char* kernel, const NormPassProblem& p);
  // Bytes of the splits' results, which a second kernel merges; 0 where there is one.
  uint64_t workspace(codegen::DType compute) const {
    return splits == 1 ? 0 : uint64_t{2} * splits * params.rows * codegen::size_of(compute);
  }
};

// Those of a small problem, with solvers' first configs.
PassLaunch pass_rows_launch(const NormPassProblem& p, const cl::Device& device, const Config& config);
PassLaunch pass_rows_wide_launch(const NormPassProblem& p, const cl::Device& device, const Config& config);
PassLaunch pass_columns_launch(const NormPassProblem& p, const cl::Device& device, const Config& config);

Applicability pass_rows_applicable(const NormPassProblem& p, const cl::Device& device);
Applicability pass_rows_wide_applicable(const NormPassProblem& p, const cl::Device& device);

// Parts per compute unit (0: by the sizes; kPerRun: each run is a part, so that memory is read in order), and
// a GPU's work-items that share a row (0: by the sizes).
struct PassRowsConfig {
  int32_t parts = 0, lanes = 0;
  static constexpr const char* kNames[] = {"parts", "lanes"};
};
constexpr int32_t kPerRun = -1;

// Sets team and range of a launch over rows; `multiple`: of what the splits are.
void divide_rows(PassLaunch& launch, const cl::Device& device, const Config& config, uint32_t multiple);
std::vector<Config> pass_rows_configs(const NormPassProblem& p, const cl::Device& device);

// Cuts each of `units` independent pieces of `count` steps of `width` elements.
void split(PassLaunch& launch, const cl::Device& device, int64_t units, int64_t width, int32_t parts,
           uint32_t multiple);

std::unique_ptr<Invoker<NormPassProblem>> pass_invoker_of(const NormPassProblem& p, cl::Device& device,
                                                          const PassLaunch& launch);

template <auto launch_of>
std::unique_ptr<Invoker<NormPassProblem>> pass_invoker(const NormPassProblem& p, cl::Device& device,
                                                       const Config& config) {
  return pass_invoker_of(p, device, launch_of(p, device, config));
}
template <auto launch_of>
uint64_t pass_workspace(const NormPassProblem& p, const cl::Device& device, const Config& config) {
  return launch_of(p, device, config).workspace(Types(p).compute);
}

// Results of a pass in the compute type: [splits][2][rows], means and variances or two sums.
struct Partial {
  at::Tensor values;
  uint32_t splits = 1, per_split = 1;
};

// Passes over x (and dy) by problem_of(..., norm_stats_op or norm_sums_op) with its sizes set.
Partial statistics(const Context& context, NormPassProblem p, const at::Tensor& x);
Partial gradient_sums(const Context& context, NormPassProblem p, const at::Tensor& x, const at::Tensor& dy,
                      const at::Tensor& mean, const at::Tensor& rstd);

// The splits' statistics of rows of `count` elements, or their sums, as those of one.
Partial merged_statistics(const Context& context, const Partial& statistics, int64_t rows, int64_t count);
Partial merged_sums(const Context& context, const Partial& sums, int64_t rows);

}  // namespace dlb::norm
