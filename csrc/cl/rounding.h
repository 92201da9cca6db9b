// Division of integers that are not negative, rounded up.
#pragma once
#include <cstdint>
#include <type_traits>

namespace dlb {

template <class A, class B>
constexpr std::common_type_t<A, B> ceil_div(A a, B b) {
  return (a + b - 1) / b;
}
template <class A, class B>
constexpr std::common_type_t<A, B> round_up(A a, B b) {
  return ceil_div(a, b) * b;
}

// The size of the parts of `extent` when they are as few and as alike as possible: of at most `most`, rounded
// up to a multiple of `multiple`.
inline int balanced(int64_t extent, int64_t most, int64_t multiple) {
  return static_cast<int>(round_up(ceil_div(extent, ceil_div(extent, most)), multiple));
}

}  // namespace dlb
