// For convolution solvers that leave the arithmetic to a GEMM solver: their configs are the GEMM's
// candidates.
#pragma once
#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "cl/hash.h"
#include "solver/search.h"
#include "solver/settings.h"

namespace dlb::solver {

// A config is a hash of the GEMM solver's name and revision, which stays the same when solvers come and go,
// and the first five values of its config.
struct InnerGemm {
  const GemmSolver* solver;
  Config config;
};

inline int32_t inner_gemm_id(const GemmSolver& solver) {
  return static_cast<int32_t>(cl::hash128(revision_name(solver)).low & INT32_MAX);
}

// Throws cl::Error for a config of a solver that is no more.
inline InnerGemm inner_gemm(const Config& config) {
  static const auto* ids = [] {
    auto* list = new std::vector<std::pair<int32_t, const GemmSolver*>>;
    for (const GemmSolver* solver : gemm_solvers()) list->emplace_back(inner_gemm_id(*solver), solver);
    return list;
  }();
  for (const auto& [id, solver] : *ids) {
    if (id != config.values[0]) continue;
    InnerGemm inner{solver, {}};
    std::copy_n(config.values + 1, 5, inner.config.values);
    return inner;
  }
  throw cl::Error(CL_INVALID_VALUE, "the config of a GEMM solver that does not exist");
}

// Those worth trying, the lowest estimate first. Never empty where a GEMM solver is applicable.
inline std::vector<Config> inner_gemm_configs(const GemmProblem& gemm, const cl::Device& device) {
  constexpr double kMostEstimate = 1.5;  // times the lowest
  std::vector<Config> list;
  const auto candidates = candidates_of(gemm, device);
  for (const auto& c : candidates) {
    const bool hopeless = c.estimate > kMostEstimate * candidates.front().estimate;
    if (!list.empty() && (hopeless || c.config.values[5] != 0)) continue;
    Config config;
    config.values[0] = inner_gemm_id(*c.solver);
    std::copy_n(c.config.values, 5, config.values + 1);
    list.push_back(config);
  }
  return list;
}

inline uint64_t inner_gemm_workspace(const GemmProblem& gemm, const cl::Device& device,
                                     const Config& config) {
  const InnerGemm inner = inner_gemm(config);
  return inner.solver->workspace(gemm, device, inner.config);
}

inline SolutionPtr<GemmProblem> inner_gemm_solution(const GemmProblem& gemm, cl::Device& device,
                                                    const Config& config) {
  const InnerGemm inner = inner_gemm(config);
  return make_solution(gemm, device, *inner.solver, inner.config);
}

inline bool has_inner_gemm(const GemmProblem& gemm, const cl::Device& device) {
  const Preference preference = preference_of(Op::kGemm);
  const auto& solvers = gemm_solvers();
  return std::any_of(solvers.begin(), solvers.end(), [&](const GemmSolver* solver) {
    return preference.allows(solver->name()) && solver->applicable(gemm, device);
  });
}

// Microseconds of the best; infinite where there is none.
inline double inner_gemm_estimate(const GemmProblem& gemm, const cl::Device& device) {
  const auto ranking = ranking_of(gemm, device);
  return ranking.empty() ? INFINITY : ranking.front().estimate;
}

}  // namespace dlb::solver
