// Solvers as rows of a table, for primitives whose solvers differ in the form of one kernel's launch.
#pragma once
#include <initializer_list>
#include <memory>
#include <utility>
#include <vector>

#include "cl/kernel.h"
#include "solver/solver.h"

namespace dlb::solver {

template <class P>
struct SolverRow {
  const char* name;
  Applicability (*applicable)(const P&, const cl::Device&);
  double (*estimate)(const P&, const cl::Device&);
  std::vector<Config> (*configs)(const P&, const cl::Device&);
  std::unique_ptr<Invoker<P>> (*invoker)(const P&, cl::Device&, const Config&);
  uint64_t (*workspace)(const P&, const cl::Device&, const Config&) = nullptr;
  int revision = 1;  // Solver::revision()
  ConfigNames config_names = {};
};

template <class P>
class RowSolver final : public Solver<P> {
 public:
  explicit RowSolver(const SolverRow<P>& row) : row_(row) {}
  const char* name() const override { return row_.name; }
  int revision() const override { return row_.revision; }
  ConfigNames config_names() const override { return row_.config_names; }
  Applicability applicable(const P& p, const cl::Device& device) const override {
    return row_.applicable(p, device);
  }
  double estimate(const P& p, const cl::Device& device) const override { return row_.estimate(p, device); }
  std::vector<Config> configs(const P& p, const cl::Device& device) const override {
    return row_.configs(p, device);
  }
  uint64_t workspace(const P& p, const cl::Device& device, const Config& config) const override {
    return row_.workspace ? row_.workspace(p, device, config) : 0;
  }
  std::unique_ptr<Invoker<P>> invoker(const P& p, cl::Device& device, const Config& config) const override {
    return row_.invoker(p, device, config);
  }

 private:
  const SolverRow<P> row_;
};

// An invoker from a function (Stream&, const P::Operands&, MemRef workspace).
template <class P, class Run>
std::unique_ptr<Invoker<P>> make_invoker(Run run) {
  struct Calling final : Invoker<P> {
    explicit Calling(Run&& r) : run_(std::move(r)) {}
    void run(Stream& stream, const typename P::Operands& operands, MemRef workspace) override {
      run_(stream, operands, workspace);
    }
    const Run run_;
  };
  return std::make_unique<Calling>(std::move(run));
}

// A row's invoker of one kernel: planner(problem, device, config) makes the launch that
// kernel_of(problem, device, launch) and enqueue(problem, launch, kernel, operands, stream) follow.
template <class P, auto planner, auto kernel_of, auto enqueue>
std::unique_ptr<Invoker<P>> planned_invoker(const P& p, cl::Device& device, const Config& config) {
  const auto launch = planner(p, device, config);
  cl::Kernel& kernel = kernel_of(p, device, launch);
  return make_invoker<P>([p, launch, &kernel](Stream& stream, const typename P::Operands& o, MemRef) {
    enqueue(p, launch, kernel, o, stream);
  });
}

// For rows of such tables.
template <class P>
Applicability always(const P&, const cl::Device&) {
  return Applicability::yes();
}
template <class P>
std::vector<Config> one_config(const P&, const cl::Device&) {
  return {Config{}};
}
inline bool is_cpu(const cl::Device& device) {
  return device.cls == cl::DeviceClass::kCpu;
}

}  // namespace dlb::solver
