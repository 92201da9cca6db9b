#include "solver/select.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <mutex>

#include "cl/build.h"
#include "cl/builders.h"
#include "cl/compile_process.h"
#include "cl/recording.h"
#include "solver/ahead.h"
#include "solver/background.h"
#include "solver/budget.h"
#include "solver/build_failures.h"
#include "solver/candidate_record.h"
#include "solver/measure.h"
#include "solver/measure_rates.h"
#include "solver/search.h"
#include "solver/settings.h"
#include "solver/shape_classes.h"
#include "solver/stats.h"
#include "solver/stored_choice.h"
#include "solver/trial.h"
#include "solver/verify.h"

namespace dlb::solver {
namespace {

// When a shape class has met more sizes than networks have layers, a new size runs what another of its bucket
// runs, or a solution that is built already if its estimate is at most kMostForBuilt times the lowest.
constexpr size_t kSizesOfLayers = 2;
// So it is where a first launch compiles, or other processes compile. There a program takes a second, so that
// what is built may also take at most so many microseconds more.
constexpr double kMostForBuilt = 3, kMostBehindBuild = 0.1e6;
// So many microseconds more may the reference take, by its estimate, which is 8 to 50 times of what it takes
// on GPUs with caches.
constexpr double kMostOfReference = 2e6;
// Where the reference takes so many microseconds more by its estimate, a problem had better wait a tenth of a
// second once, until what stands in is compiled and checked.
constexpr double kWorthStandingIn = 2e3;
// After so many runs it is tried again to replace the reference where that failed, for want of memory
// perhaps.
constexpr int64_t kRunsToNextTry = 100;
// A network runs one problem at most so often for one input. A problem with more runs has come again.
constexpr int64_t kRunsOfOneInput = 4;

[[noreturn]] void throw_no_solver(const Problem& problem, const cl::Device& device) {
  const Preference preference = preference_of(*problem.op);
  TORCH_CHECK(false,
              preference.forced.empty()
                  ? std::string("no solver")
                  : "DLBACKEND_SOLVER: solver '" + preference.forced + "' is not applicable",
              " for ", key(problem), " on ", device.name, ". Solvers:", reasons(problem, device, "\n  "));
}

// As ranking_of(), but throws c10::Error where there is none.
std::vector<RankedSolver> ranking_for(const Problem& problem, const cl::Device& device,
                                      bool only_deterministic = false) {
  std::vector<RankedSolver> ranking = ranking_of(problem, device);
  if (only_deterministic)
    std::erase_if(ranking, [&](const auto& ranked) { return !ranked.solver->is_deterministic_for(problem); });
  if (ranking.empty()) throw_no_solver(problem, device);
  return ranking;
}

// The solution, or null when one of its programs is not built yet.
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

// The first solution whose programs are built, unless its estimate is far above the lowest. Null when there
// is none.
SolutionPtr first_built(const Problem& problem, cl::Device& device, const std::vector<RankedSolver>& ranking,
                        bool only_verified = false) {
  for (const auto& [solver, estimate] : ranking) {
    if (only_verified && !is_verified(problem, device, *solver)) continue;
    const double lowest = ranking.front().estimate;
    if (estimate > kMostForBuilt * lowest || estimate > lowest + kMostBehindBuild) break;
    for (const Config& config : solver->configs_for(problem, device))
      if (SolutionPtr solution = if_built(problem, device, *solver, config)) return solution;
  }
  return nullptr;
}

// Whether a solution may run: it needs no check, or passes it.
bool is_trusted(const Problem& problem, cl::Device& device, const SolutionPtr& solution) {
  return runs_unverified(problem) || verify(problem, device, solution);
}

// A solver's first solution; null when it is wrong or its kernel does not build on this driver. Throws where
// it is forced, or no other is left.
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

// The solution of the lowest estimate that works; with `built_first`, one that is built goes before it.
SolutionPtr choose_by_estimate(const Problem& problem, cl::Device& device,
                               const std::vector<RankedSolver>& ranking, bool built_first = false) {
  if (built_first)
    if (SolutionPtr solution = first_built(problem, device, ranking))
      if (is_trusted(problem, device, solution)) return solution;
  for (const auto& [solver, estimate] : ranking)
    if (SolutionPtr solution = if_it_works(problem, device, *solver)) return solution;
  throw_no_solver(problem, device);
}

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

// Whether a first run had better not wait for the solution with the lowest estimate: where kernels' first
// launches compile too, a few of them are most of a program's first iteration, and where other processes can
// compile, they do that meanwhile. So it is with tiers: one that runs without optimisation is slow until the
// driver has optimised it, which takes the longer the more of them there are.
bool takes_makeshift(const Problem& problem, cl::Device& device, const RankedSolver& lowest) {
  return (device.late_code || cl::compile_processes(device) > 0) && searches(find_mode()) &&
         !problem.op->trusts_first_choice() &&
         !is_stored(problem, device, *lowest.solver, lowest.solver->first_config_for(problem, device));
}

// The run with which the search behind a solution begins.
uint32_t run_to_search(const Problem& problem, const cl::Device& device, const Solution& taken) {
  return run_to_search_at(device, taken.solver->estimate_for(problem, device));
}

// The solution that a problem of the same size bucket runs, if it is built for this one too; else null. When
// the problem comes again, its own solution is chosen.
ChoicePtr choose_by_bucket(const Problem& problem, cl::Device& device) {
  const auto like = bucket_choice(problem);
  if (!like || !like->solver->can_solve(problem, device)) return nullptr;
  const SolutionPtr solution = if_built(problem, device, *like->solver, like->config);
  if (!solution) return nullptr;
  auto choice = std::make_shared<Choice>();
  choice->taken = choice->reusable = solution;
  choice->from_bucket = true, choice->runs_to_search = kRunsOfOneInput + 1;
  find_stats().bucket_choices++;
  if (verbosity() >= 1) log_found("like", device, key(problem), *solution);
  return choice;
}

// Whether a solver only runs until what a problem would have begun with is ready.
bool is_passing(const AnySolver& solver, const Problem& problem) {
  return &solver == &problem.op->reference() || solver.stands_in();
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

// The choice that the find mode makes for a problem that the store does not know.
ChoicePtr choose_on_miss(const Problem& problem, cl::Device& device, const std::string& text, size_t sizes) {
  find_stats().misses++;
  note_first_choice(device);
  const FindMode mode = find_mode();
  ChoicePtr choice;
  if (mode == FindMode::kNormal)
    choice = choose_by_measuring(problem, device, text, most_estimate(device).before);
  if (!choice) {
    const auto ranking = ranking_for(problem, device);
    const bool sizes_change = sizes > kSizesOfLayers;
    const bool hurries = !sizes_change && takes_makeshift(problem, device, ranking.front());
    const SolutionPtr first = choose_by_estimate(problem, device, ranking, sizes_change || hurries);
    const bool makeshift = hurries && first->solver != ranking.front().solver;
    choice = make_choice(first, first, nullptr, makeshift);
    if (makeshift) expect({StoredProblem(problem)});
    if (searches(mode)) choice->runs_to_search = makeshift ? 2 : run_to_search(problem, device, *first);
  }
  if (verbosity() >= 1) log_found("miss", device, text, *choice->taken, reasons(problem, device, ","));
  return choice;
}

// The choice of what runs without waiting for programs; null where there is none.
ChoicePtr choose_makeshift(const Problem& problem, cl::Device& device, const std::string& text) {
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
  if (verbosity() >= 1) log_found("makeshift", device, text, *first);
  return choice;
}

// Chooses by what the store knows, else as the find mode does. So many `sizes` of the shape class were met.
// A problem that `runs` already does not begin with a fallback choice.
ChoicePtr choose_alone(const Problem& problem, cl::Device& device, size_t sizes, bool runs = false) {
  const std::string text = key(problem);
  ChoicePtr choice = runs ? nullptr : choose_makeshift(problem, device, text);
  if (!choice) choice = choose_from_store(problem, device, text);
  if (!choice) choice = choose_on_miss(problem, device, text, sizes);
  if (!choice->makeshift || !is_passing(*choice->taken->solver, problem))
    note_bucket_choice(problem, *choice->reusable);
  return choice;
}

ChoicePtr choose_new(const Problem& problem, cl::Device& device) {
  const size_t sizes = sizes_met(problem);
  if (sizes > kSizesOfLayers && find_mode() != FindMode::kNormal)
    if (ChoicePtr choice = choose_by_bucket(problem, device)) return choice;
  return choose_alone(problem, device, sizes);
}

// Builds what has the lowest estimate, and checks it, which compiles its machine code. Null where that is
// `but`. To be called in the background.
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

// Builds in the background what the problem would have begun with, and lets it replace a fallback choice as
// soon as it is ready. Returns the choice that runs until then. No search begins behind what is there to be
// replaced.
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
      cl::log_dropped("replacing a makeshift");  // it is tried again
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

// The search for something faster than what an estimate chose, or null when there is nothing to try. Where
// sizes change from call to call, it is only for what takes no time to build.
std::shared_ptr<Search> search_behind(const Problem& problem, cl::Device& device, const SolutionPtr& taken) {
  std::vector<Candidate> others = candidates_of(problem, device);
  if (sizes_met(problem) > kManySizes) {
    const AnySolver* last = nullptr;
    std::erase_if(others, [&](const Candidate& c) {
      const bool further = std::exchange(last, c.solver) == c.solver;
      return further || !if_built(problem, device, *c.solver, c.config);
    });
  }
  return make_search(problem, device, key(problem), taken, std::move(others),
                     run_to_search(problem, device, *taken));
}

}  // namespace

ChoicePtr choose_by_measuring(const Problem& problem, cl::Device& device, const std::string& key,
                              double most) {
  std::vector<Candidate> candidates = candidates_of(problem, device);
  if (candidates.empty()) return nullptr;
  const double most_microseconds = most * candidates.front().estimate;
  std::erase_if(candidates, [&](const auto& c) { return c.estimate > most_microseconds; });
  try {
    measure_all(problem, device, candidates);
  } catch (const std::exception& error) {
    log(1, "not measured," + key + "," + error.what());
    return nullptr;
  }
  const auto taken = std::find_if(candidates.begin(), candidates.end(),
                                  [](const auto& c) { return c.state == Candidate::kTaken; });
  if (taken == candidates.end()) return nullptr;
  remember(problem, device, key, record_of(problem, device, candidates));
  const SolutionPtr solution = taken->solution;
  std::shared_ptr<Search> search;
  if (specialises(find_mode(), *problem.op)) {
    for (Candidate& c : candidates)
      if (const auto built = std::exchange(c.solution, nullptr)) c.workspace = built->workspace;
    search = std::make_shared<Search>(problem, device, key, solution, std::move(candidates), true);
  }
  return make_choice(solution, solution, search);
}

ChoicePtr choose(const Problem& problem, cl::Device& device) {
  static auto* mutexes = new std::array<std::mutex, 64>;
  std::lock_guard<std::mutex> lock((*mutexes)[hash(problem) % mutexes->size()]);
  if (ChoicePtr found = known_choice(problem)) return found;
  const uint32_t generation = choice_generation();
  ChoicePtr made = choose_new(problem, device);
  remember_choice(problem, made, generation);
  return made;
}

ChoicePtr choose_for_capture(const Problem& problem, cl::Device& device) {
  ChoicePtr choice = known_choice(problem);
  if (!choice) choice = choose(problem, device);
  const bool capturable = choice->taken->solver->is_capturable() && choice->reusable->solver->is_capturable();
  if (capturable && !choice->makeshift && !is_passing(*choice->taken->solver, problem)) return choice;
  ChoicePtr settled = choose_from_store(problem, device, key(problem));
  if (!settled || !settled->taken->solver->is_capturable() || !settled->reusable->solver->is_capturable()) {
    auto ranking = ranking_for(problem, device);
    std::erase_if(ranking, [](const RankedSolver& ranked) { return !ranked.solver->is_capturable(); });
    const SolutionPtr best = choose_by_estimate(problem, device, ranking);
    settled = make_choice(best, best);
    if (capturable) settled->runs_to_search = run_to_search(problem, device, *best);
  }
  if (capturable) replace_choice(problem, choice, settled);
  return settled;
}

ChoicePtr choose_deterministic(const Problem& problem, cl::Device& device) {
  if (ChoicePtr known = known_deterministic_choice(problem)) return known;
  const uint32_t generation = choice_generation();
  const SolutionPtr solution = choose_by_estimate(problem, device, ranking_for(problem, device, true));
  if (verbosity() >= 1) log_found("deterministic", device, key(problem), *solution);
  const ChoicePtr choice = make_choice(solution, solution);
  remember_deterministic_choice(problem, choice, generation);
  return choice;
}

ChoicePtr reconsider(const Problem& problem, cl::Device& device, const ChoicePtr& choice) {
  if (choice->makeshift) return replace_in_background(problem, device, choice);
  const ChoicePtr next = choice->from_bucket ? choose_alone(problem, device, sizes_met(problem), true)
                                             : make_choice(choice->taken, choice->reusable,
                                                           search_behind(problem, device, choice->taken));
  replace_choice(problem, choice, next);
  return next;
}

void adopt_search(const Problem& problem, const ChoicePtr& choice) {
  const auto& search = choice->search;
  const ChoicePtr next = make_choice(search->taken(), search->reusable(), search->ended() ? nullptr : search);
  replace_choice(problem, choice, next);
  if (next->reusable != choice->reusable) note_bucket_choice(problem, *next->reusable);
  if (next->taken != choice->taken && next->taken->config.specialised) note_specialised(problem, next);
}

SolutionPtr least_memory(const Problem& problem, cl::Device& device, uint64_t bytes) {
  struct Needs {
    uint64_t bytes;
    const Candidate* candidate;
  };
  const auto candidates = candidates_of(problem, device);
  std::vector<Needs> list;
  for (const Candidate& c : candidates) {
    const uint64_t needed = c.solver->workspace_for(problem, device, c.config) +
                            c.solver->prepared_for(problem, device, c.config);
    if (needed < bytes && (!deterministic_now() || c.solver->is_deterministic_for(problem)))
      list.push_back({needed, &c});
  }
  std::stable_sort(list.begin(), list.end(),
                   [](const Needs& a, const Needs& b) { return a.bytes < b.bytes; });
  for (const auto& [needed, candidate] : list) try {
      SolutionPtr solution = make_solution(problem, device, *candidate->solver, candidate->config);
      if (is_trusted(problem, device, solution)) return solution;
    } catch (const std::exception& error) {
      log(1, std::string("build failed,") + candidate->solver->name() + "," + error.what());
    }
  return nullptr;
}

void ask_for_programs(const Problem& problem, cl::Device& device) {
  const bool estimate_only = deterministic_now();
  const auto record = estimate_only ? std::nullopt : valid_record(problem, device, key(problem));
  for (const FindResult& result : record ? record->results : std::vector<FindResult>{}) {
    const AnySolver* solver = usable_solver(result, problem, device, preference_of(*problem.op));
    if (!solver || result.config.specialised) continue;  // no other problem shares a specialised program
    try {
      make_solution(problem, device, *solver, result.config);
      return;
    } catch (const cl::Error& error) {
      log(1, std::string("stored solution fails,") + solver->name() + "," + error.what());
    }
  }
  ask_for_trial_programs(problem, device);
  const FindMode mode = find_mode();
  const MostEstimate limits = most_estimate(device);
  const double most = mode == FindMode::kNormal ? limits.before : limits.between;
  const auto candidates = candidates_of(problem, device);
  for (const Candidate& c : candidates) {
    if (c.config.specialised || (estimate_only && !c.solver->is_deterministic_for(problem))) continue;
    if (c.estimate > most * candidates.front().estimate) break;
    make_solution(problem, device, *c.solver, c.config);
    if (estimate_only || !searches(mode)) break;
  }
}

}  // namespace dlb::solver
