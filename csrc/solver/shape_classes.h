// How many sizes of like problems a process met: whether its sizes change from call to call.
#pragma once
#include <cstddef>

#include "solver/problem.h"

namespace dlb::solver {

// Sizes of one shape class that mean that sizes change from call to call. With more, programs for a
// problem's sizes do not pay.
constexpr size_t kManySizes = 6;

// Notes the problem, and counts those met so far in the one of its shape classes that has most, up to one
// more than kManySizes.
size_t sizes_met(const Problem& problem);

}  // namespace dlb::solver
