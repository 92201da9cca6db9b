#include "solver/search.h"

#include <algorithm>
#include <chrono>
#include <ctime>
#include <optional>

#include "cl/build_mode.h"
#include "cl/program_table.h"
#include "cl/recording.h"
#include "solver/background.h"
#include "solver/budget.h"
#include "solver/candidate_record.h"
#include "solver/settings.h"
#include "solver/shape_classes.h"
#include "solver/specialisations.h"
#include "solver/stats.h"
#include "solver/verify.h"

namespace dlb::solver {
namespace {

// Further configs of a solver are tried when its first took at most so many times as long as the fastest
// solution.
constexpr double kNearRatio = 1.3;

double thread_cpu_microseconds() {
  timespec time{};
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) * 1e6 + static_cast<double>(time.tv_nsec) * 1e-3;
}

size_t count_waiting(const std::vector<Candidate>& candidates) {
  return static_cast<size_t>(std::count_if(candidates.begin(), candidates.end(),
                                           [](const auto& c) { return c.state == Candidate::kWaiting; }));
}

bool contains(const std::vector<Candidate>& list, const Candidate& candidate) {
  return std::any_of(list.begin(), list.end(),
                     [&](const auto& c) { return c.is(candidate.solver, candidate.config); });
}

}  // namespace

Search::Search(const Problem& problem, cl::Device& device, std::string key, SolutionPtr taken,
               std::vector<Candidate> others, bool specialise, uint32_t runs)
    : problem_(problem),
      device_(device),
      key_(std::move(key)),
      may_specialise_(specialise),
      runs_(runs),
      taken_(taken),
      reusable_(std::move(taken)) {
  find_stats().searches++;
  Candidate first;
  first.state = Candidate::kTaken;
  first.solver = taken_->solver, first.config = taken_->config, first.solution = taken_;
  first.estimate = taken_->solver->estimate_for(problem, device);
  const auto is_taken = [&](const Candidate& c) { return c.is(taken_->solver, taken_->config); };
  if (const auto it = std::find_if(others.begin(), others.end(), is_taken); it != others.end())
    first.time = it->time, first.error = it->error;
  candidates_.push_back(first);
  std::vector<const AnySolver*> seen = {first.solver};
  for (Candidate& other : others) {
    if (is_taken(other)) continue;
    // It was measured before, or a record has it as faster when it was compiled for the problem.
    const bool known = other.state != Candidate::kWaiting || other.config.specialised;
    if (!known && other.estimate > most_estimate(device).between * first.estimate) continue;
    const bool first_config = std::find(seen.begin(), seen.end(), other.solver) == seen.end();
    if (first_config) seen.push_back(other.solver);
    (first_config || known ? candidates_ : later_).push_back(std::move(other));
  }
  // All was measured before the first run, so only compiling the winner for these sizes is left.
  if (!others.empty() && count_waiting(candidates_) + later_.size() == 0 && first.time > 0)
    first_round_ = false, watch();
}

Search::~Search() {
  if (cl::in_bad_fork()) return;
  end_specialisation();
  for (Pair& pair : pairs_) release(pair);
}

SolutionPtr Search::taken() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return taken_;
}
SolutionPtr Search::reusable() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return reusable_;
}
bool Search::ended() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return phase_ == kEnded;
}

Search::Step Search::step(const Operands& operands, Stream& stream, bool reusable_only) {
  std::unique_lock<std::mutex> lock(mutex_, std::try_to_lock);
  if (!lock) return {};
  runs_++;
  Step step;
  try {
    advance(step, operands, stream, reusable_only);
  } catch (const std::exception& error) {  // the caller's own run goes on without the search
    log(1, "search ended," + key_ + "," + error.what());
    phase_ = kEnded, changed_ = true;
  }
  step.changed = std::exchange(changed_, false);
  return step;
}

