// The element types that the kernels of normalisations are made for.
#pragma once
#include "kernels/norm/params.h"
#include "primitives/norm/norm.h"
#include "primitives/norm/problem.h"
#include "runtime/fetch_kernel.h"
#include "runtime/tensor.h"
#include "solver/solver_row.h"

namespace dlb::norm {

using namespace solver;

struct Types {
  codegen::DType data, param, compute;
  // `param_index`: where the problem's types[] have that of weights.
  explicit Types(const MemoryProblem& p, size_t param_index = kNormParamType);
};

// `file` and `name` are literals.
inline cl::Kernel& norm_kernel(cl::Device& device, const char* file, const char* name, const Types& types) {
  return fetch_kernel(device, file, name, types.compute, {types.data, types.param});
}

// A problem of the context's types without sizes.
template <class P>
P problem_of(const Context& context, const OpOf<P>& op) {
  P p = op.make();
  p.device = static_cast<int8_t>(context.device.index);
  p.dtype = p.types[0] = context.data_scalar;
  p.types[kNormParamType] = context.param_scalar;
  return p;
}

// An optional tensor as an operand; offset -1 where it is undefined or empty.
Buffer optional_buffer(const at::Tensor& tensor);

// A double as kernels take it.
params::NormReal as_floats(double value);

}  // namespace dlb::norm
