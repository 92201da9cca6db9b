#include "solver/ahead.h"

#include <exception>
#include <mutex>
#include <utility>

#include "cl/compile_process.h"
#include "cl/program_table.h"
#include "cl/recording.h"
#include "solver/background.h"
#include "solver/candidates.h"
#include "solver/settings.h"
#include "solver/stored_choice.h"
#include "solver/verify.h"

namespace dlb::solver {
namespace {

struct Expected {
  std::mutex mutex;
  std::vector<StoredProblem> problems;
  bool queued = false;  // whether a background task for them is queued
};
Expected& expected() {
  static auto* instance = new Expected;
  return *instance;
}

// Asks for the programs of a solver's first solution, and for those that verify it where it was never used.
// To be called on a thread that records.
void ask_for_first(const Problem& problem, cl::Device& device, const AnySolver& solver,
                   const Config& config) {
  if (!runs_unverified(problem) && !is_verified(problem, device, solver))
    ask_for_trial_programs(problem, device);
  make_solution(problem, device, solver, config);
}

// Those of the programs that the problem would begin with that are not built.
std::vector<cl::ProgramSource> programs_of(const Problem& problem, cl::Device& device) {
  cl::Recording recording;
  try {
    const auto [solver, config] = first_solution(problem, device);
    if (solver) ask_for_first(problem, device, *solver, config);
  } catch (const std::exception& error) {  // the op itself will raise it
    log(1, std::string("not compiled ahead,") + error.what());
  }
  return recording.programs();
}

// Has all that was expected so far compiled.
void compile_expected() {
  std::vector<StoredProblem> problems;  // of any device
  {
    std::lock_guard<std::mutex> lock(expected().mutex);
    problems.swap(expected().problems);
    expected().queued = false;
  }
  for (const StoredProblem& problem : problems)
    if (!background_stopping())  // the task is there for wait_for_background()
      in_background_when(
          build_first_behind(*problem, device_of(static_cast<c10::DeviceIndex>(problem->device))), [] {});
}

}  // namespace

void expect(const std::vector<StoredProblem>& problems) {
  if (problems.empty()) return;
  const cl::Device& device = device_of(static_cast<c10::DeviceIndex>(problems.front()->device));
  if (cl::compile_processes(device) == 0) return;
  Expected& e = expected();
  std::lock_guard<std::mutex> lock(e.mutex);
  e.problems.insert(e.problems.end(), problems.begin(), problems.end());
  if (std::exchange(e.queued, true)) return;
  in_background(compile_expected);
}

std::function<bool()> build_first_behind(const Problem& problem, cl::Device& device) {
  return cl::prefetch_behind(device, programs_of(problem, device), cl::AheadFor::kProblem);
}

void compile_first(const Problem& problem, cl::Device& device, const AnySolver& solver) {
  if (cl::compile_processes(device) == 0 || builds_behind(problem, device, solver)) return;
  std::vector<cl::ProgramSource> programs;
  {
    cl::Recording recording;
    ask_for_first(problem, device, solver, solver.first_config_for(problem, device));
    programs = recording.programs();
  }
  // A single one is soonest compiled here: no process has to start.
  if (programs.size() > 1) cl::prefetch(device, programs, cl::compile_processes(device));
}

}  // namespace dlb::solver
