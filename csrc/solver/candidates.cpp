#include "solver/candidates.h"

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <thread>

#include "cl/build_mode.h"
#include "cl/threads.h"
#include "solver/settings.h"

namespace dlb::solver {
namespace {

const char* state_name(Candidate::State state) {
  constexpr const char* names[] = {"waiting", "ready", "slower", "taken", "wrong", "failed"};
  return names[state];
}

constexpr size_t kMostBuildThreads = 8;

}  // namespace

std::vector<RankedSolver> ranking_of(const Problem& problem, const cl::Device& device) {
  const Preference preference = preference_of(*problem.op);
  const auto& solvers = problem.op->solvers();
  std::vector<RankedSolver> list;
  list.reserve(solvers.size());
  for (const AnySolver* solver : solvers)
    if (preference.allows(*solver) && solver->can_solve(problem, device))
      list.push_back({solver, solver->estimate_for(problem, device)});
  std::stable_sort(list.begin(), list.end(),
                   [](const auto& a, const auto& b) { return a.estimate < b.estimate; });
  return list;
}

std::vector<Candidate> candidates_of(const Problem& problem, const cl::Device& device) {
  std::vector<Candidate> list;
  for (const auto& [solver, estimate] : ranking_of(problem, device))
    for (const Config& config : solver->configs_for(problem, device)) {
      Candidate& candidate = list.emplace_back();
      candidate.solver = solver, candidate.config = config, candidate.estimate = estimate;
    }
  return list;
}

std::string describe(const Candidate& c) {
  char numbers[64];
  std::snprintf(numbers, sizeof numbers, ",%.1f us,error %.2g", c.time, c.error);
  return std::string(c.solver->name()) + "," + describe(c.config, c.solver->config_names()) + "," +
         state_name(c.state) + numbers;
}

void build(const Problem& problem, cl::Device& device, Candidate& c) {
  try {
    c.solution = make_solution(problem, device, *c.solver, c.config);
  } catch (const std::exception& error) {
    c.state = Candidate::kFailed;
    log(1, std::string("build failed,") + c.solver->name() + "," + error.what());
  }
}

void build_all(const Problem& problem, cl::Device& device, std::vector<Candidate>& candidates) {
  std::atomic<size_t> next{0};
  const auto build_some = [&] {
    for (size_t i; (i = next++) < candidates.size();)
      if (!candidates[i].solution) build(problem, device, candidates[i]);
  };
  const size_t threads = std::min<size_t>(
      {candidates.size(), std::max(1u, std::thread::hardware_concurrency()), kMostBuildThreads});
  cl::BuildMode elsewhere = cl::build_mode();
  elsewhere.elsewhere = true, elsewhere.deferred = false;
  const cl::WithBuildMode mode(elsewhere);
  cl::run_on_threads(threads, build_some);
}

std::string reasons(const Problem& problem, const cl::Device& device, const char* separator) {
  const Preference preference = preference_of(*problem.op);
  std::string text;
  for (const AnySolver* solver : problem.op->solvers()) {
    const Applicability can = solver->can_solve(problem, device);
    const char* allowed = preference.allows(*solver) ? "applicable" : "applicable, but not allowed";
    const char* reason = can ? allowed : can.reason;
    text += separator + std::string(solver->name()) + ": " + reason;
  }
  return text;
}

MostEstimate most_estimate(const cl::Device& device) {
  return device.cls == cl::DeviceClass::kCpu ? MostEstimate{4, 6} : MostEstimate{1.8, 2};
}

}  // namespace dlb::solver
