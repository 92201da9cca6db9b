#include "solver/judge.h"

#include <algorithm>

namespace dlb::solver {
namespace {

constexpr double kHopeless = 1.15;          // a candidate above this ratio is given up early
constexpr double kShortMicroseconds = 150;  // runs shorter than this need more measurements
constexpr size_t kMeasurements = 3, kMeasurementsInDoubt = 7;
// A measurement may have been interrupted, so a candidate is given up only after several. On a CPU one short
// kernel in thirty meets a thread that the system did not let run. On a GPU any kernel may be interrupted,
// because other processes may use it as well; above kInterruptedRatio more measurements are taken, because
// another process's time slice takes milliseconds. For a specialised candidate two more runs cost nothing
// beside what compiling it took.
constexpr size_t kMeasurementsIfInterrupted = 3, kMeasurementsOnGpu = 2;
constexpr double kInterruptedRatio = 4;

// Whether one measurement says that the candidate is faster, and another that it is hopeless. Two of three
// may have been interrupted on a busy machine, of seven hardly four.
bool disagree(const std::vector<double>& ratios) {
  if (ratios.empty()) return false;
  const auto [least, most] = std::minmax_element(ratios.begin(), ratios.end());
  return *least <= kMinimumGain && *most > kHopeless;
}

}  // namespace

double lower_median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[(values.size() - 1) / 2];
}

size_t measurements_needed(const std::vector<double>& ratios, double current_time) {
  return current_time < kShortMicroseconds || disagree(ratios) ? kMeasurementsInDoubt : kMeasurements;
}

Verdict judge(const std::vector<double>& ratios, const Contest& contest) {
  const double middle = lower_median(ratios);
  const bool interrupted =
      contest.cpu ? contest.current_time < kShortMicroseconds : middle > kInterruptedRatio;
  size_t enough = contest.cpu ? 1 : kMeasurementsOnGpu;
  if (interrupted || contest.specialised) enough = kMeasurementsIfInterrupted;
  if (middle > kHopeless && ratios.size() >= enough && !disagree(ratios)) return Verdict::kSlower;
  if (ratios.size() < measurements_needed(ratios, contest.current_time)) return Verdict::kUndecided;
  return middle > kMinimumGain ? Verdict::kSlower : Verdict::kTakesOver;
}

}  // namespace dlb::solver
