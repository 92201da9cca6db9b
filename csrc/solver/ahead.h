// Compiling what a network will want next while it waits for what it wants now. Its first iteration waits for
// one program after the other; on devices whose programs other processes compile (cl/compile_process.h),
// those that an op knows to follow need not wait their turn.
#pragma once
#include <functional>
#include <vector>

#include "solver/problem.h"
#include "solver/solver.h"

namespace dlb::solver {

// Says that these problems, of one device, will come, or some that share their programs: for ops that have
// just had to compile. The programs that choosing would build for them first are compiled meanwhile; a caller
// that wants one before it is there waits for it. Does nothing on devices without such processes. Never
// waits.
void expect(const std::vector<StoredProblem>& problems);

// Has what expect() has compiled for the problem built, unless that is under way. Returns what tells that
// nothing of it is under way any more: then the problem's first solution can be built without waiting for a
// compiler. Makes solutions, so it is to be called in the background.
std::function<bool()> build_first_behind(const Problem& problem, cl::Device& device);

// Builds what a first run of the problem by the solver has to wait for, its solution and what checks that
// where it is unchecked: several programs in as many processes. Does nothing on devices without such
// processes. Throws what making the solution throws, but leaves programs that do not build to that.
void compile_first(const Problem& problem, cl::Device& device, const AnySolver& solver);

}  // namespace dlb::solver
