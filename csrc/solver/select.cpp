#include "solver/select.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <array>
#include <mutex>

#include "solver/ahead.h"
#include "solver/background.h"
#include "solver/budget.h"
#include "solver/by_estimate.h"
#include "solver/candidate_record.h"
#include "solver/device_rates.h"
#include "solver/fallback_choice.h"
#include "solver/measure.h"
#include "solver/measure_rates.h"
#include "solver/search.h"
#include "solver/settings.h"
#include "solver/shape_classes.h"
#include "solver/stats.h"
#include "solver/stored_choice.h"
#include "solver/trial.h"

namespace dlb::solver {
namespace {

// When a shape class has met more sizes than networks have layers, a new size runs what another of its bucket
// runs, or a solution that is built already.
constexpr size_t kSizesOfLayers = 2;
// A network runs one problem at most so often for one input. A problem with more runs has come again.
constexpr int64_t kRunsOfOneInput = 4;

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
    const bool hurries = !sizes_change && takes_fallback(problem, device, ranking.front());
    const SolutionPtr first = choose_by_estimate(problem, device, ranking, sizes_change || hurries);
    const bool fallback = hurries && first->solver != ranking.front().solver;
    choice = make_choice(first, first, nullptr, fallback);
    if (fallback) expect({StoredProblem(problem)});
    if (searches(mode)) choice->runs_to_search = fallback ? 2 : run_to_search(problem, device, *first);
  }
  if (verbosity() >= 1) log_found("miss", device, text, *choice->taken, reasons(problem, device, ","));
  return choice;
}

// Chooses by what the store knows, else as the find mode does. So many `sizes` of the shape class were met.
// A problem that `runs` already does not begin with a fallback choice.
ChoicePtr choose_alone(const Problem& problem, cl::Device& device, size_t sizes, bool runs = false) {
  const std::string text = key(problem);
  ChoicePtr choice = runs ? nullptr : choose_fallback(problem, device, text);
  if (!choice) choice = choose_from_store(problem, device, text);
  if (!choice) choice = choose_on_miss(problem, device, text, sizes);
  if (!choice->fallback || !is_passing(*choice->taken->solver, problem))
    note_bucket_choice(problem, *choice->reusable);
  return choice;
}

ChoicePtr choose_new(const Problem& problem, cl::Device& device) {
  const size_t sizes = sizes_met(problem);
  if (sizes > kSizesOfLayers && find_mode() != FindMode::kNormal)
    if (ChoicePtr choice = choose_by_bucket(problem, device)) return choice;
  return choose_alone(problem, device, sizes);
}

// Microseconds of what is taken for the problem; 0 where nothing was measured.
double measured_time(const Problem& problem, const cl::Device& device) {
  const auto record = valid_record(problem, device, key(problem));
  return record ? record->results.front().time : 0;
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
  if (capturable && !choice->fallback && !is_passing(*choice->taken->solver, problem)) return choice;
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
  if (choice->fallback) return replace_in_background(problem, device, choice);
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

bool gains_apart(const Problem& problem, const Choice& choice, const Problem& plain,
                 c10::function_ref<uint64_t()> bytes, cl::Device& device) {
  using Apart = Choice::Apart;
  const Apart state = choice.apart.load(std::memory_order_relaxed);
  if (state == Apart::kYes || state == Apart::kNo) return state == Apart::kYes;
  if (choice.fallback || !is_settled(choice)) return false;
  const DeviceRates& rates = rates_of(device);
  const auto gains_over = [&](double product) {
    const double rows = static_cast<double>(bytes()) / rates.bytes + rates.launch_us;
    return measured_time(problem, device) > product + rows;
  };
  if (state == Apart::kUnknown) {
    const auto ranking = ranking_of(plain, device);
    const bool may = !ranking.empty() && gains_over(ranking.front().estimate);
    choice.apart = may ? Apart::kTrying : Apart::kNo;
    if (!may) return false;
  }
  const ChoicePtr alone = known_choice(plain);
  if (!alone || alone->fallback || !is_settled(*alone)) return true;
  const double product = measured_time(plain, device);
  const bool gains = product > 0 && gains_over(product);
  if (gains && verbosity() >= 1) log(1, "rows apart," + key(problem));
  choice.apart = gains ? Apart::kYes : Apart::kNo;
  return gains;
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
