// The contract of a solver: one way to compute a family of problems. Solvers are stateless singletons, one
// per file; csrc/solver/lists.cpp holds the ordered list of each op. See docs/adding-a-solver.md.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "cl/device.h"
#include "runtime/allocator.h"
#include "runtime/stream.h"
#include "solver/find.h"
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
  // A program compiled for the problem's very sizes, in place of one that takes sizes as arguments.
  bool specialised = false;
  bool operator==(const Config&) const = default;
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
  // Enqueues what makes of constant weights the solver's prepared(problem) bytes; later runs find them in
  // operands.prepared. Equal forms have equal contents for equal weights, whatever the other sizes.
  virtual void prepare(Stream& stream, const typename Problem::Operands& operands, MemRef to) {}
  virtual uint64_t form() const { return 0; }
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
  // Bytes that it makes of constant weights once, in place of in every run; 0 for none.
  virtual uint64_t prepared(const Problem& problem, const cl::Device& device, const Config& config) const {
    return 0;
  }
  // What could be tried without compiling for the problem's sizes, the best guess first. Never empty.
  virtual std::vector<Config> configs(const Problem& problem, const cl::Device& device) const {
    return {Config{}};
  }
  // configs().front(), without working out the others.
  virtual Config first_config(const Problem& problem, const cl::Device& device) const {
    return configs(problem, device).front();
  }
  // Whether a config can also be compiled for the problem's sizes: it then gets the same config with
  // `specialised` set.
  virtual bool can_specialise(const Problem& problem, const cl::Device& device, const Config& config) const {
    return false;
  }
  // Raise it when a change of the solver makes what was measured before worthless.
  virtual int revision() const { return 1; }
  // Whether equal inputs give equal bits in every run of every process.
  virtual bool is_deterministic(const Problem& problem) const { return true; }
  // Expected time in microseconds with the first config; only compared between solvers of one op and device.
  virtual double estimate(const Problem& problem, const cl::Device& device) const = 0;
  // Builds or fetches the kernels. Throws what a failing build throws.
  virtual std::unique_ptr<Invoker<Problem>> invoker(const Problem& problem, cl::Device& device,
                                                    const Config& config) const = 0;
};

using GemmSolver = Solver<GemmProblem>;
using ConvSolver = Solver<ConvProblem>;
using LaunchSolver = Solver<LaunchProblem>;

// The solvers of an op in order of preference: the first of equal estimates is taken. A convolution's solver
// is asked for the three directions through ConvProblem::direction.
const std::vector<const GemmSolver*>& gemm_solvers();
const std::vector<const ConvSolver*>& conv_solvers();
const std::vector<const LaunchSolver*>& launch_solvers(Op op);
// Their names; of any op.
std::vector<std::string> solver_names(Op op);

inline const std::vector<const GemmSolver*>& solvers_for(const GemmProblem&) {
  return gemm_solvers();
}
inline const std::vector<const ConvSolver*>& solvers_for(const ConvProblem&) {
  return conv_solvers();
}
inline const std::vector<const LaunchSolver*>& solvers_for(const LaunchProblem& problem) {
  return launch_solvers(problem.what);
}

// A solver's work on one problem, ready to run.
template <class Problem>
struct Solution {
  const Solver<Problem>* solver = nullptr;
  Config config;
  std::unique_ptr<Invoker<Problem>> invoker;
  uint64_t workspace = 0, prepared = 0;  // bytes
};

template <class Problem>
using SolutionPtr = std::shared_ptr<const Solution<Problem>>;

// Lets a problem of float32 take the device's TF32 where the settings allow it (find.h).
template <class Problem>
void allow_tf32(Problem& problem, const cl::Device& device) {
  problem.tf32 = problem.dtype == c10::ScalarType::Float && device.tensor_cores != cl::TensorCores::kNone &&
                 tf32_allowed(problem.op());
}

// Solves the problem on the stream, with workspace from the allocator: by what is remembered or on disk, else
// as the find mode says (find.h). A problem with an output of no elements must not get here; k = 0 (or no
// input channels) is fine.
void run(const GemmProblem& problem, const GemmProblem::Operands& operands, Stream& stream);
void run(const ConvProblem& problem, const ConvProblem::Operands& operands, Stream& stream);
void run(const LaunchProblem& problem, const LaunchProblem::Operands& operands, Stream& stream);

}  // namespace dlb::solver
