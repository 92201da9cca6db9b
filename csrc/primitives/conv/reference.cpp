// Convolution solver "reference": any dtype, layout and size, one work-item per output.
#include "cl/queue.h"
#include "cl/rounding.h"
#include "primitives/common/compute_estimates.h"
#include "primitives/conv/shape.h"
#include "primitives/conv/solvers.h"
#include "runtime/element.h"
#include "runtime/fetch_kernel.h"

namespace dlb::solver {
namespace {

class ReferenceInvoker final : public ConvInvoker {
 public:
  ReferenceInvoker(const ConvProblem& p, cl::Device& device)
      : shape_(conv_shape(p)),
        epilogue_(p.epilogue),
        kernel_(fetch_with(p.epilogue, device, {"common/element.clh", "conv/reference.cl"},
                           p.direction == ConvDirection::kForward     ? "conv_reference_forward"
                           : p.direction == ConvDirection::kInputGrad ? "conv_reference_input_grad"
                                                                      : "conv_reference_weight_grad",
                           element_option(p.dtype) + operand_options(p.x_dtype, p.w_dtype))),
        outputs_(p.direction == ConvDirection::kForward     ? p.n * p.k * p.out_pixels()
                 : p.direction == ConvDirection::kInputGrad ? p.n * p.c * p.in_pixels()
                                                            : p.k * (p.c / p.groups) * p.taps()) {}

  void run(Stream& stream, const ConvProblem::Operands& o, MemRef) override {
    const size_t local = std::min<size_t>(64, kernel_.device().max_work_group);
    const Buffer& bias = shape_.has_bias ? o.bias : o.w;
    kernel_.launch_with(stream.queue(), cl::Range::linear(ceil_div(outputs_, local), local),
                        [&](auto& arguments) {
                          for (const Buffer& buffer : {o.x, o.w, o.y, bias})
                            arguments.add(buffer.mem), arguments.add(buffer.offset);
                          arguments.add(within(shape_, o.bounds));
                          add_epilogue(arguments, epilogue_, o);
                        });
  }

 private:
  const ConvShape shape_;
  const Epilogue epilogue_;
  cl::Kernel& kernel_;
  const int64_t outputs_;
};

class Reference final : public ConvSolver {
 public:
  const char* name() const override { return "reference"; }
  bool takes_epilogue() const override { return true; }
  bool takes_mixed() const override { return true; }
  Applicability applicable(const ConvProblem& p, const cl::Device& device) const override {
    if (!has_arithmetic(p.dtype)) return Applicability::no("dtype without arithmetic");
    const bool fp64 = p.dtype == c10::ScalarType::Double || p.dtype == c10::ScalarType::ComplexDouble;
    if (fp64 && !device.fp64) return Applicability::no("the device has no double precision");
    return Applicability::yes();
  }
  double estimate(const ConvProblem& p, const cl::Device& device) const override {
    return 1.5 * reference_microseconds(p.flops(), p.dtype, device);
  }
  std::unique_ptr<ConvInvoker> invoker(const ConvProblem& problem, cl::Device& device,
                                       const Config&) const override {
    return std::make_unique<ReferenceInvoker>(problem, device);
  }
};

}  // namespace

const ConvSolver* conv_reference() {
  static const Reference solver;
  return &solver;
}

}  // namespace dlb::solver
