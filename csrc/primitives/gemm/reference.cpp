// GEMM solver "reference": any dtype and layout, one work-item per output.
#include "cl/queue.h"
#include "cl/rounding.h"
#include "primitives/common/compute_estimates.h"
#include "primitives/common/factor.h"
#include "primitives/gemm/arguments.h"
#include "primitives/gemm/solvers.h"
#include "runtime/element.h"
#include "runtime/fetch_kernel.h"

namespace dlb::solver {
namespace {

class ReferenceInvoker final : public GemmInvoker {
 public:
  ReferenceInvoker(const GemmProblem& problem, cl::Device& device)
      : problem_(problem),
        kernel_(fetch_with(problem.epilogue, device, {"common/element.clh", "gemm/reference.cl"},
                           "gemm_reference", element_option(problem.dtype) + operand_options(problem))) {}

  void run(Stream& stream, const GemmProblem::Operands& operands, MemRef) override {
    const int64_t outputs = problem_.batch * problem_.m * problem_.n;
    const size_t local = std::min<size_t>(64, kernel_.device().max_work_group);
    kernel_.launch_with(stream.queue(), cl::Range::linear(ceil_div(outputs, local), local),
                        [&](auto& arguments) {
                          add_operands(arguments, problem_, operands);
                          add_factor(arguments, problem_.dtype, operands.alpha);
                          add_factor(arguments, problem_.dtype, operands.beta);
                          arguments.add(static_cast<cl_int>(problem_.has_d));
                          arguments.add(operands.bounds.low);
                          arguments.add(operands.bounds.high);
                          for (int64_t size : {problem_.batch, problem_.m, problem_.n, problem_.k})
                            arguments.add(size);
                          add_groups(arguments, problem_, operands);
                          add_epilogue(arguments, problem_.epilogue, operands);
                        });
  }

 private:
  const GemmProblem problem_;
  cl::Kernel& kernel_;
};

class Reference final : public GemmSolver {
 public:
  const char* name() const override { return "reference"; }
  bool takes_epilogue() const override { return true; }
  bool takes_mixed() const override { return true; }
  bool takes_groups() const override { return true; }
  Applicability applicable(const GemmProblem& p, const cl::Device& device) const override {
    if (!has_arithmetic(p.dtype)) return Applicability::no("dtype without arithmetic");
    const bool fp64 = p.dtype == c10::ScalarType::Double || p.dtype == c10::ScalarType::ComplexDouble;
    if (fp64 && !device.fp64) return Applicability::no("the device has no double precision");
    return Applicability::yes();
  }
  double estimate(const GemmProblem& p, const cl::Device& device) const override {
    return reference_microseconds(p.flops(), p.dtype, device);
  }
  std::unique_ptr<GemmInvoker> invoker(const GemmProblem& problem, cl::Device& device,
                                       const Config&) const override {
    return std::make_unique<ReferenceInvoker>(problem, device);
  }
};

}  // namespace

const GemmSolver* gemm_reference() {
  static const Reference solver;
  return &solver;
}

}  // namespace dlb::solver
