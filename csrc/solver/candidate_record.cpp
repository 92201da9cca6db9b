#include "solver/candidate_record.h"

#include <algorithm>

#include "cl/stores/disk_cache.h"
#include "solver/settings.h"

namespace dlb::solver {

FindRecord record_of(const Problem& problem, const cl::Device& device,
                     const std::vector<Candidate>& candidates) {
  FindRecord record;
  record.version = cl::library_version();
  const Preference preference = preference_of(*problem.op);
  for (const AnySolver* solver : problem.op->solvers())
    if (preference.allows(*solver) && solver->can_solve(problem, device))
      record.considered.push_back(revision_name(*solver));
  for (const auto& c : candidates)
    if (c.time > 0 && c.state != Candidate::kWrong)
      record.results.push_back({revision_name(*c.solver), c.config, c.time,
                                c.solution ? c.solution->workspace : c.workspace, c.error});
  // The one that was taken comes first: others may have measured faster, but by too little to take over.
  const auto rank = [&](const FindResult& r) {
    for (const auto& c : candidates)
      if (c.state == Candidate::kTaken && revision_name(*c.solver) == r.solver && c.config == r.config)
        return 0.0;
    return r.time;
  };
  std::stable_sort(record.results.begin(), record.results.end(),
                   [&](const auto& a, const auto& b) { return rank(a) < rank(b); });
  return record;
}

void remember(const Problem& problem, const cl::Device& device, const std::string& key,
              const FindRecord& record) {
  const std::string forced = preference_of(*problem.op).forced;
  const auto known = forced.empty() ? std::nullopt : load_record(device, key);
  if (!known || known->version != record.version || known->results.empty())
    return store_record(device, key, record);
  // The first result of a record is the one to take. It stays first, unless it is of the forced solver.
  const bool newer = known->results.front().solver.rfind(forced + "@", 0) == 0;
  FindRecord both = newer ? record : *known;
  const FindRecord& other = newer ? *known : record;
  for (const std::string& solver : other.considered)
    if (std::find(both.considered.begin(), both.considered.end(), solver) == both.considered.end())
      both.considered.push_back(solver);
  for (const FindResult& result : other.results)
    if (std::none_of(both.results.begin(), both.results.end(), [&](const FindResult& r) {
          return r.solver == result.solver && r.config == result.config;
        }))
      both.results.push_back(result);
  store_record(device, key, both);
}

}  // namespace dlb::solver
