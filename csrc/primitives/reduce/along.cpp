// Neighbours of a vector, or of a GPU's work-group, walk along the reduced dimension.
#include "primitives/reduce/solvers.h"

namespace dlb::reduction {
namespace {

class Along final : public WalkingSolver {
 public:
  Along() : WalkingSolver(Walk::kAlongReduced) {}
  const char* name() const override { return "along"; }
  std::vector<solver::Config> configs(const ReduceProblem&, const cl::Device& device) const override {
    std::vector<solver::Config> list(1);
    const auto add = [&](const ReduceConfig& config) { list.push_back(solver::Config::of(config)); };
    if (device.cls == cl::DeviceClass::kCpu) {
      add({.parts_per_unit = 1}), add({.parts_per_unit = 16});
    } else {
      add({.parts_per_unit = 2}), add({.parts_per_unit = 32}), add({.width = 32}), add({.width = 256});
    }
    return list;
  }
};

}  // namespace

const solver::Solver<ReduceProblem>* along() {
  static const Along solver;
  return &solver;
}

}  // namespace dlb::reduction
