// solver/judge.h: what a candidate's measurements decide.
#include "solver/judge.h"

#include <doctest/doctest.h>

#include <vector>

namespace {

using dlb::solver::Contest;
using dlb::solver::judge;
using dlb::solver::Verdict;

constexpr Contest kLongOnGpu{.current_time = 1000}, kLongOnCpu{.current_time = 1000, .cpu = true};
constexpr Contest kSpecialised{.current_time = 1000, .specialised = true};
constexpr Contest kShort{.current_time = 20};

}  // namespace

TEST_CASE("A candidate that is always faster takes over after three measurements, of short runs seven") {
  CHECK(judge({.5, .5}, kLongOnGpu) == Verdict::kUndecided);
  CHECK(judge({.5, .5, .5}, kLongOnGpu) == Verdict::kTakesOver);
  CHECK(judge({.5, .5, .5, .5, .5, .5}, kShort) == Verdict::kUndecided);
  CHECK(judge({.5, .5, .5, .5, .5, .5, .5}, kShort) == Verdict::kTakesOver);
}

TEST_CASE("A hopeless candidate is given up early") {
  CHECK(judge({2}, kLongOnCpu) == Verdict::kSlower);
  CHECK(judge({2}, kLongOnGpu) == Verdict::kUndecided);
  CHECK(judge({2, 2}, kLongOnGpu) == Verdict::kSlower);
  CHECK(judge({2, 2}, kSpecialised) == Verdict::kUndecided);
  CHECK(judge({2, 2, 2}, kSpecialised) == Verdict::kSlower);
}

TEST_CASE("A candidate that gains too little is slower") {
  CHECK(judge({.99, 1, 1.01}, kLongOnCpu) == Verdict::kSlower);
}

TEST_CASE("Measurements that disagree decide by the median of seven") {
  const std::vector<double> interrupted = {1000, .3, 8};
  CHECK(dlb::solver::measurements_needed(interrupted, 1000) == 7);
  CHECK(judge(interrupted, kLongOnGpu) == Verdict::kUndecided);
  CHECK(judge(interrupted, kSpecialised) == Verdict::kUndecided);
  CHECK(judge({1000, .3, 8, .3, .3, .3, .3}, kSpecialised) == Verdict::kTakesOver);
  CHECK(judge({2, .3, 2, 2, 2, 2, 2}, kLongOnGpu) == Verdict::kSlower);
}
