// A convolution's sizes and strides as one kernel argument.
#pragma once
#include <algorithm>

#include "kernels/conv/params.h"
#include "primitives/conv/problem.h"

namespace dlb::solver {

using params::ConvShape;

// The shape of a call: the same, with the call's bounds.
inline ConvShape within(ConvShape shape, const Bounds& bounds) {
  set_bounds(shape, bounds);
  return shape;
}

inline ConvShape conv_shape(const ConvProblem& p) {
  ConvShape s{};
  set_bounds(s, {});
  std::copy_n(p.xs, 5, s.xs), std::copy_n(p.ws, 5, s.ws), std::copy_n(p.ys, 5, s.ys);
  s.n = p.n, s.c = p.c, s.k = p.k, s.groups = p.groups, s.has_bias = p.has_bias;
  std::copy_n(p.in, 3, s.in), std::copy_n(p.out, 3, s.out), std::copy_n(p.filter, 3, s.filter);
  std::copy_n(p.stride, 3, s.stride), std::copy_n(p.padding, 3, s.padding),
      std::copy_n(p.dilation, 3, s.dilation);
  return s;
}

}  // namespace dlb::solver
