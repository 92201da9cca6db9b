// For convolution solvers that leave the arithmetic to a GEMM solver: their configs are the GEMM's
// candidates.
#pragma once
#include <algorithm>
#include <cmath>
#include <iterator>
#include <utility>
#include <vector>

#include "cl/hash.h"
#include "primitives/gemm/problem.h"
#include "solver/candidates.h"
#include "solver/settings.h"

namespace dlb::solver {

// The config of such a solver: a hash of the GEMM solver's name and revision, which stays the same when
// solvers come and go, and the first five values of that solver's config.
struct InnerGemmConfig {
  int32_t gemm_solver = 0, gemm_values[Config::kValues - 1] = {};
  static constexpr const char* kNames[] = {"gemm_solver", "gemm_0", "gemm_1", "gemm_2", "gemm_3", "gemm_4"};
};

struct InnerGemm {
  const AnySolver* solver;
  Config config;
};

inline int32_t inner_gemm_id(const AnySolver& solver) {
  return static_cast<int32_t>(cl::hash128(revision_name(solver)).low & INT32_MAX);
}

// Throws cl::Error for a config of a solver that is no more.
inline InnerGemm inner_gemm(const Config& config) {
  static const auto* ids = [] {
    auto* list = new std::vector<std::pair<int32_t, const AnySolver*>>;
    for (const AnySolver* solver : gemm_op.solvers()) list->emplace_back(inner_gemm_id(*solver), solver);
    return list;
  }();
  const auto own = config.as<InnerGemmConfig>();
  for (const auto& [id, solver] : *ids) {
    if (id != own.gemm_solver) continue;
    InnerGemm inner{solver, {}};
    std::copy(std::begin(own.gemm_values), std::end(own.gemm_values), inner.config.values.begin());
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
    if (!list.empty() && (hopeless || c.config.values.back() != 0)) continue;
    InnerGemmConfig config{inner_gemm_id(*c.solver)};
    std::copy_n(c.config.values.begin(), std::size(config.gemm_values), config.gemm_values);
    list.push_back(Config::of(config));
  }
  return list;
}

// Whether a config, perhaps one that inner_gemm_configs() leaves out, can compute the product.
inline bool has_inner_gemm_config(const GemmProblem& gemm, const cl::Device& device, const Config& config) {
  const Preference preference = preference_of(gemm_op);
  const auto& solvers = gemm_op.solvers();
  const int32_t id = config.as<InnerGemmConfig>().gemm_solver;
  return std::any_of(solvers.begin(), solvers.end(), [&](const AnySolver* solver) {
    return inner_gemm_id(*solver) == id && preference.allows(*solver) && solver->can_solve(gemm, device) &&
           solver->has_config_for(gemm, device, inner_gemm(config).config);
  });
}

inline uint64_t inner_gemm_workspace(const GemmProblem& gemm, const cl::Device& device,
                                     const Config& config) {
  const InnerGemm inner = inner_gemm(config);
  return inner.solver->workspace_for(gemm, device, inner.config);
}

inline SolutionPtr inner_gemm_solution(const GemmProblem& gemm, cl::Device& device, const Config& config) {
  const InnerGemm inner = inner_gemm(config);
  return make_solution(gemm, device, *inner.solver, inner.config);
}

inline bool has_inner_gemm(const GemmProblem& gemm, const cl::Device& device) {
  const Preference preference = preference_of(gemm_op);
  const auto& solvers = gemm_op.solvers();
  return std::any_of(solvers.begin(), solvers.end(), [&](const AnySolver* solver) {
    return preference.allows(*solver) && solver->can_solve(gemm, device);
  });
}

// Microseconds of the best; infinite where there is none.
inline double inner_gemm_estimate(const GemmProblem& gemm, const cl::Device& device) {
  const auto ranking = ranking_of(gemm, device);
  return ranking.empty() ? INFINITY : ranking.front().estimate;
}

}  // namespace dlb::solver
