// A convolution's sizes and strides as one kernel argument (the struct Conv of the .cl files).
#pragma once
#include <algorithm>

#include "primitives/conv/problem.h"

namespace dlb::solver {

struct ConvShape {
  int64_t xs[5], ws[5], ys[5];  // element strides
  int32_t n, c, k, groups;
  int32_t in[3], out[3], filter[3], stride[3], padding[3], dilation[3];
  int32_t has_bias;
  Bounds bounds;  // of a call
  int32_t unused;
};

// The shape of a call: the same, with the call's bounds.
inline ConvShape within(ConvShape shape, const Bounds& bounds) {
  shape.bounds = bounds;
  return shape;
}

inline ConvShape conv_shape(const ConvProblem& p) {
  ConvShape s{};
  std::copy_n(p.xs, 5, s.xs), std::copy_n(p.ws, 5, s.ws), std::copy_n(p.ys, 5, s.ys);
  s.n = p.n, s.c = p.c, s.k = p.k, s.groups = p.groups, s.has_bias = p.has_bias;
  std::copy_n(p.in, 3, s.in), std::copy_n(p.out, 3, s.out), std::copy_n(p.filter, 3, s.filter);
  std::copy_n(p.stride, 3, s.stride), std::copy_n(p.padding, 3, s.padding),
      std::copy_n(p.dilation, 3, s.dilation);
  return s;
}

}  // namespace dlb::solver
