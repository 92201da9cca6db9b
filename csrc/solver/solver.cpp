#include "solver/solver.h"

#include "cl/build_mode.h"

namespace dlb::solver {

std::string revision_name(const AnySolver& solver) {
  return std::string(solver.name()) + "@" + std::to_string(solver.revision());
}

SolutionPtr make_solution(const Problem& problem, cl::Device& device, const AnySolver& solver,
                          const Config& config) {
  // Who chooses wants to know whether the programs build.
  const cl::BuildMode before = cl::build_mode();
  const cl::WithBuildMode mode({.awaited = before.awaited, .elsewhere = before.elsewhere});
  auto solution = std::make_shared<Solution>();
  solution->solver = &solver;
  solution->config = config;
  solution->invoker = solver.invoker_for(problem, device, config);
  solution->workspace = solver.workspace_for(problem, device, config);
  solution->prepared = solver.prepared_for(problem, device, config);
  return solution;
}

}  // namespace dlb::solver
