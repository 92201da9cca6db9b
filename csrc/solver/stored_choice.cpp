#include "solver/stored_choice.h"

#include <algorithm>

#include "cl/stores/disk_cache.h"
#include "solver/search.h"
#include "solver/stats.h"
#include "solver/verify.h"

namespace dlb::solver {
namespace {

bool considered(const FindRecord& record, const AnySolver& solver) {
  return std::find(record.considered.begin(), record.considered.end(), revision_name(solver)) !=
         record.considered.end();
}

// True when a solver may be taken that was not among those considered for the record, because it is newer or
// was forbidden then.
bool lacks_solvers(const FindRecord& record, const Problem& problem, const cl::Device& device) {
  const Preference preference = preference_of(*problem.op);
  const auto& solvers = problem.op->solvers();
  return std::any_of(solvers.begin(), solvers.end(), [&](const AnySolver* solver) {
    return preference.allows(*solver) && solver->can_solve(problem, device) && !considered(record, *solver);
  });
}

// Whether a record stands for what the mode would find: in `normal` all is measured before the first run, and
// in `fast` nothing is ever measured, so that what would be taken by estimate has to be among what was.
bool stands(const FindRecord& record, const Problem& problem, const cl::Device& device, FindMode mode) {
  if (record.version != cl::library_version()) return true;  // an old measurement is better than an estimate
  if (mode == FindMode::kNormal) return !lacks_solvers(record, problem, device);
  if (mode != FindMode::kFast) return true;
  const auto ranking = ranking_of(problem, device);
  return ranking.empty() || considered(record, *ranking.front().solver);
}

// Gives candidates what a record of this library's version knows of them, and leaves out those that it
// considered in vain, so that only new solvers are measured.
void recall(const FindRecord& record, std::vector<Candidate>& candidates) {
  std::erase_if(candidates, [&](Candidate& c) {
    const std::string name = revision_name(*c.solver);
    for (const FindResult& result : record.results)
      if (result.solver == name && result.config == c.config) {
        c.state = Candidate::kSlower;
        c.time = result.time, c.workspace = result.workspace, c.error = result.error;
        return false;
      }
    return considered(record, *c.solver);
  });
}

// Whether a solver has the config, compiled for a problem's sizes or not: a record may come from elsewhere.
bool has_config(const Problem& problem, const cl::Device& device, const AnySolver& solver, Config config) {
  if (config.specialised && !solver.can_specialise_for(problem, device, config)) return false;
  config.specialised = false;
  return solver.has_config_for(problem, device, config);
}

// The conclusions from a record's results: the fastest reusable solution, and the specialised ones that are
// faster.
struct Stored {
  SolutionPtr taken;
  std::vector<Candidate> faster;
  bool specialised_before = false;
};

void add_result(Stored& stored, const FindResult& result, const FindRecord& record, const Problem& problem,
                cl::Device& device, const std::string& key) {
  const AnySolver* solver = usable_solver(result, problem, device, preference_of(*problem.op));
  if (!solver) return;
  if (result.config.specialised) {
    stored.specialised_before = true;
    Candidate candidate;
    candidate.solver = solver, candidate.config = result.config;
    candidate.estimate = solver->estimate_for(problem, device);
    if (!stored.taken && specialises(find_mode(), *problem.op)) stored.faster.push_back(candidate);
    return;
  }
  if (stored.taken) return;
  try {
    SolutionPtr solution = make_solution(problem, device, *solver, result.config);
    if (record.of_another_driver() && !verify(problem, device, solution)) return;
    stored.taken = std::move(solution);
  } catch (const cl::Error& error) {
    log(1, "stored solution fails," + key + "," + error.what());
  }
}

// The search that follows a stored solution: for solvers that are new, or that the record's process ended too
// early to try.
std::shared_ptr<Search> search_behind_record(const Stored& stored, const FindRecord& record,
                                             const Problem& problem, cl::Device& device,
                                             const std::string& key) {
  const FindMode mode = find_mode();
  if (!searches(mode)) return nullptr;
  const bool again = mode == FindMode::kTrustVerify || record.version != cl::library_version();
  const bool could_specialise =
      !stored.specialised_before && specialises(mode, *problem.op) &&
      stored.taken->solver->can_specialise_for(problem, device, stored.taken->config);
  if (!again && stored.faster.empty() && !could_specialise && !lacks_solvers(record, problem, device))
    return nullptr;
  std::vector<Candidate> others = candidates_of(problem, device);
  if (!again) recall(record, others);
  others.insert(others.end(), stored.faster.begin(), stored.faster.end());
  return make_search(problem, device, key, stored.taken, std::move(others));
}

}  // namespace

std::optional<FindRecord> valid_record(const Problem& problem, const cl::Device& device,
                                       const std::string& key) {
  auto record = load_record(device, key);
  if (!record || record->results.empty()) return std::nullopt;
  const std::string& taken = record->results.front().solver;
  for (const AnySolver* solver : problem.op->solvers())
    if (revision_name(*solver) == taken) return record;
  return std::nullopt;
}

const AnySolver* usable_solver(const FindResult& result, const Problem& problem, const cl::Device& device,
                               const Preference& preference) {
  for (const AnySolver* solver : problem.op->solvers()) {
    if (revision_name(*solver) != result.solver || !preference.allows(*solver) ||
        !solver->can_solve(problem, device))
      continue;
    if (has_config(problem, device, *solver, result.config)) return solver;
    log(1,
        "stored solution is none," + key(problem) + "," + solver->name() + "," + config_text(result.config));
  }
  return nullptr;
}

FirstSolution first_solution(const Problem& problem, const cl::Device& device) {
  const auto record = valid_record(problem, device, key(problem));
  const Preference preference = preference_of(*problem.op);
  for (const FindResult& result : record ? record->results : std::vector<FindResult>{})
    if (const AnySolver* solver = usable_solver(result, problem, device, preference))
      if (!result.config.specialised) return {solver, result.config};
  const auto ranking = ranking_of(problem, device);
  if (ranking.empty()) return {};
  const AnySolver* lowest = ranking.front().solver;
  return {lowest, lowest->first_config_for(problem, device)};
}

ChoicePtr choose_from_store(const Problem& problem, cl::Device& device, const std::string& key) {
  const auto record = valid_record(problem, device, key);
  if (!record || !stands(*record, problem, device, find_mode())) return nullptr;
  Stored stored;
  for (const FindResult& result : record->results) add_result(stored, result, *record, problem, device, key);
  if (!stored.taken) return nullptr;
  find_stats().hits++;
  auto search = search_behind_record(stored, *record, problem, device, key);
  log_found("hit", device, key, *stored.taken);
  return make_choice(stored.taken, stored.taken, std::move(search));
}

std::shared_ptr<Search> make_search(const Problem& problem, cl::Device& device, const std::string& key,
                                    SolutionPtr taken, std::vector<Candidate> others, uint32_t runs) {
  const bool specialise = specialises(find_mode(), *problem.op);
  const bool only_reference = others.size() <= 1 && taken->solver == &problem.op->reference();
  if (only_reference && !specialise) return nullptr;
  return std::make_shared<Search>(problem, device, key, std::move(taken), std::move(others), specialise,
                                  runs);
}

void log_found(const char* how, const cl::Device& device, const std::string& key, const Solution& solution,
               const std::string& others) {
  if (verbosity() < 1) return;
  log(1, "find,ocl:" + std::to_string(device.index) + "," + how + "," + solution.solver->name() + "," +
             describe(solution.config, solution.solver->config_names()) + "," + key + others);
}

}  // namespace dlb::solver
