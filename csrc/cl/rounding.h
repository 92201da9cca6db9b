// Integer division and rounding upwards, of what is not negative.
#pragma once
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

}  // namespace dlb
