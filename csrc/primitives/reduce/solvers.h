// The solvers of large reductions, which differ in which way vectors and work-groups walk, and what they
// share.
#pragma once
#include "primitives/common/estimates.h"
#include "primitives/reduce/launch.h"
#include "primitives/reduce/problem.h"
#include "solver/solver.h"

namespace dlb::reduction {

const solver::Solver<ReduceProblem>* along();
const solver::Solver<ReduceProblem>* across();
const solver::Solver<ReduceProblem>* reference();

// The parameters that along and across can vary; 0: by the sizes.
struct ReduceConfig {
  int32_t parts_per_unit = 0;  // work-items (GPU: groups) of a compute unit
  int32_t width = 0;           // CPU: columns of a block; GPU: work-items of a result
  static constexpr const char* kNames[] = {"parts_per_unit", "width"};
};

// A solver that divides the work as its tuning() says.
class ReduceSolver : public solver::Solver<ReduceProblem> {
 public:
  solver::Applicability applicable(const ReduceProblem& p, const cl::Device& device) const override;
  uint64_t workspace(const ReduceProblem& p, const cl::Device& device,
                     const solver::Config& config) const override;
  std::unique_ptr<solver::Invoker<ReduceProblem>> invoker(const ReduceProblem& p, cl::Device& device,
                                                          const solver::Config& config) const override;

 protected:
  virtual Tuning tuning(const solver::Config& config) const = 0;

 private:
  Launch launch(const ReduceProblem& p, const cl::Device& device, const solver::Config& config) const;
};

// One that lets neighbours walk one way. The walk that the sizes suggest is taken for the better one; the
// other is worth a measurement.
class WalkingSolver : public ReduceSolver {
 public:
  solver::ConfigNames config_names() const override { return solver::ConfigNames::of<ReduceConfig>(); }
  double estimate(const ReduceProblem& p, const cl::Device& device) const override;

 protected:
  explicit WalkingSolver(Walk walk) : walk_(walk) {}
  Tuning tuning(const solver::Config& config) const override {
    const auto named = config.as<ReduceConfig>();
    return {walk_, named.parts_per_unit, named.width};
  }

 private:
  const Walk walk_;
};

}  // namespace dlb::reduction
