#include "solver/verify.h"

#include <c10/util/Exception.h>

#include <array>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>

#include "cl/build_mode.h"
#include "cl/stores/disk_cache.h"
#include "cl/tiers.h"
#include "runtime/stream.h"
#include "solver/background.h"
#include "solver/budget.h"
#include "solver/settings.h"
#include "solver/stats.h"

namespace dlb::solver {
namespace {

constexpr const char* kRight = "right";  // what the find store keeps under the name of a verification

// The verifications of one device's solvers that this process knows, by the names below.
class Verifications {
 public:
  std::optional<bool> find(const std::string& name) {
    std::lock_guard<std::mutex> lock(mutex_);
    const auto it = known_.find(name);
    return it == known_.end() ? std::nullopt : std::optional(it->second);
  }
  void set(const std::string& name, bool right) {
    std::lock_guard<std::mutex> lock(mutex_);
    known_[name] = right;
  }

 private:
  std::mutex mutex_;
  std::unordered_map<std::string, bool> known_;
};

Verifications& verifications_of(const cl::Device& device) {
  static auto* tables = new std::array<Verifications, cl::kDeviceIndices>;
  return (*tables)[static_cast<size_t>(device.index)];
}

// Names a wrong result for one problem, which counts whatever the solver did for others.
std::string rejection_name(const Problem& problem, const AnySolver& solver) {
  return "rejected " + revision_name(solver) + " " + std::to_string(hash(problem));
}

// The name of a verification, which the find store keeps: hence its wording, which is older than verify().
std::string verification_name(const Problem& problem, const AnySolver& solver) {
  return std::string("vouched ") + problem.op->name() + problem.op->kernel_variant(problem) + " " +
         revision_name(solver) + " " + c10::toString(problem.dtype) + " " + cl::library_version();
}

// Whether an error says that there is no memory now, which says nothing about a solver.
bool lacks_memory(const std::exception& error) {
  if (dynamic_cast<const c10::OutOfMemoryError*>(&error) || dynamic_cast<const std::bad_alloc*>(&error))
    return true;
  const auto* driver = dynamic_cast<const cl::Error*>(&error);
  return driver &&
         (driver->code == CL_MEM_OBJECT_ALLOCATION_FAILURE || driver->code == CL_OUT_OF_HOST_MEMORY);
}

// Compares one candidate with the reference solver's result in the check windows, or with what the trial
// expects everywhere. Where that `needs_memory`, it throws if there is none, else the candidate counts as
// failed.
void check_one(Trial& trial, const Problem& problem, Candidate& c, bool with_reference,
               bool needs_memory = false) {
  try {
    c.error = with_reference ? trial.error_in_windows(*c.solution) : trial.error(*c.solution);
    find_stats().verified++;
    c.state = c.error <= tolerance_of(problem) ? Candidate::kReady : Candidate::kWrong;
    if (c.state == Candidate::kWrong)
      verifications_of(device_of(problem.device)).set(rejection_name(problem, *c.solver), false);
  } catch (const std::exception& error) {
    if (needs_memory && lacks_memory(error)) throw;
    c.state = Candidate::kFailed;
    log(1, std::string("run failed,") + c.solver->name() + "," + error.what());
  }
  if (c.state != Candidate::kReady) {
    find_stats().rejected++;
    log(1, "rejected," + describe(c));
  }
}

// Compares a candidate with the reference solver; false where there is no memory for that.
bool try_check(const Problem& problem, cl::Device& device, Candidate& candidate) {
  try {
    const cl::UrgentBuild urgent;  // where an op waits for this: first launches compile too
    Trial trial(problem, device);
    check_one(trial, problem, candidate, true, true);
    return true;
  } catch (const std::exception& error) {
    log(1, "not checked," + key(problem) + "," + candidate.solver->name() + "," + error.what());
    return false;
  }
}

// Checks a solver again that was right as far as first tiers tell, now that its programs are optimised. Only
// then they take over, and later processes are told. Where it is wrong or cannot be checked, the first tiers
// stay.
bool check_again(const Problem& problem, cl::Device& device, Candidate candidate, const std::string& name) {
  std::lock_guard<std::mutex> lock(measuring_queue(device).mutex);
  candidate.state = Candidate::kWaiting;
  if (background_stopping() || !try_check(problem, device, candidate)) return false;
  if (candidate.state == Candidate::kReady) {
    cl::find_disk_cache().store(cl::find_key(device, name), kRight);
    return true;
  }
  verifications_of(device).set(name, false);
  warn_wrong(problem, device, candidate, "its programs stay as they are without optimisation");
  return false;
}

}  // namespace

size_t check_all(Trial& trial, const Problem& problem, std::vector<Candidate>& candidates) {
  size_t anchor = candidates.size();
  for (size_t i = 0; i < candidates.size() && !background_stopping(); i++) {
    Candidate& c = candidates[i];
    const bool unchecked = c.state == Candidate::kWaiting || c.state == Candidate::kTaken;
    if (!c.solution || !unchecked) continue;
    check_one(trial, problem, c, anchor == candidates.size());
    if (c.state == Candidate::kReady && anchor == candidates.size()) {
      anchor = i;
      trial.expect_last();
    }
  }
  return anchor;
}

bool runs_unverified(const Problem& problem) {
  return problem.op->trusts_first_choice() || !preference_of(*problem.op).forced.empty();
}

bool is_verified(const Problem& problem, const cl::Device& device, const AnySolver& solver) {
  if (&solver == &problem.op->reference()) return true;
  const std::string name = verification_name(problem, solver);
  Verifications& verifications = verifications_of(device);
  if (verifications.find(rejection_name(problem, solver))) return false;
  if (const auto known = verifications.find(name)) return *known;
  const auto stored = cl::find_disk_cache().load(cl::find_key(device, name));
  if (!stored || *stored != kRight) return false;
  verifications.set(name, true);
  return true;
}

bool verify(const Problem& problem, cl::Device& device, const SolutionPtr& solution) {
  const AnySolver& solver = *solution->solver;
  Verifications& verifications = verifications_of(device);
  if (verifications.find(rejection_name(problem, solver))) return false;
  if (is_verified(problem, device, solver)) return true;
  const std::string name = verification_name(problem, solver);
  if (verifications.find(name)) return false;  // known to be wrong
  Candidate candidate;
  candidate.solver = &solver, candidate.config = solution->config, candidate.solution = solution;
  cl::FirstTierUse first_tiers;
  StoredProblem checked(problem);
  if (!try_check(problem, device, candidate)) {
    checked = problem.op->reduced(problem);
    if (same(*checked, problem) || !solver.can_solve(*checked, device)) return false;
    candidate.config = solver.first_config_for(*checked, device);
    candidate.solution = make_solution(*checked, device, solver, candidate.config);
    if (!try_check(*checked, device, candidate)) return false;
  }
  const bool right = candidate.state == Candidate::kReady;
  verifications.set(name, right);
  if (!right) {
    warn_wrong(problem, device, candidate, "it is not used");
  } else if (first_tiers.any()) {
    first_tiers.check_again(
        [checked, &device, candidate, name] { return check_again(*checked, device, candidate, name); });
  } else {
    cl::find_disk_cache().store(cl::find_key(device, name), kRight);
  }
  return right;
}

void warn_wrong(const Problem& problem, const cl::Device& device, const Candidate& candidate,
                const std::string& then) {
  TORCH_WARN("dlbackend: solver ", candidate.solver->name(), " gives wrong results for ", key(problem),
             " on ", device.name, " (", device.driver_version, ", error ", candidate.error, "); ", then,
             ". Please report this.");
}

}  // namespace dlb::solver
