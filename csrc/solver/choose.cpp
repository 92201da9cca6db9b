// Choosing a solution for a problem - remembered, stored, measured or estimated - and running it.
#include <ATen/record_function.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <functional>
#include <optional>
#include <sstream>
#include <unordered_set>

#include "cl/stores/disk_cache.h"
#include "cl/kernel.h"
#include "cl/recording.h"
#include "solver/background.h"
#include "solver/find.h"
#include "solver/find_record.h"
#include "solver/invoker_cache.h"
#include "solver/prepared.h"
#include "solver/recent_map.h"
#include "solver/search.h"
#include "solver/settings.h"
#include "solver/solver.h"
#include "solver/trial.h"

namespace dlb::solver {
namespace {

constexpr size_t kMostSpecialised = 256;  // problems at once that have a program of their own
// Sizes of one family. With more, a new one runs what a like one runs, or what is built already if its
// estimate is at most kMostForBuilt times the lowest.
constexpr size_t kSizesOfLayers = 2;
constexpr double kMostForBuilt = 3;
constexpr size_t kNeighbourhoods = 4096;  // of a generation
constexpr int64_t kRunsOfOneInput = 4;    // of one problem in a network; with more, its size comes again

// Counts the programs made for single problems: how long ago a choice last ran.
std::atomic<uint32_t> g_round{0};
// Counts what makes earlier choices void: a choice that was begun before is not remembered.
std::atomic<uint32_t> g_generation{0};

// What runs for a problem now. Never changed, but for the count: a better one replaces it in the cache.
template <class Problem>
struct Choice {
  SolutionPtr<Problem> taken, reusable;
  std::shared_ptr<Search<Problem>> search;         // null when there is none
  mutable std::atomic<int64_t> runs_to_search{0};  // until one begins; at most 0: never
  bool unsettled = false;                          // taken from a like size: the store was not asked
  mutable std::atomic<uint32_t> last_run{0};       // in rounds, see g_round
};
template <class Problem>
using ChoicePtr = std::shared_ptr<const Choice<Problem>>;
template <class Problem>
using Cache = InvokerCache<Problem, Choice<Problem>>;

// Never destroyed: threads may run ops while the process exits.
template <class Problem>
Cache<Problem>& cache() {
  static auto* instance = new Cache<Problem>;
  return *instance;
}
// Of choices by estimate alone, while determinism is asked for.
template <class Problem>
Cache<Problem>& deterministic_cache() {
  static auto* instance = new Cache<Problem>;
  return *instance;
}

// What was taken last for problems that are alike. A size that never comes again is not worth a key, a look
// into the store and every solver's estimate: with dozens of problems to an image, they would take longer
// than its launches.
template <class Problem>
class Precedents {
 public:
  struct Precedent {
    const Solver<Problem>* solver;
    Config config;
  };
  std::optional<Precedent> find(const Problem& problem) {
    const uint64_t neighbourhood = problem.neighbourhood();
    std::lock_guard<std::mutex> lock(mutex_);
    const Precedent* precedent = known_.find(neighbourhood);
    return precedent ? std::optional(*precedent) : std::nullopt;
  }
  void note(const Problem& problem, const Solution<Problem>& solution) {
    const uint64_t neighbourhood = problem.neighbourhood();
    std::lock_guard<std::mutex> lock(mutex_);
    known_.insert(neighbourhood, Precedent{solution.solver, solution.config});
  }
  void clear() {
    std::lock_guard<std::mutex> lock(mutex_);
    known_.clear();
  }

