#include "solver/measure.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <mutex>

#include "cl/build_mode.h"
#include "solver/budget.h"
#include "solver/judge.h"
#include "solver/settings.h"
#include "solver/stats.h"
#include "solver/verify.h"

namespace dlb::solver {
namespace {

// A candidate is dropped when it takes more than so many times as long as the fastest, after the first turn,
// the second and so on.
constexpr double kMostRatio[] = {2, 1.4, 1.2, 1.1};
// Runs are timed in batches of so many microseconds. A short kernel run alone takes up to three times its
// time, so only a batch of kLongBatchMicroseconds is believed against a candidate.
constexpr double kBatchMicroseconds = 200, kLongBatchMicroseconds = 100;
// Turns end once one candidate took so many microseconds in all, or when two turns in a row made no candidate
// faster by kSteadyShare.
constexpr double kEnoughMicroseconds = 20e3, kSteadyShare = 0.02;
constexpr size_t kMostTurns = 12;

// Times the candidates that are right in turns, a batch of runs each, so that a change of the machine's pace
// affects all of them; the fastest batch counts. After each turn the candidates that are too slow are
// dropped.
void race(Trial& trial, std::vector<Candidate>& candidates) {
  struct Runner {
    Candidate* candidate;
    int batch = 1;
  };
  std::vector<Runner> runners;
  for (Candidate& c : candidates)
    if (c.state == Candidate::kReady) {
      c.time = INFINITY;
      runners.push_back({&c});
    }
  find_stats().measured += runners.size();
  double best = INFINITY, spent = 0;  // microseconds of the fastest batch's run, and in all on one candidate
  int steady = 0;
  for (size_t turn = 0; turn < kMostTurns; turn++) {
    double fell = 0, longest = 0;
    for (Runner& r : runners) {
      const double each = trial.time(*r.candidate->solution, r.batch);
      longest = std::max(longest, each * r.batch);
      fell = std::max(fell, 1 - each / r.candidate->time);
      r.candidate->time = std::min(r.candidate->time, each);
      best = std::min(best, each);
    }
    spent += longest;
    steady = turn > 0 && fell < kSteadyShare ? steady + 1 : 0;
    const double behind = kMostRatio[std::min(turn, std::size(kMostRatio) - 1)] * best;
    std::erase_if(runners, [&](const Runner& r) {
      return r.candidate->time > behind && r.candidate->time * r.batch > kLongBatchMicroseconds;
    });
    for (Runner& r : runners)
      r.batch = static_cast<int>(std::clamp(kBatchMicroseconds / r.candidate->time, 1.0, 50.0));
    if (turn >= 2 && (runners.size() == 1 || steady == 2 || spent > kEnoughMicroseconds)) break;
  }
}

}  // namespace

void measure_all(const Problem& problem, cl::Device& device, std::vector<Candidate>& candidates) {
  const auto start = std::chrono::steady_clock::now();
  const cl::WithBuildMode mode(cl::optimised_mode());
  build_all(problem, device, candidates);
  MeasuringQueue& queue = measuring_queue(device);
  {
    std::lock_guard<std::mutex> lock(queue.mutex);
    wait_for_device(static_cast<c10::DeviceIndex>(device.index));  // nothing else runs meanwhile
    Trial trial(problem, device);
    check_all(trial, problem, candidates);
    race(trial, candidates);
  }
  // Where candidates differ by too little, the one with the lower estimate is taken, as everywhere.
  Candidate* taken = nullptr;
  for (Candidate& c : candidates)
    if (c.state == Candidate::kReady && (!taken || c.time < taken->time * kMinimumGain)) taken = &c;
  for (Candidate& c : candidates) {
    if (c.state == Candidate::kReady) c.state = &c == taken ? Candidate::kTaken : Candidate::kSlower;
    log(1, "measured," + key(problem) + "," + describe(c));
  }
  find_stats().benchmark_ns += static_cast<uint64_t>(
      std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now() - start).count());
}

}  // namespace dlb::solver
