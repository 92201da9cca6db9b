// GEMM solvers that are wrong or slow, for testing that such are not taken, or not for long. A library of its
// own, which tests load into a process (tests/faulty_solvers.py).
#include <algorithm>
#include <cmath>

#include "cl/program_table.h"
#include "primitives/gemm/problem.h"
#include "solver/op.h"

namespace dlb::solver {
namespace {

enum class Fault { kWrong, kFails, kSlow, kVain, kMiscompiled };

// Leaves the result as it finds it: as fast as can be.
class DoesNothing final : public GemmInvoker {
  void run(Stream&, const GemmProblem::Operands&, MemRef) override {}
};

const GemmSolver& reference() {
  return static_cast<const GemmSolver&>(gemm_op.reference());
}

// Does what the reference does, so many times.
class Repeats final : public GemmInvoker {
 public:
  Repeats(const GemmProblem& problem, cl::Device& device, int times)
      : once_(reference().invoker(problem, device, {})), times_(times) {}
  void run(Stream& stream, const GemmProblem::Operands& operands, MemRef) override {
    for (int i = 0; i < times_; i++) once_->run(stream, operands, MemRef{});
  }

 private:
  const std::unique_ptr<GemmInvoker> once_;
  const int times_;
};

// Does what the reference does, and spoils a result where its program is optimised.
class Miscompiled final : public GemmInvoker {
 public:
  Miscompiled(const GemmProblem& problem, cl::Device& device)
      : right_(reference().invoker(problem, device, {})),
        spoil_(cl::get_kernel(device, kSource, "", "spoil")) {}
  void run(Stream& stream, const GemmProblem::Operands& operands, MemRef) override {
    right_->run(stream, operands, MemRef{});
    spoil_.launch(stream.queue(), cl::Range::linear(1, 1), operands.c.mem, operands.c.offset);
  }

 private:
  static constexpr const char* kSource =
      "kernel void spoil(global float* c, long at) {\n"
      "#ifdef __OPTIMIZE__\n"
      "  c[at] += 1000;\n"
      "#endif\n"
      "}\n";
  const std::unique_ptr<GemmInvoker> right_;
  cl::Kernel& spoil_;
};

// Just below what any other solver's is.
double lowest_estimate(const GemmProblem& problem, const cl::Device& device, const GemmSolver& but) {
  double lowest = INFINITY;
  for (const AnySolver* any : gemm_op.solvers()) {
    const auto* solver = static_cast<const GemmSolver*>(any);
    if (solver != &but && solver->applicable(problem, device))
      lowest = std::min(lowest, solver->estimate(problem, device));
  }
  return lowest * 0.99;
}

class Faulty final : public GemmSolver {
 public:
  Faulty(const char* name, Fault fault, double estimate) : name_(name), fault_(fault), estimate_(estimate) {}
  const char* name() const override { return name_; }
  Applicability applicable(const GemmProblem& p, const cl::Device&) const override {
    const bool computed_in_float = c10::isFloatingType(p.dtype) && p.dtype != c10::ScalarType::Double;
    return computed_in_float ? Applicability::yes() : Applicability::no("only for types computed in float32");
  }
  double estimate(const GemmProblem& problem, const cl::Device& device) const override {
    return is_right() ? lowest_estimate(problem, device, *this) : estimate_;
  }
  bool can_specialise(const GemmProblem&, const cl::Device&, const Config&) const override {
    return is_right();
  }
  std::unique_ptr<GemmInvoker> invoker(const GemmProblem& problem, cl::Device& device,
                                       const Config& config) const override {
    if (fault_ == Fault::kFails) cl::get_kernel(device, "this is no program", "", "none");
    if (fault_ == Fault::kSlow) return std::make_unique<Repeats>(problem, device, config.specialised ? 1 : 5);
    if (fault_ == Fault::kVain)
      return std::make_unique<Repeats>(problem, device, config.specialised ? 20 : 5);
    if (fault_ == Fault::kMiscompiled) return std::make_unique<Miscompiled>(problem, device);
    return std::make_unique<DoesNothing>();
  }

 private:
  bool is_right() const { return fault_ == Fault::kSlow || fault_ == Fault::kVain; }

  const char* name_;
  const Fault fault_;
  const double estimate_;
};

}  // namespace
}  // namespace dlb::solver

// Adds those that `which` names. "test_wrong", "test_miscompiled", which is for float32 and wrong where the
// driver optimises, "test_slow" and "test_vain" come first by their estimates,
// "test_late" behind what is right. Compiled for one problem, "test_slow" is not slow, and "test_vain"
// slower.
extern "C" void dlb_add_faulty_solvers(const char* which) {
  using namespace dlb::solver;
  static const Faulty wrong("test_wrong", Fault::kWrong, 1e-3), late("test_late", Fault::kWrong, 20),
      fails("test_fails", Fault::kFails, 20), slow("test_slow", Fault::kSlow, 0),
      vain("test_vain", Fault::kVain, 0), miscompiled("test_miscompiled", Fault::kMiscompiled, 1e-3);
  for (const Faulty* solver : {&wrong, &late, &fails, &slow, &vain, &miscompiled})
    if (std::string(which).find(solver->name()) != std::string::npos) add_solver(gemm_op, *solver);
}
