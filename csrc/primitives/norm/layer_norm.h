// Code that the solvers of layer norm share: their list, and how a kernel of theirs is launched.
#pragma once
#include "primitives/common/estimates.h"
#include "primitives/common/team.h"
#include "primitives/norm/types.h"

namespace dlb::norm {

const Solver<LayerNormProblem>* layer_norm_rows();
const Solver<LayerNormProblem>* layer_norm_rows_once();
const Solver<LayerNormProblem>* layer_norm_rows_held();
const Solver<LayerNormProblem>* layer_norm_reference();

// How a kernel is launched. File and kernel are literals.
struct LayerNormLaunch {
  const char* file;
  const char* kernel;
  Team team;
};

// Those of a small problem, with solvers' first configs.
LayerNormLaunch layer_norm_rows_launch(const LayerNormProblem& p, const cl::Device& device,
                                       const Config& config);
LayerNormLaunch layer_norm_rows_once_launch(const LayerNormProblem& p, const cl::Device& device,
                                            const Config& config);
LayerNormLaunch layer_norm_rows_held_launch(const LayerNormProblem& p, const cl::Device& device,
                                            const Config& config);

// Whether fewer passes gain: where a row fills a CPU's vectors.
bool suggests_rows_once(const LayerNormProblem& p, const cl::Device& device);
Applicability layer_norm_rows_held_applicable(const LayerNormProblem& p, const cl::Device& device);

// CPU: work-items of a compute unit; GPU: work-items that share a row. 0: by the sizes.
struct LayerNormConfig {
  int32_t items = 0;
  static constexpr const char* kNames[] = {"items"};
};
Team team_of(const LayerNormProblem& p, const cl::Device& device, const Config& config);
// The configs of solvers that read a row several times.
std::vector<Config> layer_norm_rows_configs(const LayerNormProblem& p, const cl::Device& device);

cl::Kernel& kernel_of(const LayerNormProblem& p, cl::Device& device, const LayerNormLaunch& launch);
void enqueue(const LayerNormProblem& p, const LayerNormLaunch& launch, cl::Kernel& kernel,
             const MemoryOperands& operands, Stream& stream);

template <auto launch_of>
constexpr auto layer_norm_invoker = planned_invoker<LayerNormProblem, launch_of, kernel_of, enqueue>;

}  // namespace dlb::norm
