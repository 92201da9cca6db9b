// Measures all solutions of a problem before its first run.
#pragma once
#include <vector>

#include "solver/candidates.h"

namespace dlb::solver {

// Builds all candidates in parallel, checks them, and times the right ones on synthetic operands; the fastest
// becomes kTaken, the others kSlower. Waits for the device. Candidates that are wrong or fail keep that
// state. Throws cl::Error when there is no memory.
void measure_all(const Problem& problem, cl::Device& device, std::vector<Candidate>& candidates);

}  // namespace dlb::solver