void Search::advance(Step& step, const Operands& operands, Stream& stream, bool reusable_only) {
  switch (phase_) {
    case kNew:
      if (runs_ >= run_to_search_at(device_, candidates_[0].estimate)) phase_ = kPostponed;
      break;
    case kPostponed:  // until the budget allows it; the background thread must not wait for that
      if (measuring_queue(device_).budget.take(cost_of_checks(), find_share(), allowance_of(device_)))
        prepare_in_background();
      break;
    case kMeasuring:
      if (collect())
        finish();
      else
        step.ran = run_next(operands, stream, reusable_only);
      break;
    case kWatching:
      if (!reusable_only && is_lasting() && !specialise()) phase_ = kEnded, changed_ = true;
      break;
    case kPreparing:
    case kEnded:
      break;
  }
}

// Microseconds of the device's time that checking the waiting candidates takes.
double Search::cost_of_checks() const {
  return 3 * static_cast<double>(1 + count_waiting(candidates_)) * candidates_.front().estimate;
}

void Search::prepare_in_background() {
  phase_ = kPreparing;
  in_background(
      [self = shared_from_this()] { in_background_when(self->build_behind(), [self] { self->prepare(); }); });
}

// Has the waiting candidates' programs built by other threads, where these let other processes compile, so
// that the background thread meanwhile has time for other problems. Returns what tells that they have done
// so.
std::function<bool()> Search::build_behind() const {
  std::vector<Candidate> work;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    work = candidates_;
  }
  cl::Recording recording;
  for (const Candidate& c : work) {
    // A program for one problem is the solution's own, which a recording does not note.
    if (c.solution || c.state != Candidate::kWaiting || c.config.specialised) continue;
    try {
      make_solution(problem(), device_, *c.solver, c.config);
    } catch (const std::exception& error) {
      log(2, std::string("not built ahead,") + c.solver->name() + "," + error.what());
    }
  }
  return cl::prefetch_behind(device_, recording.programs(), cl::AheadFor::kSearch);
}

// Builds and checks the waiting candidates. Runs on the background thread.
void Search::prepare() {
  std::vector<Candidate> work;
  double cost = 0;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    work = candidates_;
    cost = cost_of_checks();
  }
  const double start = thread_cpu_microseconds();
  build_waiting(work);
  if (background_stopping()) return;
  const double compiling = thread_cpu_microseconds() - start;
  const double checking = steady_microseconds();
  size_t anchor = work.size();
  try {
    anchor = check(work);
  } catch (const std::exception& error) {  // such as want of memory: the solution in use stays
    log(1, "not checked," + key_ + "," + error.what());
  }
  // The compiler took a core from the program's kernels, and the checks took at most all of them.
  if (device_.host_memory)
    measuring_queue(device_).budget.spend(compiling / device_.compute_units +
                                          std::max(0.0, steady_microseconds() - checking - cost));
  adopt(std::move(work), anchor);
}

void Search::build_waiting(std::vector<Candidate>& work) const {
  for (Candidate& c : work) {
    if (background_stopping()) return;
    if (c.solution || c.state != Candidate::kWaiting) continue;
    wait_while_program_starts(device_);
    build(problem(), device_, c);
  }
}

// Checks the candidates against the one in use, which moves to the front, unless that turns out to be wrong;
// then against whatever is right. Returns as check_all() does.
size_t Search::check(std::vector<Candidate>& work) const {
  std::lock_guard<std::mutex> queue_lock(measuring_queue(device_).mutex);
  const auto in_use = work.begin() + static_cast<ptrdiff_t>(taken_index_);
  std::rotate(work.begin(), in_use, in_use + 1);
  Trial trial(problem(), device_);
  const size_t anchor = check_all(trial, problem(), work);
  if (anchor < work.size() || background_stopping()) return anchor;
  for (const Candidate& c : candidates_of(problem(), device_))
    if (!contains(work, c)) work.push_back(c);
  build_all(problem(), device_, work);
  return check_all(trial, problem(), work);
}

