// Decides from a candidate's measurements whether it takes over. Pure functions of numbers.
#pragma once
#include <cstddef>
#include <vector>

namespace dlb::solver {

// A solution takes over when it takes less than this share of the other's time.
constexpr double kMinimumGain = 0.97;

enum class Verdict { kUndecided, kSlower, kTakesOver };

struct Contest {
  double current_time = 0;   // microseconds of the solution in use
  bool cpu = false;          // on a CPU-class device
  bool specialised = false;  // the candidate was compiled for the problem's sizes
};

// The lower median: interruptions only lengthen samples. Takes at least one value.
double lower_median(std::vector<double> values);

// Measurements before a solution takes over: the shorter the run, the less one measurement says. More where
// the ratios so far disagree about which of the two is faster.
size_t measurements_needed(const std::vector<double>& ratios, double current_time);

// The verdict after these ratios, at least one, of the candidate's time over that of the solution in use.
Verdict judge(const std::vector<double>& ratios, const Contest& contest);

}  // namespace dlb::solver
