// Applying coefficients by the generated kernel of an expression; also what the others are checked against.
#include <c10/util/SmallVector.h>

#include "codegen/registry.h"
#include "primitives/norm/apply.h"
#include "primitives/pointwise/launch.h"

namespace dlb::norm {
namespace {

constexpr codegen::PointwiseOp kForward{.name = "norm_apply", .on_float = "(x0 - x1) * x2 + x3"};
constexpr codegen::PointwiseOp kBackward{.name = "norm_apply_backward",
                                         .on_float = "x0 * x3 - (x4 + (x1 - x2) * x5)"};

const codegen::RegisterOps kApplyPointwiseOps(codegen::RowKind::Pointwise,
                                              {{kForward, "", "fixed"}, {kBackward, "", "fixed"}});

// Three dimensions, the innermost first: steps between elements and between their coefficients.
struct Walk {
  std::array<uint32_t, 3> sizes;
  std::array<int32_t, 3> data, coefficients;
};

constexpr int32_t i32(int64_t size) {
  return static_cast<int32_t>(size);
}
constexpr uint32_t u32(int64_t size) {
  return static_cast<uint32_t>(size);
}

// `rows`: coefficients of a kind.
void run(const NormApplyProblem& p, const Walk& walk, int64_t rows, const MemoryOperands& o, Stream& stream) {
  const Types types(p);
  const bool backward = p.is_backward();
  c10::SmallVector<pointwise::PlacedBuffer, 7> list;
  list.push_back({o.out0.mem, o.out0.offset, types.data, walk.data});
  if (backward) list.push_back({o.in1.mem, o.in1.offset, types.data, walk.data});
  list.push_back({o.in0.mem, o.in0.offset, types.data, walk.data});
  for (int i = 0; i < (backward ? 4 : 3); ++i)
    list.push_back({o.in2.mem, o.in2.offset + i * rows, types.compute, walk.coefficients});
  pointwise::run(backward ? kBackward : kForward, stream, list, 1, walk.sizes, p.dtype);
}

std::unique_ptr<Invoker<NormApplyProblem>> invoker(const NormApplyProblem& p, cl::Device&, const Config&) {
  return make_invoker<NormApplyProblem>(
      [p](Stream& stream, const MemoryOperands& o, MemRef) { run_pointwise(p, o, stream); });
}

}  // namespace

void run_pointwise(const NormApplyProblem& p, const MemoryOperands& operands, Stream& stream) {
  const int32_t rows = i32(p.rows), inner = i32(p.inner);
  const Walk walk{{u32(p.inner), u32(p.rows), u32(p.outer)}, {1, inner, rows * inner}, {0, 1, 0}};
  run(p, walk, p.rows, operands, stream);
}

void run_pointwise(const NormApplyProblem& p, const Shape& shape, const MemoryOperands& operands,
                   Stream& stream) {
  const int32_t channels = i32(shape.channels), length = i32(shape.length);
  const Walk walk{{u32(shape.channels), u32(shape.length), u32(shape.samples)},
                  {1, channels, channels * length},
                  {1, 0, channels}};
  run(p, walk, shape.samples * shape.channels, operands, stream);
}

const Solver<NormApplyProblem>* apply_pointwise() {
  static const RowSolver<NormApplyProblem> solver({.name = "pointwise",
                                                   .applicable = always<NormApplyProblem>,
                                                   .estimate = streaming_estimate<NormApplyProblem, 100>,
                                                   .configs = one_config<NormApplyProblem>,
                                                   .invoker = invoker});
  return &solver;
}

}  // namespace dlb::norm
