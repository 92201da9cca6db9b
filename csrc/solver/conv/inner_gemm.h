// For convolution solvers that leave the arithmetic to a GEMM solver: their configs are the GEMM's
// candidates.
#pragma once
#include <algorithm>

#include "solver/search.h"

namespace dlb::solver {

// A config is a GEMM solver's place in gemm_solvers() and the first five values of its config.
struct InnerGemm {
  const GemmSolver* solver;
  Config config;
};

inline InnerGemm inner_gemm(const Config& config) {
  InnerGemm inner{gemm_solvers()[static_cast<size_t>(config.values[0])], {}};
  std::copy_n(config.values + 1, 5, inner.config.values);
  return inner;
}

// Those worth trying, the lowest estimate first. Never empty where a GEMM solver is applicable.
inline std::vector<Config> inner_gemm_configs(const GemmProblem& gemm, const cl::Device& device) {
  constexpr double kMostEstimate = 4;  // times the lowest
  std::vector<Config> list;
  const auto candidates = candidates_of(gemm, device);
  for (const auto& c : candidates) {
    const bool hopeless = c.estimate > kMostEstimate * candidates.front().estimate;
    if (!list.empty() && (hopeless || c.config.values[5] != 0)) continue;
    Config config;
    while (gemm_solvers()[static_cast<size_t>(config.values[0])] != c.solver) config.values[0]++;
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

// Microseconds of the best; infinite where no GEMM solver is applicable or allowed.
inline double inner_gemm_estimate(const GemmProblem& gemm, const cl::Device& device) {
  const auto candidates = candidates_of(gemm, device);
  return candidates.empty() ? INFINITY : candidates.front().estimate;
}

}  // namespace dlb::solver
