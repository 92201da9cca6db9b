// Solvers whose kernels a device's driver did not build. They are not tried again, since that would cost
// another failing compilation for each new problem.
#pragma once
#include <exception>

#include "solver/solver.h"

namespace dlb::solver {

bool does_not_build(const cl::Device& device, const AnySolver& solver);

// Notes that a solver's kernel does not build, and warns of it once. False, and nothing is noted, where the
// error is another one or no other solver may be taken: for the reference, and where one is forced.
// Thread-safe.
bool note_build_failure(const Problem& problem, const cl::Device& device, const AnySolver& solver,
                        const std::exception& error);

}  // namespace dlb::solver
