// Solutions by their estimates alone: the lowest that works, or one that is built already.
#pragma once
#include <vector>

#include "solver/candidates.h"
#include "solver/op.h"

namespace dlb::solver {

// As ranking_of(), but throws c10::Error with the reason of every solver where none can be taken.
std::vector<RankedSolver> ranking_for(const Problem& problem, const cl::Device& device,
                                      bool only_deterministic = false);

// The solution, or null when one of its programs is not built yet.
SolutionPtr if_built(const Problem& problem, cl::Device& device, const AnySolver& solver,
                     const Config& config);

// The first solution whose programs are built, unless its estimate is far above the lowest. Null when there
// is none.
SolutionPtr first_built(const Problem& problem, cl::Device& device, const std::vector<RankedSolver>& ranking,
                        bool only_verified = false);

// Whether a solution may run: it needs no check, or passes it.
bool is_trusted(const Problem& problem, cl::Device& device, const SolutionPtr& solution);

// A solver's first solution; null when it is wrong or its kernel does not build on this driver. Throws where
// it is forced, or no other is left.
SolutionPtr if_it_works(const Problem& problem, cl::Device& device, const AnySolver& solver);

// The solution of the lowest estimate that works; with `built_first`, one that is built goes before it.
SolutionPtr choose_by_estimate(const Problem& problem, cl::Device& device,
                               const std::vector<RankedSolver>& ranking, bool built_first = false);

// Builds what has the lowest estimate, and checks it, which compiles its machine code. Null where that is
// `but`. To be called in the background.
SolutionPtr best_by_estimate(const Problem& problem, cl::Device& device, const AnySolver* but);

}  // namespace dlb::solver
