#include "solver/by_estimate.h"

#include <c10/util/Exception.h>

#include <mutex>

#include "cl/recording.h"
#include "solver/ahead.h"
#include "solver/budget.h"
#include "solver/build_failures.h"
#include "solver/settings.h"
#include "solver/trial.h"
#include "solver/verify.h"

namespace dlb::solver {
namespace {

// A solution that is built already runs in place of one that is not where its estimate is at most
// kMostForBuilt times the lowest. Where a first launch compiles, or other processes compile, a program takes
// a second, so that what is built may also take at most so many microseconds more.
constexpr double kMostForBuilt = 3, kMostBehindBuild = 0.1e6;

[[noreturn]] void throw_no_solver(const Problem& problem, const cl::Device& device) {
  const Preference preference = preference_of(*problem.op);
  TORCH_CHECK(false,
              preference.forced.empty()
                  ? std::string("no solver")
                  : "DLBACKEND_SOLVER: solver '" + preference.forced + "' is not applicable",
              " for ", key(problem), " on ", device.name, ". Solvers:", reasons(problem, device, "\n  "));
}

}  // namespace

std::vector<RankedSolver> ranking_for(const Problem& problem, const cl::Device& device,
                                      bool only_deterministic) {
  std::vector<RankedSolver> ranking = ranking_of(problem, device);
  if (only_deterministic)
    std::erase_if(ranking, [&](const auto& ranked) { return !ranked.solver->is_deterministic_for(problem); });
  if (ranking.empty()) throw_no_solver(problem, device);
  return ranking;
}

SolutionPtr if_built(const Problem& problem, cl::Device& device, const AnySolver& solver,
                     const Config& config) {
  cl::Recording recording(cl::Recording::kWhether);
  try {
    SolutionPtr solution = make_solution(problem, device, solver, config);
    return recording.unbuilt() ? nullptr : solution;
  } catch (const std::exception& error) {
    log(2, std::string("not built,") + solver.name() + "," + error.what());
    return nullptr;
  }
}

SolutionPtr first_built(const Problem& problem, cl::Device& device, const std::vector<RankedSolver>& ranking,
                        bool only_verified) {
  for (const auto& [solver, estimate] : ranking) {
    if (only_verified && !is_verified(problem, device, *solver)) continue;
    const double lowest = ranking.front().estimate;
    if (estimate > kMostForBuilt * lowest || estimate > lowest + kMostBehindBuild) break;
    for (const Config& config : solver->configs_for(problem, device))
      if (SolutionPtr solution = if_built(problem, device, *solver, config)) return solution;
  }
  return nullptr;
}

bool is_trusted(const Problem& problem, cl::Device& device, const SolutionPtr& solution) {
  return runs_unverified(problem) || verify(problem, device, solution);
}

SolutionPtr if_it_works(const Problem& problem, cl::Device& device, const AnySolver& solver) {
  if (does_not_build(device, solver) && preference_of(*problem.op).forced.empty()) return nullptr;
  try {
    compile_first(problem, device, solver);
    SolutionPtr solution = make_solution(problem, device, solver, solver.first_config_for(problem, device));
    return is_trusted(problem, device, solution) ? solution : nullptr;
  } catch (const cl::Error& error) {
    if (!note_build_failure(problem, device, solver, error)) throw;
    return nullptr;
  }
}

SolutionPtr choose_by_estimate(const Problem& problem, cl::Device& device,
                               const std::vector<RankedSolver>& ranking, bool built_first) {
  if (built_first)
    if (SolutionPtr solution = first_built(problem, device, ranking))
      if (is_trusted(problem, device, solution)) return solution;
  for (const auto& [solver, estimate] : ranking)
    if (SolutionPtr solution = if_it_works(problem, device, *solver)) return solution;
  throw_no_solver(problem, device);
}

SolutionPtr best_by_estimate(const Problem& problem, cl::Device& device, const AnySolver* but) {
  for (const auto& [solver, estimate] : ranking_of(problem, device)) {
    if (solver == but) break;
    if (does_not_build(device, *solver)) continue;
    try {
      const SolutionPtr solution =
          make_solution(problem, device, *solver, solver->first_config_for(problem, device));
      std::lock_guard<std::mutex> lock(measuring_queue(device).mutex);
      if (!is_trusted(problem, device, solution)) continue;
      // The first launch compiles, and the check may have been made by another process.
      if (device.late_code) Trial(problem, device).time(*solution, 1);
      return solution;
    } catch (const std::exception& error) {
      note_build_failure(problem, device, *solver, error);
      log(1, std::string("not in place of what was built,") + solver->name() + "," + error.what());
    }
  }
  return nullptr;
}

}  // namespace dlb::solver
