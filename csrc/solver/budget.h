// The budget of time for measuring while a program runs.
#pragma once
#include <memory>
#include <mutex>
#include <optional>

#include "cl/device.h"
#include "runtime/stream.h"

namespace dlb::solver {

// Limits beside find_share(), which is low: a program that has its fastest solutions already shall not notice
// the search, and one that has not gets more, because a solution that takes over pays for more.
struct Allowance {
  double burst;    // how many microseconds of the share may be saved up
  double worth;    // microseconds that a problem must have taken in all before a search may begin
  double marking;  // microseconds that marks and another queue cost two runs
  // Microseconds that a problem must have taken in all before a program is made for its sizes, which takes
  // the compiler a second or so and gains percents, and runs that it must have had.
  double lasting;
  uint32_t lasting_runs;
};
Allowance allowance_of(const cl::Device& device);
// Replaces every device's allowance, or with nothing gives them back: so that tests need not run a problem
// for seconds.
void set_allowance(const std::optional<Allowance>& allowance);

// Microseconds of a clock that only goes forward.
using Clock = double (*)();
double steady_microseconds();

// A share of a device's time, which grows while the clock runs.
class Budget {
 public:
  explicit Budget(Clock clock = steady_microseconds) : clock_(clock), last_(clock()) {}
  // Takes so many microseconds, which may bring the budget below zero. False while it is used up. At a
  // share of 1 nothing is refused.
  bool take(double microseconds, double share, const Allowance& allowance);
  // Notes that so much more was spent than taken, or with a negative number so much less.
  void spend(double microseconds);

 private:
  const Clock clock_;
  std::mutex mutex_;
  double left_ = 0;
  double last_;  // when the share was last added
};

// The state that the measurements of one device share.
struct MeasuringQueue {
  Budget budget;
  std::mutex mutex;                // one measurement or check at a time
  std::unique_ptr<Stream> stream;  // with timestamps; guarded by mutex
};
MeasuringQueue& measuring_queue(const cl::Device& device);

// The run of a problem, counted from 1, with which its search begins: one that is seen once, or takes no
// time, is not worth it. Throws where find_share() does.
uint32_t run_to_search_at(const cl::Device& device, double estimate);

}  // namespace dlb::solver
