// Scalars that products and convolutions apply to their results.
#pragma once
#include <c10/core/ScalarType.h>

#include <cmath>
#include <cstdint>
#include <limits>

#include "cl/kernel.h"

namespace dlb::solver {

// A scalar factor in the forms that kernels take it: integers, and the real and imaginary part.
struct Factor {
  int64_t integer = 1;
  double re = 1, im = 0;
};

// Adds alpha or beta in the form that common/element.clh calls S.
void add_factor(cl::Kernel::Arguments& arguments, c10::ScalarType type, const Factor& factor);

// The interval that results are clamped to; NaN stays. An activation (ReLU, ReLU6, hardtanh) costs nothing at
// the end of a kernel that has each result in a register. Integers and complex numbers know no bounds.
struct Bounds {
  float low = -std::numeric_limits<float>::infinity(), high = std::numeric_limits<float>::infinity();
  bool finite() const { return std::isfinite(low) || std::isfinite(high); }
};

// The bounds as fields of a kernel's argument.
template <class Params>
void set_bounds(Params& params, const Bounds& bounds) {
  params.low = bounds.low, params.high = bounds.high;
}

}  // namespace dlb::solver
