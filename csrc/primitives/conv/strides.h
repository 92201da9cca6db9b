// Questions about the strides of a convolution's tensors.
#pragma once
#include <cstdint>
#include <initializer_list>

namespace dlb::solver {

// Whether depth, height and width are one evenly spaced dimension, and its stride in elements (0 for one
// element).
inline bool evenly_spaced(const int32_t (&sizes)[3], const int64_t (&strides)[5], int64_t& stride) {
  int64_t expected = -1;
  stride = 0;
  for (int i = 2; i >= 0; i--) {
    if (sizes[i] == 1) continue;
    if (expected < 0)
      stride = strides[2 + i];
    else if (strides[2 + i] != expected)
      return false;
    expected = strides[2 + i] * sizes[i];
  }
  return true;
}

// Elements from the first to the last of a tensor.
inline int64_t span(const int64_t (&strides)[5], std::initializer_list<int64_t> sizes) {
  int64_t last = 0;
  const int64_t* stride = strides;
  for (int64_t size : sizes) last += (size - 1) * *stride++;
  return last;
}

}  // namespace dlb::solver
