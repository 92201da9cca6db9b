#include "solver/inspect.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <cmath>
#include <sstream>

#include "cl/stores/disk_cache.h"
#include "solver/select.h"
#include "solver/settings.h"
#include "solver/stored_choice.h"

namespace dlb::solver {
namespace {

cl::Device& device_at(int index) {
  return device_of(static_cast<c10::DeviceIndex>(index));
}

// One solution as solutions() prints it. A time of zero stands for one that was not measured.
std::string solution_line(const FindResult& r, double estimate, const std::string& state) {
  std::ostringstream line;
  line << r.solver << '\t' << config_text(r.config) << '\t'
       << (r.config.specialised ? "specialised" : "reusable") << '\t' << estimate << '\t';
  r.time > 0 ? line << r.time << '\t' : line << "-\t";
  line << r.workspace << '\t';
  r.time > 0 ? line << r.error << '\t' : line << "-\t";
  line << state << '\n';
  return line.str();
}

}  // namespace

std::string explain(const std::string& text, int index) {
  const StoredProblem problem = op_of_key(text).parse(text, index);
  const cl::Device& device = device_at(index);
  const ChoicePtr known = known_choice(*problem);
  const auto ranking = known ? std::vector<RankedSolver>{} : ranking_of(*problem, device);
  TORCH_CHECK(known || !ranking.empty(), "no solver for ", text, " on ", device.name,
              ". Solvers:", reasons(*problem, device, "\n  "));
  const char* name = known ? known->taken->solver->name() : ranking.front().solver->name();
  return std::string(name) + " for " + key(*problem) + reasons(*problem, device, "\n  ");
}

std::string solutions(const std::string& text, int index) {
  const StoredProblem problem = op_of_key(text).parse(text, index);
  cl::Device& device = device_at(index);
  const auto record = valid_record(*problem, device, key(*problem));
  const ChoicePtr known = known_choice(*problem);
  const auto state = [&](const std::string& solver, const Config& config) {
    const bool taken =
        known && revision_name(*known->taken->solver) == solver && known->taken->config == config;
    return std::string(taken ? "taken" : "applicable");
  };
  const auto candidates = candidates_of(*problem, device);
  const auto estimate = [&](const std::string& solver) {
    const auto it = std::find_if(candidates.begin(), candidates.end(),
                                 [&](const auto& c) { return revision_name(*c.solver) == solver; });
    return it == candidates.end() ? 0.0 : it->estimate;
  };
  const std::vector<FindResult> measured = record ? record->results : std::vector<FindResult>{};
  std::string lines;
  for (const FindResult& r : measured)
    lines += solution_line(r, estimate(r.solver), state(r.solver, r.config));
  for (const Candidate& c : candidates) {
    const std::string name = revision_name(*c.solver);
    if (std::any_of(measured.begin(), measured.end(),
                    [&](const FindResult& r) { return r.solver == name && r.config == c.config; }))
      continue;
    const FindResult unmeasured{name, c.config, 0, c.solver->workspace_for(*problem, device, c.config), 0};
    lines += solution_line(unmeasured, c.estimate, state(name, c.config));
  }
  return lines;
}

void tune(const std::string& text, int index, bool exhaustive) {
  const StoredProblem problem = op_of_key(text).parse(text, index);
  cl::Device& device = device_at(index);
  const double most = exhaustive ? INFINITY : most_estimate(device).before;
  const ChoicePtr choice = choose_by_measuring(*problem, device, key(*problem), most);
  TORCH_CHECK(choice, "no solution of ", key(*problem), " could be measured on ", device.name,
              ". Solvers:", reasons(*problem, device, "\n  "));
  remember_choice(*problem, choice);
}

std::string find_record(const std::string& key, int index) {
  return cl::find_disk_cache().load(cl::find_key(device_at(index), key)).value_or("");
}

void store_find_record(const std::string& key, const std::string& text, int index) {
  op_of_key(key).parse(key, index);  // throws for text that is no key
  cl::find_disk_cache().store(cl::find_key(device_at(index), key), text);
  forget_choices();
}

std::vector<std::string> solved_problems() {
  std::vector<std::string> keys;
  for (const StoredProblem& problem : solved()) keys.push_back(key(*problem));
  return keys;
}

}  // namespace dlb::solver
