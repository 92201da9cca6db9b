// Scalars that products and convolutions apply to their results.
#pragma once
#include <cmath>
#include <cstdint>
#include <limits>

namespace dlb::solver {

// A scalar factor in the forms that kernels take it: integers, and the real and imaginary part.
struct Factor {
  int64_t integer = 1;
  double re = 1, im = 0;
};

// The interval that results are clamped to; NaN stays. An activation (ReLU, ReLU6, hardtanh) costs nothing at
// the end of a kernel that has each result in a register. Integers and complex numbers know no bounds.
struct Bounds {
  float low = -std::numeric_limits<float>::infinity(), high = std::numeric_limits<float>::infinity();
  bool finite() const { return std::isfinite(low) || std::isfinite(high); }
};

}  // namespace dlb::solver
