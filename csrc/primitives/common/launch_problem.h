// Problems of the ops whose cost is reading memory - softmax, reductions, normalisations, pooling -, where
// solvers differ in the form of the launch: which work-items share a result, and into how many parts it is
// cut. What such an op's numbers mean is in its family, which the op registers; the solver layer knows no op.
#pragma once
#include <initializer_list>
#include <memory>
#include <string>
#include <vector>

#include "cl/kernel.h"
#include "solver/solver.h"

namespace dlb::solver {

// What an op registers. `solvers` in order of preference, the last the reference: the plainest kernel, right
// for every problem of the op.
struct LaunchFamily {
  std::vector<LaunchField> fields;
  std::vector<const LaunchSolver*> solvers;
  // Parts to compare with the reference (see GemmProblem::parts); by default the whole problem.
  std::vector<Part<LaunchProblem>> (*parts)(const LaunchProblem& problem) = nullptr;
  // Inputs, a bit each, that a trial fills with values in [0, 1): so that no mean, which errors are relative
  // to, is zero by chance.
  unsigned positive = 0;
  // Enqueues what makes random inputs of a trial possible ones (indices that lie in their windows).
  void (*prepare)(const LaunchProblem& problem, const LaunchProblem::Operands& operands,
                  Stream& stream) = nullptr;
};

// At library load, once per op.
struct RegisterLaunchFamily {
  RegisterLaunchFamily(Op op, LaunchFamily family);
};

// Problems of fewer elements run as the first guess says: choosing would cost more than it gains.
constexpr int64_t kWorthChoosing = 64 * 1024;

// Whether a problem of so many elements goes through run(); small ones too where a solver is forced.
bool is_worth_choosing(Op op, int64_t elements);

// A solver as a row of its family's table.
struct LaunchForm {
  const char* name;
  Applicability (*applicable)(const LaunchProblem&, const cl::Device&);
  double (*estimate)(const LaunchProblem&, const cl::Device&);
  std::vector<Config> (*configs)(const LaunchProblem&, const cl::Device&);
  std::unique_ptr<Invoker<LaunchProblem>> (*invoker)(const LaunchProblem&, cl::Device&, const Config&);
  uint64_t (*workspace)(const LaunchProblem&, const cl::Device&, const Config&) = nullptr;
  int revision = 1;  // Solver::revision()
};

class LaunchFormSolver final : public LaunchSolver {
 public:
  explicit LaunchFormSolver(const LaunchForm& form) : form_(form) {}
  const char* name() const override { return form_.name; }
  int revision() const override { return form_.revision; }
  Applicability applicable(const LaunchProblem& p, const cl::Device& device) const override {
    return form_.applicable(p, device);
  }
  double estimate(const LaunchProblem& p, const cl::Device& device) const override {
    return form_.estimate(p, device);
  }
  std::vector<Config> configs(const LaunchProblem& p, const cl::Device& device) const override {
    return form_.configs(p, device);
  }
  uint64_t workspace(const LaunchProblem& p, const cl::Device& device, const Config& config) const override {
    return form_.workspace ? form_.workspace(p, device, config) : 0;
  }
  std::unique_ptr<Invoker<LaunchProblem>> invoker(const LaunchProblem& p, cl::Device& device,
                                                  const Config& config) const override {
    return form_.invoker(p, device, config);
  }

 private:
  const LaunchForm form_;
};

// Solvers of a table, as a family lists them; never destroyed.
std::vector<const LaunchSolver*> solvers_of(std::initializer_list<LaunchForm> forms);

// An invoker from a function (Stream&, const LaunchProblem::Operands&, MemRef workspace).
template <class Run>
std::unique_ptr<Invoker<LaunchProblem>> make_invoker(Run run) {
  struct Calling final : Invoker<LaunchProblem> {
    explicit Calling(Run&& r) : run_(std::move(r)) {}
    void run(Stream& stream, const LaunchProblem::Operands& operands, MemRef workspace) override {
      run_(stream, operands, workspace);
    }
    const Run run_;
  };
  return std::make_unique<Calling>(std::move(run));
}

// A LaunchForm's invoker of one kernel: planner(problem, device, config) makes the plan that
// kernel_of(problem, device, plan) and enqueue(problem, plan, kernel, operands, stream) follow.
template <auto planner, auto kernel_of, auto enqueue>
std::unique_ptr<Invoker<LaunchProblem>> planned_invoker(const LaunchProblem& p, cl::Device& device,
                                                        const Config& config) {
  const auto plan = planner(p, device, config);
  cl::Kernel& kernel = kernel_of(p, device, plan);
  return make_invoker([p, plan, &kernel](Stream& stream, const LaunchProblem::Operands& o, MemRef) {
    enqueue(p, plan, kernel, o, stream);
  });
}

// For rows of such tables.
inline Applicability always(const LaunchProblem&, const cl::Device&) {
  return Applicability::yes();
}
inline std::vector<Config> one_config(const LaunchProblem&, const cl::Device&) {
  return {Config{}};
}
inline bool is_cpu(const cl::Device& device) {
  return device.cls == cl::DeviceClass::kCpu;
}

}  // namespace dlb::solver