// Takes over the candidates that were built and checked. The one at `anchor` is right; if it is not the
// solution in use, then that is wrong and is replaced by it.
void Search::adopt(std::vector<Candidate> work, size_t anchor) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (anchor == work.size()) {
    phase_ = kEnded, changed_ = true;
    return;
  }
  candidates_ = std::move(work);
  taken_index_ = 0;
  if (anchor != 0) {
    warn_wrong(problem(), device_, candidates_[0],
               std::string(candidates_[anchor].solver->name()) + " takes its place");
    taken_index_ = anchor;
    taken_ = candidates_[anchor].solution;
    if (!taken_->config.specialised) reusable_ = taken_;
    changed_ = true;
  }
  current().state = Candidate::kTaken;
  phase_ = kMeasuring;
}

// Adds further configs where a solver's first came near the solution in use. False when there are none.
bool Search::widen() {
  const auto came_near = [&](const AnySolver* solver) {
    return std::any_of(candidates_.begin(), candidates_.end(), [&](const Candidate& c) {
      return c.solver == solver && (c.state == Candidate::kTaken ||
                                    (c.state == Candidate::kSlower && c.time <= kNearRatio * current().time));
    });
  };
  std::vector<Candidate> near;
  for (Candidate& c : std::exchange(later_, {}))
    if (came_near(c.solver)) near.push_back(std::move(c));
  if (near.empty()) return false;
  candidates_.insert(candidates_.end(), near.begin(), near.end());
  phase_ = kPostponed;
  return true;
}

// Called when all is measured: stores what is known, and may have the winner compiled for these sizes.
void Search::finish() {
  if (widen()) return;
  store();
  end_specialisation();
  if (std::exchange(first_round_, false))
    watch();
  else
    phase_ = kEnded;
  changed_ = true;
}

// Waits, if the problem can be compiled for its sizes, until it has taken so much time in all that this pays.
void Search::watch() {
  const bool can = may_specialise_ && !taken_->config.specialised &&
                   taken_->solver->can_specialise_for(problem(), device_, taken_->config);
  phase_ = can ? kWatching : kEnded;
}

bool Search::is_lasting() const {
  const double time = current().time > 0 ? current().time : current().estimate;
  const Allowance allowance = allowance_of(device_);
  return runs_ >= allowance.lasting_runs && (find_share() >= 1 || runs_ * time >= allowance.lasting);
}

bool Search::specialise() {
  if (sizes_met(problem()) > kManySizes) return false;
  Candidate candidate;
  candidate.solver = taken_->solver, candidate.config = taken_->config;
  candidate.config.specialised = true;
  candidate.estimate = current().estimate;
  if (contains(candidates_, candidate)) return false;
  if (!begin_specialisation(device_, revision_name(*candidate.solver))) return false;
  specialising_ = candidate.solver;
  candidates_.push_back(candidate);
  phase_ = kPostponed;
  return true;
}

// Counts whether the program that was built for the problem, if there was one, gained anything.
void Search::end_specialisation() {
  if (!specialising_) return;
  const auto it = std::find_if(candidates_.begin(), candidates_.end(), [&](const Candidate& c) {
    return c.config.specialised && c.solver == specialising_ && c.state >= Candidate::kSlower;
  });
  std::optional<bool> won;
  if (it != candidates_.end()) won = it->state == Candidate::kTaken;
  solver::end_specialisation(device_, revision_name(*std::exchange(specialising_, nullptr)), won);
}

void Search::store() {
  FindRecord record = record_of(problem(), device_, candidates_);
  if (record.results.empty())  // stored all the same, so that no other process searches in vain
    record.results.push_back({revision_name(*current().solver), current().config, 0,
                              current().solution->workspace, current().error});
  remember(problem(), device_, key_, record);
}

}  // namespace dlb::solver