 private:
  std::mutex mutex_;
  RecentMap<uint64_t, Precedent> known_{kNeighbourhoods};
};

template <class Problem>
Precedents<Problem>& precedents() {
  static auto* instance = new Precedents<Problem>;
  return *instance;
}

template <class Problem>
ChoicePtr<Problem> make_choice(SolutionPtr<Problem> taken, SolutionPtr<Problem> reusable,
                               std::shared_ptr<Search<Problem>> search = nullptr) {
  auto choice = std::make_shared<Choice<Problem>>();
  choice->taken = std::move(taken), choice->reusable = std::move(reusable);
  choice->search = std::move(search);
  return choice;
}

template <class Problem>
std::string reasons(const Problem& problem, const cl::Device& device, const char* separator) {
  const Preference preference = preference_of(problem.op());
  std::string text;
  for (const auto* solver : solvers_for(problem)) {
    const Applicability can = solver->applicable(problem, device);
    const char* reason =
        can ? (preference.allows(solver->name()) ? "applicable" : "applicable, but not allowed") : can.reason;
    text += separator + std::string(solver->name()) + ": " + reason;
  }
  return text;
}

template <class Problem>
[[noreturn]] void throw_no_solver(const Problem& problem, const cl::Device& device) {
  const Preference preference = preference_of(problem.op());
  TORCH_CHECK(false,
              preference.forced.empty()
                  ? std::string("no solver")
                  : "DLBACKEND_SOLVER: solver '" + preference.forced + "' is not applicable",
              " for ", key(problem), " on ", device.name, ". Solvers:", reasons(problem, device, "\n  "));
}

// As ranking_of(), but throws c10::Error where there is none.
template <class Problem>
std::vector<Ranked<Problem>> ranking_for(const Problem& problem, const cl::Device& device,
                                         bool only_deterministic = false) {
  std::vector<Ranked<Problem>> ranking = ranking_of(problem, device);
  if (only_deterministic)
    std::erase_if(ranking, [&](const auto& ranked) { return !ranked.solver->is_deterministic(problem); });
  if (ranking.empty()) throw_no_solver(problem, device);
  return ranking;
}

// The solution, or null when something is left to build for it.
template <class Problem>
SolutionPtr<Problem> if_built(const Problem& problem, cl::Device& device, const Solver<Problem>& solver,
                              const Config& config) {
  cl::Recording recording(cl::Recording::kWhether);
  try {
    SolutionPtr<Problem> solution = make_solution(problem, device, solver, config);
    return recording.unbuilt() ? nullptr : solution;
  } catch (const std::exception&) {
    return nullptr;
  }
}

// Where sizes change from call to call: the first solution that is built, unless that costs far more. Or
// null.
template <class Problem>
SolutionPtr<Problem> first_built(const Problem& problem, cl::Device& device,
                                 const std::vector<Ranked<Problem>>& ranking) {
  for (const auto& [solver, estimate] : ranking) {
    if (estimate > kMostForBuilt * ranking.front().estimate) break;
    for (const Config& config : solver->configs(problem, device))
      if (SolutionPtr<Problem> solution = if_built(problem, device, *solver, config)) return solution;
  }
  return nullptr;
}

void warn_once(const std::string& about, const std::string& text) {
  static std::mutex mutex;
  static auto* known = new std::unordered_set<std::string>;
  std::lock_guard<std::mutex> lock(mutex);
  if (known->insert(about).second) {
    TORCH_WARN(text);
  }
}

// Whether a solution may run unchecked or passes its check. The first solution of a launch problem is what
// smaller sizes run without asking; only the search, which may replace it, needs it checked.
template <class Problem>
bool is_trusted(const Problem& problem, cl::Device& device, const SolutionPtr<Problem>& solution) {
  return std::is_same_v<Problem, LaunchProblem> || !preference_of(problem.op()).forced.empty() ||
         vouch(problem, device, solution);
}

// A solver's first solution; null when it is wrong or, with a warning, its kernel does not build on this
// driver. Throws where it is forced, or no other is left.
template <class Problem>
SolutionPtr<Problem> if_it_works(const Problem& problem, cl::Device& device, const Solver<Problem>& solver) {
  try {
    SolutionPtr<Problem> solution =
        make_solution(problem, device, solver, solver.first_config(problem, device));
    return is_trusted(problem, device, solution) ? solution : nullptr;
  } catch (const cl::Error& error) {
    if (error.code != CL_BUILD_PROGRAM_FAILURE || &solver == solvers_for(problem).back() ||
        !preference_of(problem.op()).forced.empty())
      throw;
    warn_once(std::to_string(device.index) + op_name(problem.op()) + solver.name(),
              std::string("dlbackend: solver ") + solver.name() +
                  " is not used, its kernel does not build: " + error.what());
    return nullptr;
  }
}

// The solution of the lowest estimate that works; with `built_first`, one that is built goes before it.
template <class Problem>
SolutionPtr<Problem> by_estimate(const Problem& problem, cl::Device& device,
                                 const std::vector<Ranked<Problem>>& ranking, bool built_first = false) {
  if (built_first)
    if (SolutionPtr<Problem> solution = first_built(problem, device, ranking))
      if (is_trusted(problem, device, solution)) return solution;
  for (const auto& [solver, estimate] : ranking)
    if (SolutionPtr<Problem> solution = if_it_works(problem, device, *solver)) return solution;
  throw_no_solver(problem, device);
}

template <class Problem>
void say_found(const char* how, const cl::Device& device, const std::string& key,
               const Solution<Problem>& solution, const std::function<std::string()>& others = {}) {
  if (verbosity() < 1) return;
  say(1, "find,ocl:" + std::to_string(device.index) + "," + how + "," + solution.solver->name() + "," +
             config_text(solution.config) + "," + key + (others ? others() : ""));
}

// The solver of a stored result, if it is still what it was and may be taken.
template <class Problem>
const Solver<Problem>* usable(const FindResult& result, const Problem& problem, const cl::Device& device,
                              const Preference& preference) {
  for (const auto* solver : solvers_for(problem))
    if (revision_name(*solver) == result.solver && preference.allows(solver->name()) &&
        solver->applicable(problem, device))
      return solver;
  return nullptr;
}

// What is known of a problem. Nothing where the solution to take is of a solver, or a revision of one, that
// is no more: the next one measured may be several times slower than what an estimate would choose.
template <class Problem>
std::optional<FindRecord> valid_record(const Problem& problem, const cl::Device& device,
                                       const std::string& key) {
  auto record = load_record(device, key);
  if (!record || record->results.empty()) return std::nullopt;
  const std::string& taken = record->results.front().solver;
  for (const auto* solver : solvers_for(problem))
    if (revision_name(*solver) == taken) return record;
  return std::nullopt;
}

template <class Problem>
bool considered(const FindRecord& record, const Solver<Problem>& solver) {
  return std::find(record.considered.begin(), record.considered.end(), revision_name(solver)) !=
         record.considered.end();
}

// True when a solver may be taken that the record's measurements knew nothing of: it came since, or was
// forbidden.
template <class Problem>
bool lacks_solvers(const FindRecord& record, const Problem& problem, const cl::Device& device) {
  const Preference preference = preference_of(problem.op());
  for (const auto* solver : solvers_for(problem))
    if (preference.allows(solver->name()) && solver->applicable(problem, device) &&
        !considered(record, *solver))
      return true;
  return false;
}

// Whether a record stands for what the mode would find: in `normal` all is measured before the first run, and
// in `fast` nothing is ever measured, so that what would be taken by estimate has to be among what was.
template <class Problem>
bool stands(const FindRecord& record, const Problem& problem, const cl::Device& device, FindMode mode) {
  if (record.version != cl::library_version()) return true;  // better than an estimate
  if (mode == FindMode::kNormal) return !lacks_solvers(record, problem, device);
  if (mode != FindMode::kFast) return true;
  const auto ranking = ranking_of(problem, device);
  return ranking.empty() || considered(record, *ranking.front().solver);
}

bool searches(FindMode mode) {
  return mode != FindMode::kFast;
}
bool specialises(FindMode mode, Op op) {
  return (mode == FindMode::kNormal || mode == FindMode::kHybrid || mode == FindMode::kTrustVerify) &&
         may_specialise(op);
}

template <class Problem>
std::shared_ptr<Search<Problem>> search_from(const Problem& problem, cl::Device& device,
                                             const std::string& key, SolutionPtr<Problem> taken,
                                             std::vector<Candidate<Problem>> others, uint32_t runs = 0) {
  const bool specialise = specialises(find_mode(), problem.op());
  const bool only_reference = others.size() <= 1 && taken->solver == solvers_for(problem).back();
  if (only_reference && !specialise) return nullptr;
  return std::make_shared<Search<Problem>>(problem, device, key, std::move(taken), std::move(others),
                                           specialise, runs);
}

// What a record of this library's knows of candidates, so that only new solvers are measured.
template <class Problem>
void recall(const FindRecord& record, std::vector<Candidate<Problem>>& candidates) {
  std::erase_if(candidates, [&](Candidate<Problem>& c) {
    const std::string name = revision_name(*c.solver);
    for (const FindResult& result : record.results)
      if (result.solver == name && result.config == c.config) {
        c.state = Candidate<Problem>::kSlower;
        c.time = result.time, c.workspace = result.workspace, c.error = result.error;
        return false;
      }
    return considered(record, *c.solver);
  });
}

// Whether a solver has the config, compiled for a problem's sizes or not: a record may come from elsewhere.
template <class Problem>
bool has_config(const Problem& problem, const cl::Device& device, const Solver<Problem>& solver,
                Config config) {
  if (config.specialised && !solver.can_specialise(problem, device, config)) return false;
  config.specialised = false;
  const auto configs = solver.configs(problem, device);
  return std::find(configs.begin(), configs.end(), config) != configs.end();
}

// What the store knows, or null. The fastest solution that compiles nothing for these sizes starts; a faster
// one of a program of its own is fetched behind it.
template <class Problem>
ChoicePtr<Problem> from_store(const Problem& problem, cl::Device& device, const std::string& key) {
  const auto record = valid_record(problem, device, key);
  const FindMode mode = find_mode();
  if (!record || !stands(*record, problem, device, mode)) return nullptr;
  const Preference preference = preference_of(problem.op());
  SolutionPtr<Problem> taken;
  std::vector<Candidate<Problem>> faster;
  bool specialised_before = false;
  for (const FindResult& result : record->results) {
    const Solver<Problem>* solver = usable(result, problem, device, preference);
    if (!solver) continue;
    if (!has_config(problem, device, *solver, result.config)) {
      say(1, "stored solution is none," + key + "," + solver->name() + "," + config_text(result.config));
      continue;
    }
    if (result.config.specialised) {
      specialised_before = true;
      Candidate<Problem> candidate;
      candidate.solver = solver, candidate.config = result.config;
      candidate.estimate = solver->estimate(problem, device);
      if (!taken && specialises(mode, problem.op())) faster.push_back(candidate);
      continue;
    }
    if (taken) continue;
    try {
      SolutionPtr<Problem> solution = make_solution(problem, device, *solver, result.config);
      if (record->of_another_driver() && !vouch(problem, device, solution)) continue;
      taken = std::move(solution);
    } catch (const cl::Error& error) {
      say(1, "stored solution fails," + key + "," + error.what());
    }
  }
  if (!taken) return nullptr;
  find_stats().hits++;
  std::shared_ptr<Search<Problem>> search;
  const bool again = mode == FindMode::kTrustVerify || record->version != cl::library_version();
  // What the record's process did not live to try.
  const bool could_specialise = !specialised_before && specialises(mode, problem.op()) &&
                                taken->solver->can_specialise(problem, device, taken->config);
  if (searches(mode) &&
      (again || !faster.empty() || could_specialise || lacks_solvers(*record, problem, device))) {
    std::vector<Candidate<Problem>> others = candidates_of(problem, device);
    if (!again) recall(*record, others);
    others.insert(others.end(), faster.begin(), faster.end());
    search = search_from(problem, device, key, taken, std::move(others));
  }
  say_found("hit", device, key, *taken);
  return make_choice<Problem>(taken, taken, search);
}

// Measures before the first run what is estimated below `most_estimate` times the lowest. Null when there is
// no memory for it.
template <class Problem>
ChoicePtr<Problem> by_measuring(const Problem& problem, cl::Device& device, const std::string& key,
                                double most_estimate) {
  std::vector<Candidate<Problem>> candidates = candidates_of(problem, device);
  if (candidates.empty()) return nullptr;
  const double most = most_estimate * candidates.front().estimate;
  std::erase_if(candidates, [&](const auto& c) { return c.estimate > most; });
  try {
    measure_all(problem, device, candidates);
  } catch (const std::exception& error) {
    say(1, "not measured," + key + "," + error.what());
    return nullptr;
  }
  const auto taken = std::find_if(candidates.begin(), candidates.end(),
                                  [](const auto& c) { return c.state == Candidate<Problem>::kTaken; });
  if (taken == candidates.end()) return nullptr;
  remember(problem, device, key, record_of(problem, device, candidates));
  const SolutionPtr<Problem> solution = taken->solution;
  std::shared_ptr<Search<Problem>> search;
  if (specialises(find_mode(), problem.op())) {
    for (auto& c : candidates)
      if (const auto built = std::exchange(c.solution, nullptr)) c.workspace = built->workspace;
    search = std::make_shared<Search<Problem>>(problem, device, key, solution, std::move(candidates), true);
  }
  return make_choice<Problem>(solution, solution, search);
}

// What a problem alike runs, if that is built for this one too; else null. When it comes again, it is chosen
// for.
template <class Problem>
ChoicePtr<Problem> by_precedent(const Problem& problem, cl::Device& device) {
  const auto precedent = precedents<Problem>().find(problem);
  if (!precedent || !precedent->solver->applicable(problem, device)) return nullptr;
  const SolutionPtr<Problem> solution = if_built(problem, device, *precedent->solver, precedent->config);
  if (!solution) return nullptr;
  auto choice = std::make_shared<Choice<Problem>>();
  choice->taken = choice->reusable = solution;
  choice->unsettled = true, choice->runs_to_search = kRunsOfOneInput + 1;
  find_stats().precedents++;
  if (verbosity() >= 1) say_found("like", device, key(problem), *solution);
  return choice;
}

// By what the store knows, else as the mode says; the `sizes`-th problem of its family.
template <class Problem>
ChoicePtr<Problem> choose_alone(const Problem& problem, cl::Device& device, size_t sizes) {
  const std::string text = key(problem);
  ChoicePtr<Problem> choice = from_store(problem, device, text);
  if (!choice) {
    find_stats().misses++;
    const FindMode mode = find_mode();
    if (mode == FindMode::kNormal) choice = by_measuring(problem, device, text, most_estimate(device).before);
    if (!choice) {
      const auto ranking = ranking_for(problem, device);
      const SolutionPtr<Problem> first = by_estimate(problem, device, ranking, sizes > kSizesOfLayers);
      choice = make_choice<Problem>(first, first);
      if (searches(mode)) {
        const auto it = std::find_if(ranking.begin(), ranking.end(),
                                     [&](const auto& ranked) { return ranked.solver == first->solver; });
        choice->runs_to_search = run_to_search_at(device, it->estimate);
      }
    }
    say_found("miss", device, text, *choice->taken, [&] { return reasons(problem, device, ","); });
  }
  precedents<Problem>().note(problem, *choice->reusable);
  return choice;
}

template <class Problem>
ChoicePtr<Problem> choose_new(const Problem& problem, cl::Device& device) {
  const size_t sizes = sizes_met(problem);
  if (sizes > kSizesOfLayers && find_mode() != FindMode::kNormal)
    if (ChoicePtr<Problem> choice = by_precedent(problem, device)) return choice;
  return choose_alone(problem, device, sizes);
}

// One thread chooses for a problem; others that meet it meanwhile wait for that.
template <class Problem>
ChoicePtr<Problem> choose_once(const Problem& problem, cl::Device& device) {
  static auto* mutexes = new std::array<std::mutex, 64>;
  std::lock_guard<std::mutex> lock((*mutexes)[hash(problem) % mutexes->size()]);
  if (ChoicePtr<Problem> found = cache<Problem>().find(problem)) return found;
  const uint32_t generation = g_generation;
  ChoicePtr<Problem> made = choose_new(problem, device);
  cache<Problem>().insert_if(problem, made, [&] { return generation == g_generation; });
  return made;
}

// The search for something faster than what an estimate chose, or null when there is nothing to try. Where
// sizes change from call to call, it is only for what takes no time to build.
template <class Problem>
std::shared_ptr<Search<Problem>> search_behind(const Problem& problem, cl::Device& device,
                                               const SolutionPtr<Problem>& taken) {
  std::vector<Candidate<Problem>> others = candidates_of(problem, device);
  if (sizes_met(problem) > kManySizes) {
    const Solver<Problem>* last = nullptr;
    std::erase_if(others, [&](const auto& c) {
      const bool further = std::exchange(last, c.solver) == c.solver;
      return further || !if_built(problem, device, *c.solver, c.config);
    });
  }
  return search_from(problem, device, key(problem), taken, std::move(others),
                     run_to_search_at(device, taken->solver->estimate(problem, device)));
}

// For a problem that has run as often as its choice says: now it is chosen for, or a search begins.
template <class Problem>
ChoicePtr<Problem> reconsider(const Problem& problem, cl::Device& device, const ChoicePtr<Problem>& choice) {
  const ChoicePtr<Problem> next = choice->unsettled
                                      ? choose_alone(problem, device, sizes_met(problem))
                                      : make_choice<Problem>(choice->taken, choice->reusable,
                                                             search_behind(problem, device, choice->taken));
  cache<Problem>().replace(problem, choice, next);
  return next;
}

template <class Problem>
ChoicePtr<Problem> choose_deterministic(const Problem& problem, cl::Device& device) {
  auto& known = deterministic_cache<Problem>();
  ChoicePtr<Problem> choice = known.find(problem);
  if (choice) return choice;
  const uint32_t generation = g_generation;
  const SolutionPtr<Problem> solution = by_estimate(problem, device, ranking_for(problem, device, true));
  say_found("deterministic", device, key(problem), *solution);
  choice = make_choice<Problem>(solution, solution);
  known.insert_if(problem, choice, [&] { return generation == g_generation; });
  return choice;
}

// Bounds the programs made for single problems: the least recently run is given up when a new one comes.
template <class Problem>
void note_specialised(const Problem& problem, const ChoicePtr<Problem>& choice) {
  using Entry = std::pair<Problem, ChoicePtr<Problem>>;
  static std::mutex mutex;
  static auto* list = new std::vector<Entry>;
  std::lock_guard<std::mutex> lock(mutex);
  choice->last_run = ++g_round;  // it is about to
  list->emplace_back(problem, choice);
  if (list->size() <= kMostSpecialised) return;
  const auto oldest = std::min_element(list->begin(), list->end(), [](const Entry& a, const Entry& b) {
    return a.second->last_run < b.second->last_run;
  });
  const auto [old, its_choice] = *oldest;
  list->erase(oldest);
  if (cache<Problem>().replace(old, its_choice,
                               make_choice<Problem>(its_choice->reusable, its_choice->reusable)))
    find_stats().evicted++;
}

// Takes over what the search has found out.
template <class Problem>
void adopt(const Problem& problem, const ChoicePtr<Problem>& choice) {
  const auto& search = choice->search;
  const ChoicePtr<Problem> next =
      make_choice<Problem>(search->taken(), search->reusable(), search->ended() ? nullptr : search);
  cache<Problem>().replace(problem, choice, next);
  if (next->reusable != choice->reusable) precedents<Problem>().note(problem, *next->reusable);
  if (next->taken != choice->taken && next->taken->config.specialised) note_specialised(problem, next);
}

template <class Problem>
void run_with_workspace(const Solution<Problem>& solution, const Problem& problem,
                        const typename Problem::Operands& operands, Stream& stream) {
  if (solution.workspace == 0) {
    solution.invoker->run(stream, operands, MemRef{});
    return;
  }
  // Freed when this returns: later allocations of the stream come after the kernels that use it.
  const c10::DataPtr workspace =
      allocate_bytes(solution.workspace, static_cast<c10::DeviceIndex>(problem.device));
  solution.invoker->run(stream, operands, resolve(workspace, workspace.get()));
}

template <class Problem>
void run_solution(const Solution<Problem>& solution, const Problem& problem,
                  const typename Problem::Operands& operands, Stream& stream) {
  if (solution.prepared > 0)
    return run_with_workspace(solution, problem, with_prepared(solution, operands, stream), stream);
  run_with_workspace(solution, problem, operands, stream);
}

// The solution that needs least memory and less than `bytes`, for when there is none for the workspace of the
// one taken; null when there is none. As right and as deterministic as any that is chosen.
template <class Problem>
SolutionPtr<Problem> leaner(const Problem& problem, cl::Device& device, uint64_t bytes) {
  struct Lean {
    uint64_t bytes;
    const Candidate<Problem>* candidate;
  };
  const auto candidates = candidates_of(problem, device);
  std::vector<Lean> list;
  for (const auto& c : candidates) {
    const uint64_t needed =
        c.solver->workspace(problem, device, c.config) + c.solver->prepared(problem, device, c.config);
    if (needed < bytes && (!deterministic_now() || c.solver->is_deterministic(problem)))
      list.push_back({needed, &c});
  }
  std::stable_sort(list.begin(), list.end(), [](const Lean& a, const Lean& b) { return a.bytes < b.bytes; });
  for (const auto& [needed, candidate] : list) try {
      SolutionPtr<Problem> solution = make_solution(problem, device, *candidate->solver, candidate->config);
      if (is_trusted(problem, device, solution)) return solution;
    } catch (const std::exception& error) {
      say(1, std::string("build failed,") + candidate->solver->name() + "," + error.what());
    }
  return nullptr;
}

template <class Problem>
void run_timed(const Solution<Problem>& solution, const Problem& problem,
               const typename Problem::Operands& operands, Stream& stream) {
  stream.synchronize();
  const auto start = std::chrono::steady_clock::now();
  run_solution(solution, problem, operands, stream);
  stream.synchronize();
  const double us =
      std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - start).count();
  char time[32];
  std::snprintf(time, sizeof time, "%.1f us", us);
  say(2, "run,ocl:" + std::to_string(problem.device) + "," + solution.solver->name() + "," +
             config_text(solution.config) + "," + key(problem) + "," + time);
}

// While programs are recorded: asks for those that choosing would build for the problem, and chooses nothing.
template <class Problem>
void ask_for_programs(const Problem& problem, cl::Device& device) {
  const bool estimate_only = deterministic_now();
  const auto record = estimate_only ? std::nullopt : valid_record(problem, device, key(problem));
  for (const FindResult& result : record ? record->results : std::vector<FindResult>{}) {
    const auto* solver = usable(result, problem, device, preference_of(problem.op()));
    if (!solver || result.config.specialised) continue;  // those have programs that nobody shares
    try {
      make_solution(problem, device, *solver, result.config);
      return;
    } catch (const cl::Error&) {  // of a config that the solver has no more
    }
  }
  ask_for_trial_programs(problem, device);
  const FindMode mode = find_mode();
  const MostEstimate limits = most_estimate(device);
  const double most = mode == FindMode::kNormal ? limits.before : limits.between;
  const auto candidates = candidates_of(problem, device);
  for (const auto& c : candidates) {
    if (c.config.specialised || (estimate_only && !c.solver->is_deterministic(problem))) continue;
    if (c.estimate > most * candidates.front().estimate) break;
    make_solution(problem, device, *c.solver, c.config);
    if (estimate_only || !searches(mode)) break;
  }
}

template <class Problem>
void run_any(const Problem& problem, const typename Problem::Operands& operands, Stream& stream) {
  cl::Device& device = stream.device();
  if (cl::Recording::current()) [[unlikely]]
    return ask_for_programs(problem, device);
  ChoicePtr<Problem> choice;
  if (deterministic_now()) [[unlikely]]
    choice = choose_deterministic(problem, device);
  else if (!(choice = cache<Problem>().find(problem))) [[unlikely]]
    choice = choose_once(problem, device);
  if (choice->runs_to_search.load(std::memory_order_relaxed) > 0 && --choice->runs_to_search == 0)
      [[unlikely]]
    choice = reconsider(problem, device, choice);
  const bool reusable_only = prefers_reusable(problem.op());
  if (choice->search) {
    // A run that fails for its operands tells nothing of a candidate.
    for (const auto& span : problem.spans()) cl::check_buffer(device, (operands.*span.buffer).mem);
    const auto step = choice->search->step(operands, stream, reusable_only);
    if (step.changed) adopt(problem, choice);
    if (step.ran) return;
  }

  const Solution<Problem>& solution = reusable_only ? *choice->reusable : *choice->taken;
  const uint32_t round = g_round.load(std::memory_order_relaxed);
  if (choice->last_run.load(std::memory_order_relaxed) != round) [[unlikely]]
    choice->last_run.store(round, std::memory_order_relaxed);
  at::RecordFunction profiled(at::RecordScope::FUNCTION);
  if (profiled.isActive()) [[unlikely]]
    profiled.before(std::string("ocl::") + op_name(problem.op()) + "::" + solution.solver->name());
  const cl::SolverScope scope(stream.queue(), solution.solver->name());
  try {
    if (verbosity() >= 2) [[unlikely]]
      run_timed(solution, problem, operands, stream);
    else
      run_solution(solution, problem, operands, stream);
  } catch (const c10::OutOfMemoryError&) {
    const SolutionPtr<Problem> lean = leaner(problem, device, solution.workspace + solution.prepared);
    if (!lean) throw;
    run_solution(*lean, problem, operands, stream);
  }
}

template <class Problem>
std::string explain_any(const Problem& problem) {
  const cl::Device& device = device_of(problem.device);
  const ChoicePtr<Problem> known = cache<Problem>().find(problem);
  const char* name =
      known ? known->taken->solver->name() : ranking_for(problem, device).front().solver->name();
  return std::string(name) + " for " + key(problem) + reasons(problem, device, "\n  ");
}

std::string solution_line(const std::string& solver, const Config& config, double estimate, double time,
                          uint64_t workspace, double error, const std::string& state) {
  std::ostringstream line;
  line << solver << '\t' << config_text(config) << '\t' << (config.specialised ? "specialised" : "reusable")
       << '\t' << estimate << '\t';
  time > 0 ? line << time << '\t' : line << "-\t";
  line << workspace << '\t';
  time > 0 ? line << error << '\t' : line << "-\t";
  line << state << '\n';
  return line.str();
}

template <class Problem>
std::string solutions_any(const Problem& problem) {
  cl::Device& device = device_of(problem.device);
  const auto record = valid_record(problem, device, key(problem));
  const ChoicePtr<Problem> known = cache<Problem>().find(problem);
  const auto state = [&](const std::string& solver, const Config& config) {
    const bool taken =
        known && revision_name(*known->taken->solver) == solver && known->taken->config == config;
    return std::string(taken ? "taken" : "applicable");
  };
  const auto candidates = candidates_of(problem, device);
  const auto estimate = [&](const std::string& solver) {
    const auto it = std::find_if(candidates.begin(), candidates.end(),
                                 [&](const auto& c) { return revision_name(*c.solver) == solver; });
    return it == candidates.end() ? 0.0 : it->estimate;
  };
  std::string text;
  if (record)
    for (const FindResult& r : record->results)
      text += solution_line(r.solver, r.config, estimate(r.solver), r.time, r.workspace, r.error,
                            state(r.solver, r.config));
  for (const auto& c : candidates) {
    const std::string name = revision_name(*c.solver);
    const bool listed =
        record && std::any_of(record->results.begin(), record->results.end(),
                              [&](const auto& r) { return r.solver == name && r.config == c.config; });
    if (!listed)
      text += solution_line(name, c.config, c.estimate, 0, c.solver->workspace(problem, device, c.config), 0,
                            state(name, c.config));
  }
  return text;
}

template <class Problem>
void tune_any(const Problem& problem, bool exhaustive) {
  cl::Device& device = device_of(problem.device);
  const double most = exhaustive ? INFINITY : most_estimate(device).before;
  const ChoicePtr<Problem> choice = by_measuring(problem, device, key(problem), most);
  TORCH_CHECK(choice, "no solution of ", key(problem), " could be measured on ", device.name,
              ". Solvers:", reasons(problem, device, "\n  "));
  cache<Problem>().insert(problem, choice);
}

template <class Visit>
auto with_problem(const std::string& text, int device, Visit&& visit) {
  switch (op_of_key(text)) {
    case Op::kGemm:
      return visit(parse_gemm_key(text, device));
    case Op::kConvForward:
    case Op::kConvInputGrad:
    case Op::kConvWeightGrad:
      return visit(parse_conv_key(text, device));
    default:
      return visit(parse_launch_key(text, device));
  }
}

}  // namespace

