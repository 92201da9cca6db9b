#include "solver/fallback_choice.h"

#include <algorithm>
#include <mutex>

#include "cl/build.h"
#include "cl/builders.h"
#include "cl/compile_process.h"
#include "cl/recording.h"
#include "solver/ahead.h"
#include "solver/background.h"
#include "solver/budget.h"
#include "solver/build_failures.h"
#include "solver/by_estimate.h"
#include "solver/measure_rates.h"
#include "solver/settings.h"
#include "solver/stats.h"
#include "solver/stored_choice.h"
#include "solver/verify.h"

namespace dlb::solver {
namespace {

// So many microseconds more may the reference take, by its estimate, which is 8 to 50 times of what it takes
// on GPUs with caches.
constexpr double kMostOfReference = 2e6;
// Where the reference takes so many microseconds more by its estimate, a problem had better wait a tenth of a
// second once, until what stands in is compiled and checked.
constexpr double kWorthStandingIn = 2e3;
// After so many runs it is tried again to replace the reference where that failed, for want of memory
// perhaps.
constexpr int64_t kRunsToNextTry = 100;

// Whether a store has all programs of a solution. Notes a solver whose programs are known not to build.
bool is_stored(const Problem& problem, cl::Device& device, const AnySolver& solver, const Config& config) {
  cl::Recording recording;
  try {
    make_solution(problem, device, solver, config);
  } catch (const std::exception& error) {
    note_build_failure(problem, device, solver, error);
    log(2, std::string("not stored,") + solver.name() + "," + error.what());
    return false;
  }
  const auto& programs = recording.programs();
  return std::all_of(programs.begin(), programs.end(), [&](const cl::ProgramSource& program) {
    return cl::is_stored(device, program.source, program.options);
  });
}

// What stands in for better solutions, unless it fails, or the reference takes hardly longer.
SolutionPtr stand_in(const Problem& problem, cl::Device& device, const std::vector<RankedSolver>& ranking,
                     double reference) {
  for (const auto& [solver, estimate] : ranking)
    if (solver->stands_in())
      return reference < estimate + kWorthStandingIn ? nullptr : if_it_works(problem, device, *solver);
  return nullptr;
}

// The solution that runs at once, where programs can be built behind launches, in place of one that is not
// built: a solution that is built and was checked before; what stands in, which is checked once for a device
// and dtype; else the reference solver, whose kernels are few, small, and right without a check. So a first
// iteration asks for all its programs within milliseconds. Null where the problem had better wait: for a
// program that takes no time to load, or because the reference would take too long.
SolutionPtr first_without_waiting(const Problem& problem, cl::Device& device) {
  const AnySolver& reference = problem.op->reference();
  if (!preference_of(*problem.op).allows(reference) || !reference.can_solve(problem, device)) return nullptr;
  const auto [solver, config] = first_solution(problem, device);
  if (!solver || solver == &reference || is_stored(problem, device, *solver, config)) return nullptr;
  if (does_not_build(device, *solver)) return nullptr;  // there is nothing to wait for
  const auto ranking = ranking_of(problem, device);
  if (SolutionPtr built = first_built(problem, device, ranking, true)) return built;
  const double time = reference.estimate_for(problem, device);
  if (SolutionPtr plain = stand_in(problem, device, ranking, time)) return plain;
  if (time > ranking.front().estimate + kMostOfReference) return nullptr;
  return make_solution(problem, device, reference, {});
}

// The choice that a problem would have begun with if it had waited; null where it did begin with that one. To
// be called in the background.
ChoicePtr choose_behind(const Problem& problem, cl::Device& device, const AnySolver* begun) {
  {
    std::lock_guard<std::mutex> lock(measuring_queue(device).mutex);
    if (ChoicePtr stored = choose_from_store(problem, device, key(problem))) return stored;
  }
  const SolutionPtr best = best_by_estimate(problem, device, begun);
  if (!best) return nullptr;
  ChoicePtr choice = make_choice(best, best);
  choice->runs_to_search = run_to_search(problem, device, *best);
  if (verbosity() >= 1) log_found("built", device, key(problem), *best);
  return choice;
}

}  // namespace

bool takes_fallback(const Problem& problem, cl::Device& device, const RankedSolver& lowest) {
  return (device.late_code || cl::compile_processes(device) > 0) && searches(find_mode()) &&
         !problem.op->trusts_first_choice() &&
         !is_stored(problem, device, *lowest.solver, lowest.solver->first_config_for(problem, device));
}

bool is_passing(const AnySolver& solver, const Problem& problem) {
  return &solver == &problem.op->reference() || solver.stands_in();
}

uint32_t run_to_search(const Problem& problem, const cl::Device& device, const Solution& taken) {
  return run_to_search_at(device, taken.solver->estimate_for(problem, device));
}

ChoicePtr choose_fallback(const Problem& problem, cl::Device& device, const std::string& text) {
  const FindMode mode = find_mode();
  if (!searches(mode) || mode == FindMode::kNormal || runs_unverified(problem) ||
      !cl::can_defer_builds(device))
    return nullptr;
  const SolutionPtr first = first_without_waiting(problem, device);
  if (!first) return nullptr;
  // The choice of the record takes over later, and counts as a hit.
  if (!valid_record(problem, device, text)) find_stats().misses++;
  note_first_choice(device);
  ChoicePtr choice = make_choice(first, first, nullptr, true);
  choice->runs_to_search = 2;
  expect({StoredProblem(problem)});
  if (verbosity() >= 1) log_found("fallback", device, text, *first);
  return choice;
}

ChoicePtr replace_in_background(const Problem& problem, cl::Device& device, const ChoicePtr& choice) {
  const AnySolver* begun = choice->taken->solver;
  const ChoicePtr next = make_choice(choice->taken, choice->reusable);
  if (!is_passing(*begun, problem)) next->runs_to_search = run_to_search(problem, device, *choice->taken);
  if (!replace_choice(problem, choice, next)) return next;
  const auto replace = [stored = StoredProblem(problem), &device, next, begun] {
    wait_while_program_starts(device);
    if (background_stopping() || known_choice(*stored) != next) return;
    ChoicePtr better;
    try {
      better = choose_behind(*stored, device, begun);
    } catch (...) {
      cl::log_dropped("replacing a fallback choice");  // it is tried again
    }
    if (better) {
      if (replace_choice(*stored, next, better)) note_bucket_choice(*stored, *better->reusable);
    } else if (is_passing(*begun, *stored)) {
      const ChoicePtr again = make_choice(next->taken, next->reusable, nullptr, true);
      again->runs_to_search = kRunsToNextTry;
      replace_choice(*stored, next, again);
    }
  };
  in_background([stored = StoredProblem(problem), &device, replace] {
    in_background_when(build_first_behind(*stored, device), replace);
  });
  return next;
}

}  // namespace dlb::solver
