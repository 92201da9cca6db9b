// The ways to solve a problem: applicable, allowed solvers by their estimates, and their configs.
#pragma once
#include <string>
#include <vector>

#include "solver/op.h"

namespace dlb::solver {

// An applicable, allowed solver, and its expected microseconds.
struct RankedSolver {
  const AnySolver* solver = nullptr;
  double estimate = 0;
};
// All solvers of the problem that are applicable and allowed, the lowest estimate first.
std::vector<RankedSolver> ranking_of(const Problem& problem, const cl::Device& device);

// One way to solve a problem while it is being looked at.
struct Candidate {
  // kSlower: measured, or known before, to be slower than the one taken.
  enum State : uint8_t { kWaiting, kReady, kSlower, kTaken, kWrong, kFailed };
  const AnySolver* solver = nullptr;
  Config config;
  double estimate = 0;  // microseconds
  State state = kWaiting;
  SolutionPtr solution;
  uint64_t workspace = 0;      // bytes
  double error = 0, time = 0;  // relative; microseconds, 0 until measured
  std::vector<double> ratios;  // its time over that of the solution in use, one per measurement

  bool is(const AnySolver* other_solver, const Config& other_config) const {
    return solver == other_solver && config == other_config;
  }
};

// All solvers with all their configs, which take longer to find than the estimates; a solver's configs are in
// its order.
std::vector<Candidate> candidates_of(const Problem& problem, const cl::Device& device);

// "cpu_packed,tile_m=64,slower,12.3 us,error 1e-07", for logs.
std::string describe(const Candidate& candidate);

// Builds the candidate's solution; one that does not build becomes kFailed.
void build(const Problem& problem, cl::Device& device, Candidate& candidate);
// Builds, on several threads, the solutions of those that have none.
void build_all(const Problem& problem, cl::Device& device, std::vector<Candidate>& candidates);

// For each solver of the op the separator and "name: reason", which says whether it is applicable or why not.
std::string reasons(const Problem& problem, const cl::Device& device, const char* separator);

// Solutions are measured whose estimate is at most so many times the lowest: between the program's runs, and
// before its first one. GPUs have lower limits, because estimates are more exact there and the driver's
// compiler takes a quarter of a second or more for each program.
struct MostEstimate {
  double between, before;
};
MostEstimate most_estimate(const cl::Device& device);

}  // namespace dlb::solver
