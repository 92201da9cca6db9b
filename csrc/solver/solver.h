// The contract of a solver: one way to compute the problems of an op. Solvers are stateless singletons, one
// per file; a primitive's solvers.cpp holds the ordered list of each op. See docs/adding-a-solver.md.
#pragma once
#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "cl/device.h"
#include "runtime/allocator.h"
#include "runtime/stream.h"
#include "solver/config.h"
#include "solver/problem.h"

namespace dlb::solver {

// Whether a solver can compute a problem on a device; `reason` says why not (a string literal).
struct Applicability {
  const char* reason = nullptr;
  explicit operator bool() const { return reason == nullptr; }
  static Applicability yes() { return {}; }
  static Applicability no(const char* reason) { return {reason}; }
};

// An invoker as the framework sees it.
class AnyInvoker {
 public:
  virtual ~AnyInvoker() = default;
  virtual void run_any(Stream& stream, const Operands& operands, MemRef workspace) = 0;
  virtual void prepare_any(Stream& stream, const Operands& operands, MemRef to) = 0;
  // Equal forms of prepared weights have equal contents for equal weights, whatever the other sizes.
  virtual uint64_t form() const { return 0; }
};

// A solver made ready for one problem: kernels built, launch sizes known. run() only sets arguments and
// enqueues; several threads may call it at once.
template <class P>
class Invoker : public AnyInvoker {
 public:
  // Enqueues on the stream. `workspace` has the solver's workspace(problem) bytes (mem is null for none);
  // what it holds is undefined before and after.
  virtual void run(Stream& stream, const typename P::Operands& operands, MemRef workspace) = 0;
  // Enqueues what makes of constant weights the solver's prepared(problem) bytes; later runs find them in
  // operands.prepared.
  virtual void prepare(Stream& stream, const typename P::Operands& operands, MemRef to) {}

  void run_any(Stream& stream, const Operands& operands, MemRef workspace) final {
    run(stream, static_cast<const typename P::Operands&>(operands), workspace);
  }
  void prepare_any(Stream& stream, const Operands& operands, MemRef to) final {
    prepare(stream, static_cast<const typename P::Operands&>(operands), to);
  }
};

// A solver as the framework sees it: Solver<P> below says what each function means.
class AnySolver {
 public:
  virtual ~AnySolver() = default;
  // Stable name, as DLBACKEND_SOLVER and the stores know it; that of its file and of its kernel's.
  virtual const char* name() const = 0;
  // Raise it when a change of the solver makes what was measured before worthless.
  virtual int revision() const { return 1; }
  // The names of its configs' values.
  virtual ConfigNames config_names() const { return {}; }

  // Whether it is there to run while the programs of better ones are compiled: slow beside those, but made of
  // few programs that compile in a tenth of a second, and many times as fast as the reference.
  virtual bool stands_in() const { return false; }

  // Whether what it enqueues can be part of a graph (runtime/graph.h): kernels of ours and nothing else.
  virtual bool is_capturable() const { return true; }

