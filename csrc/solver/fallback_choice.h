// What runs for a problem while the programs of its first choice are built, and what then takes its place.
#pragma once
#include <string>

#include "solver/candidates.h"
#include "solver/choice.h"

namespace dlb::solver {

// Whether a first run had better not wait for the solution with the lowest estimate: where kernels' first
// launches compile too, a few of them are most of a program's first iteration, and where other processes can
// compile, they do that meanwhile. So it is with tiers: one that runs without optimisation is slow until the
// driver has optimised it, which takes the longer the more of them there are.
bool takes_fallback(const Problem& problem, cl::Device& device, const RankedSolver& lowest);

// Whether a solver only runs until what a problem would have begun with is ready.
bool is_passing(const AnySolver& solver, const Problem& problem);

// The run with which the search behind a solution begins.
uint32_t run_to_search(const Problem& problem, const cl::Device& device, const Solution& taken);

// The choice of what runs without waiting for programs; null where there is none.
ChoicePtr choose_fallback(const Problem& problem, cl::Device& device, const std::string& text);

// Builds in the background what the problem would have begun with, and lets it replace a fallback choice as
// soon as it is ready. Returns the choice that runs until then. No search begins behind what is there to be
// replaced.
ChoicePtr replace_in_background(const Problem& problem, cl::Device& device, const ChoicePtr& choice);

}  // namespace dlb::solver
