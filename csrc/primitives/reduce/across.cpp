// Neighbours of a vector, or of a GPU's work-group, walk along the kept dimension.
#include "primitives/reduce/solvers.h"

namespace dlb::reduction {
namespace {

class Across final : public WalkingSolver {
 public:
  Across() : WalkingSolver(Walk::kAlongKept) {}
  const char* name() const override { return "across"; }
  solver::Applicability applicable(const ReduceProblem& p, const cl::Device& device) const override {
    if (p.kept == 0) return solver::Applicability::no("there is one result");
    return ReduceSolver::applicable(p, device);
  }
  std::vector<solver::Config> configs(const ReduceProblem& p, const cl::Device& device) const override {
    std::vector<solver::Config> list(1);
    const auto add = [&](const ReduceConfig& config) { list.push_back(solver::Config::of(config)); };
    if (device.cls == cl::DeviceClass::kCpu) {
      add({.parts_per_unit = 1}), add({.parts_per_unit = 16});
      for (const int32_t columns : {64, 256})
        if (p.sizes[0] > columns) add({.width = columns});
    } else {
      add({.parts_per_unit = 2}), add({.parts_per_unit = 32}), add({.width = 1}), add({.width = 8});
    }
    return list;
  }
};

}  // namespace

const solver::Solver<ReduceProblem>* across() {
  static const Across solver;
  return &solver;
}

}  // namespace dlb::reduction
