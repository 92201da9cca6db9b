#include "primitives/common/memory_problem.h"

namespace dlb::solver {
namespace {

constexpr Buffer MemoryOperands::*kBuffers[MemoryProblem::kOperands] = {
    &MemoryOperands::in0, &MemoryOperands::in1,  &MemoryOperands::in2,  &MemoryOperands::in3,
    &MemoryOperands::in4, &MemoryOperands::out0, &MemoryOperands::out1, &MemoryOperands::out2};

}  // namespace

std::vector<Span> MemoryProblem::spans_of(unsigned positive) const {
  std::vector<Span> list;
  for (size_t i = 0; i < kOperands; i++)
    if (extents[i] > 0)
      list.push_back(span(kBuffers[i], extents[i], types[i], i >= kInputs, (positive >> i & 1) != 0));
  return list;
}

void MemoryProblem::coarsen_extents() {
  for (int64_t& extent : extents) extent = (extent > 0) + (extent > INT32_MAX);
}

}  // namespace dlb::solver
