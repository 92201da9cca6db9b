// Sizes and strides of problems' operands.
#pragma once
#include <algorithm>
#include <cstdint>
#include <initializer_list>
#include <utility>
#include <vector>

namespace dlb::solver {

// Elements from the first to the last of a tensor; 0 for one without elements.
inline int64_t extent(std::initializer_list<int64_t> sizes, const int64_t* strides) {
  int64_t last = 0;
  for (const int64_t size : sizes) {
    if (size == 0) return 0;
    last += (size - 1) * *strides++;
  }
  return last + 1;
}

// The strides that a tensor of these sizes has without gaps, its dimensions in the order that `strides` says.
// A stride of zero stays.
inline void close_gaps(std::initializer_list<int64_t> sizes, int64_t* strides) {
  std::vector<std::pair<int64_t, int64_t>> order;  // stride, dimension
  for (size_t i = 0; i < sizes.size(); i++)
    if (strides[i] != 0) order.emplace_back(strides[i], static_cast<int64_t>(i));
  std::stable_sort(order.begin(), order.end(),
                   [](const auto& a, const auto& b) { return a.first < b.first; });
  int64_t next = 1;
  for (const auto& [stride, dimension] : order) {
    strides[dimension] = next;
    next *= sizes.begin()[dimension];
  }
}

// The cost that a check window may have with the reference solver. One result may cost more, and is checked
// all the same.
constexpr double kMostWindowFlops = 1e8;
// Results of a check window along each dimension, at most.
constexpr int kCheckWindow = 8;

}  // namespace dlb::solver
