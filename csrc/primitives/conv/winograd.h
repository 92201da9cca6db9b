// Code that the Winograd solvers share: which problems minimal filtering is for.
#pragma once
#include "primitives/conv/problem.h"
#include "runtime/element.h"

namespace dlb::solver {

// Whether F(m x m, 3x3) computes the problem.
inline Applicability winograd_applicable(const ConvProblem& p) {
  if (!is_float_storage(p.dtype))
    return Applicability::no("computes in float: float32, float16 and bfloat16");
  if (p.filter[0] != 1 || p.filter[1] != 3 || p.filter[2] != 3) return Applicability::no("not a 3x3 filter");
  for (int i = 0; i < 3; i++)
    if (p.stride[i] != 1 || (i && p.dilation[i] != 1)) return Applicability::no("stride or dilation");
  if (p.c == 0 || p.k == 0) return Applicability::no("no channels to sum over");
  return Applicability::yes();
}

}  // namespace dlb::solver
