// Code that the solvers of pooling share: their list, and how a kernel of theirs is launched.
#pragma once
#include "cl/kernel.h"
#include "cl/queue.h"
#include "kernels/pool/params.h"
#include "primitives/common/estimates.h"
#include "primitives/common/lines.h"
#include "primitives/pool/problem.h"
#include "runtime/stream.h"
#include "solver/solver_row.h"

namespace dlb::pool {

using namespace solver;

const Solver<PoolProblem>* lines();
const Solver<PoolProblem>* gather();
const Solver<PoolProblem>* planes();
const Solver<PoolProblem>* windows();
const Solver<PoolProblem>* reference();

using Params = params::PoolParams;
// Without the operands' offsets.
Params params_of(const PoolProblem& p);

// How a kernel is launched. File, kernel and options are literals.
struct Launch {
  const char* file;
  const char* kernel;
  Params params;
  Team team{};
  const char* options = "";
};

// Those of a small problem, with solvers' first configs.
Launch lines_launch(const PoolProblem& p, const cl::Device& device, const Config& config);
Launch gather_launch(const PoolProblem& p, const cl::Device& device, const Config& config);
Launch planes_launch(const PoolProblem& p, const cl::Device& device, const Config& config);
Launch windows_launch(const PoolProblem& p, const cl::Device& device, const Config& config);

Applicability planes_applicable(const PoolProblem& p, const cl::Device& device);
Applicability windows_applicable(const PoolProblem& p, const cl::Device& device);

View5 input_view(const PoolProblem& p);
View5 output_view(const PoolProblem& p);

// Neighbours of a line that a work-item takes together. 0: one on a GPU, kLineBlock on a CPU.
struct BlockConfig {
  int32_t block = 0;
  static constexpr const char* kNames[] = {"block"};
};
// Walks the lines of `over`, in blocks as the config says; see Lines::team().
void set_team(Launch& launch, const PoolProblem& p, const cl::Device& device, const Config& config,
              const View5& over, bool wide, int64_t work);
// Blocks of another length, where the lines of the first config's launch are long enough.
std::vector<Config> block_configs(const Launch& first, const cl::Device& device, bool wide);

cl::Kernel& kernel_of(const PoolProblem& p, cl::Device& device, const Launch& launch);
void enqueue(const PoolProblem& p, const Launch& launch, cl::Kernel& kernel, const MemoryOperands& o,
             Stream& stream);

template <auto launch_of>
constexpr auto invoker = planned_invoker<PoolProblem, launch_of, kernel_of, enqueue>;

}  // namespace dlb::pool
