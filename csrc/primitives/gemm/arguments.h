// Code that our GEMM solvers share: the kernel arguments that most of their kernels begin with, and the
// transposed problem.
#pragma once
#include <string>
#include <utility>

#include "cl/kernel.h"
#include "codegen/pointwise.h"
#include "kernels/gemm/params.h"
#include "primitives/gemm/problem.h"

namespace dlb::solver {

// Per operand its buffer, offset and three strides.
inline void add_operands(cl::Kernel::Arguments& arguments, const GemmProblem& p,
                         const GemmProblem::Operands& o) {
  const auto add = [&](const Buffer& buffer, const int64_t(&strides)[3]) {
    arguments.add(buffer.mem);
    arguments.add(buffer.offset);
    for (int64_t stride : strides) arguments.add(stride);
  };
  add(o.a, p.a);
  add(o.b, p.b);
  add(o.c, p.c);
  add(p.has_d ? o.d : o.c, p.d);
}

inline std::string operand_options(const GemmProblem& p) {
  return operand_options(p.a_dtype, p.b_dtype);
}

// What kernels take in GROUP_PARAMETERS, before the epilogue's.
template <class Arguments>
void add_groups(Arguments& arguments, const GemmProblem& p, const GemmProblem::Operands& o) {
  if (!p.group) return;
  arguments.add(o.groups.mem);
  arguments.add(params::GemmGroups{o.groups.offset, p.group_pitch, codegen::make_divider(p.group), 0});
}

// The same product with rows and columns exchanged: C' = B' A'.
inline GemmProblem transposed(GemmProblem p) {
  std::swap(p.m, p.n);
  for (int64_t* s : {p.a, p.b, p.c, p.d}) std::swap(s[1], s[2]);
  std::swap(p.a, p.b);
  std::swap(p.a_dtype, p.b_dtype);
  p.epilogue = transposed(p.epilogue);
  return p;
}
inline GemmProblem::Operands transposed(GemmProblem::Operands o) {
  std::swap(o.a, o.b);
  return o;
}

// True when the kernels, which store along columns, do better on the transposed problem. Elements in groups
// are B's.
inline bool columns_are_rows(const GemmProblem& p) {
  if (p.group) return false;
  return p.n == 1 || (p.c[1] == 1 && p.c[2] != 1 && p.m > 1);
}

}  // namespace dlb::solver
