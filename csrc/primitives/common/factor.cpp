// Scalars of products and convolutions as kernel arguments.
#include "primitives/common/factor.h"

namespace dlb::solver {
namespace {

template <class Real>
void add_pair(cl::Kernel::Arguments& arguments, const Factor& factor) {
  const Real pair[2] = {static_cast<Real>(factor.re), static_cast<Real>(factor.im)};
  arguments.add_bytes(pair, sizeof pair);
}

}  // namespace

void add_factor(cl::Kernel::Arguments& arguments, c10::ScalarType type, const Factor& factor) {
  switch (type) {
    case c10::ScalarType::Float:
    case c10::ScalarType::Half:
    case c10::ScalarType::BFloat16:
      return arguments.add(static_cast<float>(factor.re));
    case c10::ScalarType::Double:
      return arguments.add(factor.re);
    case c10::ScalarType::ComplexFloat:
      return add_pair<float>(arguments, factor);
    case c10::ScalarType::ComplexDouble:
      return add_pair<double>(arguments, factor);
    default:
      return arguments.add(factor.integer);
  }
}

}  // namespace dlb::solver
