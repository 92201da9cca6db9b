// Code that the solvers of softmax share: their list, and how a kernel of theirs is launched.
#pragma once
#include "primitives/common/estimates.h"
#include "primitives/common/team.h"
#include "primitives/softmax/problem.h"
#include "runtime/stream.h"
#include "solver/solver_row.h"

namespace dlb::softmax {

using namespace solver;

const Solver<SoftmaxProblem>* rows();
const Solver<SoftmaxProblem>* rows_once();
const Solver<SoftmaxProblem>* rows_held();
const Solver<SoftmaxProblem>* columns();
const Solver<SoftmaxProblem>* columns_shared();
const Solver<SoftmaxProblem>* reference();

// How a kernel is launched. File and kernel are literals.
struct Launch {
  const char* file;
  const char* kernel;
  Team team;
  cl::Range range;
  int32_t block = 1;  // columns that a work-item takes together
};

// Those of a small problem, with solvers' first configs.
Launch rows_launch(const SoftmaxProblem& p, const cl::Device& device, const Config& config);
Launch rows_held_launch(const SoftmaxProblem& p, const cl::Device& device, const Config& config);
Launch columns_launch(const SoftmaxProblem& p, const cl::Device& device, const Config& config);

// Teams for rows of `work` elements, of which at most `gpu_lanes` work-items of a GPU share one. `items`,
// where it is not 0: work-items of a CPU's compute unit, or those of a GPU that share a row.
Team team_of(const cl::Device& device, int64_t rows, int64_t work, int32_t items, uint32_t gpu_lanes);

Applicability rows_applicable(const SoftmaxProblem& p, const cl::Device& device);
Applicability rows_held_applicable(const SoftmaxProblem& p, const cl::Device& device);

// Configs of one value: 0, which leaves it to the sizes, and each of these.
template <class Named>
std::vector<Config> configs_of(std::initializer_list<int32_t> values) {
  std::vector<Config> list(1);
  for (const int32_t value : values) list.push_back(Config::of(Named{value}));
  return list;
}

cl::Kernel& kernel_of(const SoftmaxProblem& p, cl::Device& device, const Launch& launch);
void enqueue(const SoftmaxProblem& p, const Launch& launch, cl::Kernel& kernel, const MemoryOperands& o,
             Stream& stream);

template <auto launch_of>
constexpr auto invoker = planned_invoker<SoftmaxProblem, launch_of, kernel_of, enqueue>;

}  // namespace dlb::softmax
