// Solvers that are wrong, for testing that such are never taken. In the list only where the environment
// variable DLBACKEND_TEST_SOLVERS is set.
#include <algorithm>

#include "solver/gemm/solvers.h"
#include "solver/kernel_source.h"

namespace dlb::solver {
namespace {

enum class Fault { kWrong, kFails };

// Leaves the result as it finds it: as fast as can be.
class DoesNothing final : public Invoker<GemmProblem> {
  void run(Stream&, const GemmProblem::Operands&, MemRef) override {}
};

class Faulty final : public GemmSolver {
 public:
  Faulty(const char* name, Fault fault, double estimate) : name_(name), fault_(fault), estimate_(estimate) {}
  const char* name() const override { return name_; }
  Applicability applicable(const GemmProblem& p, const cl::Device&) const override {
    return is_float_storage(p.dtype) ? Applicability::yes() : Applicability::no("only for tests");
  }
  double estimate(const GemmProblem&, const cl::Device&) const override { return estimate_; }
  std::unique_ptr<Invoker<GemmProblem>> invoker(const GemmProblem&, cl::Device& device,
                                                const Config&) const override {
    if (fault_ == Fault::kFails) cl::get_kernel(device, "this is no program", "", "none");
    return std::make_unique<DoesNothing>();
  }

 private:
  const char* name_;
  const Fault fault_;
  const double estimate_;
};

}  // namespace

std::vector<const GemmSolver*> gemm_test_solvers(const std::string& which) {
  // "wrong" comes first by its estimate, "late" behind what is right
  static const Faulty wrong("test_wrong", Fault::kWrong, 1e-3), late("test_late", Fault::kWrong, 20),
      fails("test_fails", Fault::kFails, 20);
  std::vector<const GemmSolver*> list;
  for (const Faulty* solver : {&wrong, &late, &fails})
    if (which.find(solver->name()) != std::string::npos) list.push_back(solver);
  return list;
}

}  // namespace dlb::solver