void run(const GemmProblem& problem, const GemmProblem::Operands& operands, Stream& stream) {
  run_any(problem, operands, stream);
}
void run(const ConvProblem& problem, const ConvProblem::Operands& operands, Stream& stream) {
  run_any(problem, operands, stream);
}
void run(const LaunchProblem& problem, const LaunchProblem::Operands& operands, Stream& stream) {
  run_any(problem, operands, stream);
}

std::string explain(const std::string& key, int device) {
  return with_problem(key, device, [](const auto& problem) { return explain_any(problem); });
}
std::string solutions(const std::string& key, int device) {
  return with_problem(key, device, [](const auto& problem) { return solutions_any(problem); });
}
void tune(const std::string& key, int device, bool exhaustive) {
  with_problem(key, device, [&](const auto& problem) { tune_any(problem, exhaustive); });
}

std::string find_record(const std::string& key, int device) {
  return cl::find_disk_cache()
      .load(cl::find_key(device_of(static_cast<c10::DeviceIndex>(device)), key))
      .value_or("");
}
void store_find_record(const std::string& key, const std::string& text, int device) {
  with_problem(key, device, [](const auto&) {});  // throws for what is no key
  cl::find_disk_cache().store(cl::find_key(device_of(static_cast<c10::DeviceIndex>(device)), key), text);
  forget_choices();
}

std::vector<std::string> solved_problems() {
  std::vector<std::string> keys;
  for (const auto& problem : cache<GemmProblem>().problems()) keys.push_back(key(problem));
  for (const auto& problem : cache<ConvProblem>().problems()) keys.push_back(key(problem));
  for (const auto& problem : cache<LaunchProblem>().problems()) keys.push_back(key(problem));
  return keys;
}

uint64_t evicted_choices() {
  return find_stats().evicted + cache<GemmProblem>().evicted() + cache<ConvProblem>().evicted() +
         cache<LaunchProblem>().evicted();
}

void forget_choices() {
  g_generation++;
  cache<GemmProblem>().clear();
  cache<ConvProblem>().clear();
  cache<LaunchProblem>().clear();
  deterministic_cache<GemmProblem>().clear();
  deterministic_cache<ConvProblem>().clear();
  deterministic_cache<LaunchProblem>().clear();
  precedents<GemmProblem>().clear();
  precedents<ConvProblem>().clear();
  precedents<LaunchProblem>().clear();
}

}  // namespace dlb::solver
