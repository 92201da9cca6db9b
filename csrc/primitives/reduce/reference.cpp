// The plainest division of the work, which the others are checked against: one part, any strides.
#include "primitives/reduce/solvers.h"

namespace dlb::reduction {
namespace {

class Reference final : public ReduceSolver {
 public:
  const char* name() const override { return "reference"; }
  double estimate(const ReduceProblem& p, const cl::Device& device) const override {
    return 50 * solver::streaming_microseconds(p, device);
  }

 protected:
  Tuning tuning(const solver::Config&) const override { return {.plain = true}; }
};

}  // namespace

const solver::Solver<ReduceProblem>* reference() {
  static const Reference solver;
  return &solver;
}

}  // namespace dlb::reduction
