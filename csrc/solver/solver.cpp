#include "solver/solver.h"

#include "cl/build_mode.h"
#include "cl/builders.h"
#include "solver/op.h"

namespace dlb::solver {

std::string revision_name(const AnySolver& solver) {
  return std::string(solver.name()) + "@" + std::to_string(solver.revision());
}

bool builds_behind(const Problem& problem, const cl::Device& device, const AnySolver& solver) {
  if (!cl::build_mode().deferred || !cl::can_defer_builds(device)) return false;
  return &solver == &problem.op->reference() || (problem.op->trusts_first_choice() && device.builds_all);
}

SolutionPtr make_solution(const Problem& problem, cl::Device& device, const AnySolver& solver,
                          const Config& config) {
  cl::BuildMode mode = cl::build_mode();
  mode.deferred = builds_behind(problem, device, solver);
  mode.checked = !problem.op->trusts_first_choice();
  const cl::WithBuildMode now(mode);
  auto solution = std::make_shared<Solution>();
  solution->solver = &solver;
  solution->config = config;
  solution->invoker = solver.invoker_for(problem, device, config);
  solution->workspace = solver.workspace_for(problem, device, config);
  solution->prepared = solver.prepared_for(problem, device, config);
  return solution;
}

}  // namespace dlb::solver
