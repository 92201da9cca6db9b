// The kernel arguments that all our GEMM kernels begin with: per operand its buffer, offset and three strides.
#pragma once
#include "cl/program.h"
#include "solver/problem.h"

namespace dlb::solver {

inline void add_operands(cl::Kernel::Arguments& arguments, const GemmProblem& p, const GemmProblem::Operands& o) {
  const auto add = [&](const Buffer& buffer, const int64_t (&strides)[3]) {
    arguments.add(buffer.mem);
    arguments.add(buffer.offset);
    for (int64_t stride : strides) arguments.add(stride);
  };
  add(o.a, p.a);
  add(o.b, p.b);
  add(o.c, p.c);
  add(p.has_d ? o.d : o.c, p.d);
}

}  // namespace dlb::solver
