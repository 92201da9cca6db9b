#include "solver/judge.h"

#include <algorithm>

namespace dlb::solver {
namespace {

constexpr double kHopeless = 1.15;          // above this ratio a candidate is given up before all is measured
constexpr double kShortMicroseconds = 150;  // runs shorter than this need more measurements
constexpr size_t kMeasurements = 3, kMeasurementsOfShort = 7;
// Measurements before a candidate is given up that may have been interrupted: a short kernel on a CPU, where
// one in thirty meets a thread that the system did not let run; on a GPU any at all, since other processes
// may use it as well, and more where the ratio is above kInterruptedRatio, for another process's time slice
// takes milliseconds. Two more runs cost nothing beside what compiling for the problem's sizes took.
constexpr size_t kMeasurementsIfInterrupted = 3, kMeasurementsOnGpu = 2;
constexpr double kInterruptedRatio = 4;

}  // namespace

double lower_median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[(values.size() - 1) / 2];
}

size_t measurements_needed(double current_time) {
  return current_time < kShortMicroseconds ? kMeasurementsOfShort : kMeasurements;
}

Verdict judge(const std::vector<double>& ratios, const Contest& contest) {
  const double middle = lower_median(ratios);
  const bool interrupted =
      contest.cpu ? contest.current_time < kShortMicroseconds : middle > kInterruptedRatio;
  size_t enough = contest.cpu ? 1 : kMeasurementsOnGpu;
  if (interrupted || contest.specialised) enough = kMeasurementsIfInterrupted;
  if (middle > kHopeless && ratios.size() >= enough) return Verdict::kSlower;
  if (ratios.size() < measurements_needed(contest.current_time)) return Verdict::kUndecided;
  return middle > kMinimumGain ? Verdict::kSlower : Verdict::kTakesOver;
}

}  // namespace dlb::solver
