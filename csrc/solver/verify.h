// Solvers are compared with the op's reference solver before they are believed.
#pragma once
#include <vector>

#include "solver/candidates.h"
#include "solver/trial.h"

namespace dlb::solver {

// Whether a solver is known to be right on this device for this op, dtype and kernel variant: it was compared
// with the reference once, by this process or an earlier one, with the first problem that it met, or where
// that would take too much memory with its reduced problem. A comparison waits for the device; a solver found
// wrong is named in a warning and not used again by this process. False too where it cannot be compared now,
// and for a problem for which it was found wrong at any time.
bool verify(const Problem& problem, cl::Device& device, const SolutionPtr& solution);

// Whether a first choice for the problem runs unverified: the op trusts it, or the user forced it.
bool runs_unverified(const Problem& problem);

// Whether verify() has found the solver right before; looks at the store, compares nothing.
bool is_verified(const Problem& problem, const cl::Device& device, const AnySolver& solver);

// Compares all candidates that wait or are taken: the first that agrees with the reference solver in the
// check windows becomes what the others must agree with everywhere. Their states become kReady, kWrong or
// kFailed. Returns its index, or the number of candidates when none is right.
size_t check_all(Trial& trial, const Problem& problem, std::vector<Candidate>& candidates);

// Says that a solver gave wrong results, in a warning that asks for a report; `then` says what follows.
void warn_wrong(const Problem& problem, const cl::Device& device, const Candidate& candidate,
                const std::string& then);

}  // namespace dlb::solver
