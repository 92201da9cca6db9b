// The contract of a solver: one way to compute a family of problems. Solvers are stateless singletons, one
// per file; csrc/solver/lists.cpp holds the ordered list of each op. See docs/adding-a-solver.md.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "cl/device.h"
#include "runtime/allocator.h"
#include "runtime/stream.h"
#include "solver/problem.h"

namespace dlb::solver {

// Whether a solver can compute a problem on a device; `reason` says why not (a string literal).
struct Applicability {
  const char* reason = nullptr;
  explicit operator bool() const { return reason == nullptr; }
  static Applicability yes() { return {}; }
  static Applicability no(const char* reason) { return {reason}; }
};

// Tile sizes, splits: what a solver can vary for one problem. The meaning of the numbers is the solver's own.
struct Config {
  int32_t values[6] = {};
};

// A solver made ready for one problem: kernels built, launch sizes known. run() only sets arguments and
// enqueues; several threads may call it at once.
template <class Problem>
class Invoker {
 public:
  virtual ~Invoker() = default;
  // Enqueues on the stream. `workspace` has the solver's workspace(problem) bytes (mem is null for none);
  // what it holds is undefined before and after.
  virtual void run(Stream& stream, const typename Problem::Operands& operands, MemRef workspace) = 0;
};

template <class Problem>
class Solver {
 public:
  virtual ~Solver() = default;
  // Stable name, as DLBACKEND_SOLVER and the stores know it.
  virtual const char* name() const = 0;
  virtual Applicability applicable(const Problem& problem, const cl::Device& device) const = 0;
  // Bytes of device memory that an invocation needs besides its operands.
  virtual uint64_t workspace(const Problem& problem, const cl::Device& device, const Config& config) const {
    return 0;
  }
  // True when no kernel is compiled for this problem's sizes alone.
  virtual bool is_reusable(const Problem& problem) const { return true; }
  // What could be tried, the best guess first. Never empty.
  virtual std::vector<Config> configs(const Problem& problem, const cl::Device& device) const {
    return {Config{}};
  }
  // Expected time in microseconds with the first config; only compared between solvers of one op and device.
  virtual double estimate(const Problem& problem, const cl::Device& device) const = 0;
  // Builds or fetches the kernels. Throws what a failing build throws.
  virtual std::unique_ptr<Invoker<Problem>> invoker(const Problem& problem, cl::Device& device,
                                                    const Config& config) const = 0;
};

using GemmSolver = Solver<GemmProblem>;
using ConvSolver = Solver<ConvProblem>;

// The solvers of an op in order of preference: the first of equal estimates is taken. A convolution's solver
// is asked for the three directions through ConvProblem::direction.
const std::vector<const GemmSolver*>& gemm_solvers();
const std::vector<const ConvSolver*>& conv_solvers();

// A solver's work on one problem, ready to run.
template <class Problem>
struct Solution {
  const Solver<Problem>* solver = nullptr;
  std::unique_ptr<Invoker<Problem>> invoker;
  uint64_t workspace = 0;  // bytes
};

// The solver that run() takes for a problem it has not seen: the forced one, else the applicable one with the
// lowest estimate. Throws c10::Error with everyone's reasons when there is none.
const GemmSolver& choose(const GemmProblem& problem, const cl::Device& device);
const ConvSolver& choose(const ConvProblem& problem, const cl::Device& device);

// choose() made ready with the solver's first config; remembers nothing.
Solution<GemmProblem> solve(const GemmProblem& problem, cl::Device& device);
Solution<ConvProblem> solve(const ConvProblem& problem, cl::Device& device);

// Solves the problem on the stream: chosen on first sight, remembered, and run with workspace from the
// allocator. A problem with an output of no elements must not get here; k = 0 (or no input channels) is fine.
void run(const GemmProblem& problem, const GemmProblem::Operands& operands, Stream& stream);
void run(const ConvProblem& problem, const ConvProblem::Operands& operands, Stream& stream);

// Name of the solver that run() takes for a problem, and every solver with "taken" or why it is not.
std::string explain(const GemmProblem& problem);
std::string explain(const ConvProblem& problem);
std::string explain(const std::string& key, int device);  // throws std::invalid_argument for what is no key

// Forces solvers: "name", or "gemm:name,conv_fwd:name" per op; empty gives the choice back. Starts as
// DLBACKEND_SOLVER. Throws c10::Error listing what there is for a name that no solver has. A forced solver
// that cannot solve a problem makes run() throw, with the reasons of all.
void force(const std::string& specification);

}  // namespace dlb::solver