  virtual Applicability can_solve(const Problem& problem, const cl::Device& device) const = 0;
  virtual uint64_t workspace_for(const Problem&, const cl::Device&, const Config&) const = 0;
  virtual uint64_t prepared_for(const Problem&, const cl::Device&, const Config&) const = 0;
  virtual std::vector<Config> configs_for(const Problem& problem, const cl::Device& device) const = 0;
  virtual Config first_config_for(const Problem& problem, const cl::Device& device) const = 0;
  virtual bool has_config_for(const Problem&, const cl::Device&, const Config&) const = 0;
  virtual bool can_specialise_for(const Problem&, const cl::Device&, const Config&) const = 0;
  virtual bool is_deterministic_for(const Problem& problem) const = 0;
  virtual double estimate_for(const Problem& problem, const cl::Device& device) const = 0;
  virtual std::unique_ptr<AnyInvoker> invoker_for(const Problem&, cl::Device&, const Config&) const = 0;
};

// "cpu_packed@1": a solver's name and revision.
std::string revision_name(const AnySolver& solver);

// The functions that a solver of problems of type P defines.
template <class P>
class Solver : public AnySolver {
 public:
  virtual Applicability applicable(const P& problem, const cl::Device& device) const = 0;
  // Bytes of device memory that an invocation needs besides its operands.
  virtual uint64_t workspace(const P& problem, const cl::Device& device, const Config& config) const {
    return 0;
  }
  // Bytes that it makes of constant weights once, in place of in every run; 0 for none.
  virtual uint64_t prepared(const P& problem, const cl::Device& device, const Config& config) const {
    return 0;
  }
  // The configs that could be tried without compiling for the problem's sizes, the best guess first. Never
  // empty.
  virtual std::vector<Config> configs(const P& problem, const cl::Device& device) const { return {Config{}}; }
  // configs().front(), without working out the others.
  virtual Config first_config(const P& problem, const cl::Device& device) const {
    return configs(problem, device).front();
  }
  // Whether the solver can run a config that a store has for the problem. To be overridden where configs()
  // leaves out what it estimates to be slow, because estimates differ between processes.
  virtual bool has_config(const P& problem, const cl::Device& device, const Config& config) const {
    const std::vector<Config> list = configs(problem, device);
    return std::find(list.begin(), list.end(), config) != list.end();
  }
  // Whether a config can also be compiled for the problem's sizes: it then gets the same config with
  // `specialised` set.
  virtual bool can_specialise(const P& problem, const cl::Device& device, const Config& config) const {
    return false;
  }
  // Whether it computes problems that have an epilogue, where P can have one.
  virtual bool takes_epilogue() const { return false; }
  // Whether it takes operands of other dtypes than the problem's, where P can have such.
  virtual bool takes_mixed() const { return false; }
  // Whether it takes groups of elements with a scale and a zero, where P can have such.
  virtual bool takes_groups() const { return false; }
  // Whether equal inputs give equal bits in every run of every process.
  virtual bool is_deterministic(const P& problem) const { return true; }
  // Expected time in microseconds with the first config; only compared between solvers of one op and device.
  virtual double estimate(const P& problem, const cl::Device& device) const = 0;
  // Builds or fetches the kernels. Throws what a failing build throws.
  virtual std::unique_ptr<Invoker<P>> invoker(const P& problem, cl::Device& device,
                                              const Config& config) const = 0;

  // Not inlined: compilers guess that a solver of another op is called, and warn of what that would read.
  [[gnu::noinline]] Applicability can_solve(const Problem& p, const cl::Device& device) const final {
    if constexpr (requires { typed(p).epilogue; })
      if (typed(p).epilogue && !takes_epilogue()) return Applicability::no("takes no epilogue");
    if constexpr (requires { typed(p).is_mixed(); })
      if (typed(p).is_mixed() && !takes_mixed()) return Applicability::no("takes operands of one dtype");
    if constexpr (requires { typed(p).has_groups(); })
      if (typed(p).has_groups() && !takes_groups()) return Applicability::no("takes no groups with scales");
    return applicable(typed(p), device);
  }
  uint64_t workspace_for(const Problem& p, const cl::Device& device, const Config& config) const final {
    return workspace(typed(p), device, config);
  }
  uint64_t prepared_for(const Problem& p, const cl::Device& device, const Config& config) const final {
    return prepared(typed(p), device, config);
  }
  std::vector<Config> configs_for(const Problem& p, const cl::Device& device) const final {
    return configs(typed(p), device);
  }
  Config first_config_for(const Problem& p, const cl::Device& device) const final {
    return first_config(typed(p), device);
  }
  bool has_config_for(const Problem& p, const cl::Device& device, const Config& config) const final {
    return has_config(typed(p), device, config);
  }
  bool can_specialise_for(const Problem& p, const cl::Device& device, const Config& config) const final {
    return can_specialise(typed(p), device, config);
  }
  bool is_deterministic_for(const Problem& p) const final { return is_deterministic(typed(p)); }
  double estimate_for(const Problem& p, const cl::Device& device) const final {
    return estimate(typed(p), device);
  }
  std::unique_ptr<AnyInvoker> invoker_for(const Problem& p, cl::Device& device,
                                          const Config& config) const final {
    return invoker(typed(p), device, config);
  }

 private:
  static const P& typed(const Problem& problem) { return static_cast<const P&>(problem); }
};

// A solver's work on one problem, ready to run.
struct Solution {
  const AnySolver* solver = nullptr;
  Config config;
  std::unique_ptr<AnyInvoker> invoker;
  uint64_t workspace = 0, prepared = 0;  // bytes
};
using SolutionPtr = std::shared_ptr<const Solution>;

// Whether a solution is made ready before its programs are built, and launches wait for those
// (cl/builders.h). Only where no other solver would take its place if they did not build: that of the
// reference, and on drivers that are known to build all kernels those that need no check.
bool builds_behind(const Problem& problem, const cl::Device& device, const AnySolver& solver);

// Solver and config made ready. Throws what a failing build throws, unless the programs are built behind.
SolutionPtr make_solution(const Problem& problem, cl::Device& device, const AnySolver& solver,
                          const Config& config);

}  // namespace dlb::solver
