// The part of a search that measures: pairs of the program's runs.
#include <algorithm>

#include "cl/build_mode.h"
#include "cl/queue.h"
#include "solver/budget.h"
#include "solver/judge.h"
#include "solver/prepared.h"
#include "solver/search.h"
#include "solver/settings.h"
#include "solver/stats.h"
#include "solver/trial.h"

namespace dlb::solver {
namespace {

constexpr size_t kMostPairs = 8;        // pairs of one problem that may be under way at once
constexpr double kUsualExcess = 0.3;    // a candidate's run is expected to take so much longer, as a share
constexpr double kRunsThatRepay = 100;  // a faster solution gives the budget what it saves in so many runs

// Whether a result is also an operand.
bool works_in_place(const Problem& problem, const Operands& operands) {
  const auto spans = problem.op->spans(problem);
  for (const Span& result : spans)
    for (const Span& operand : spans) {
      const Buffer &to = operands.*result.buffer, &from = operands.*operand.buffer;
      if (result.result && !operand.result && to.mem == from.mem && to.offset == from.offset) return true;
    }
  return false;
}

}  // namespace

// Evaluates the measurements that are complete. True when nothing is left to measure.
bool Search::collect() {
  while (!pairs_.empty() && pairs_.front().runs == 2) {
    cl_int status = CL_QUEUED;
    DLB_CL(clGetEventInfo, pairs_.front().marks.back(), CL_EVENT_COMMAND_EXECUTION_STATUS, sizeof status,
           &status, nullptr);
    if (status > CL_COMPLETE) return false;
    Pair pair = std::move(pairs_.front());
    pairs_.pop_front();
    evaluate(pair, status == CL_COMPLETE);
    release(pair);
  }
  return pairs_.empty() && std::none_of(candidates_.begin(), candidates_.end(),
                                        [](const auto& c) { return c.state == Candidate::kReady; });
}

void Search::evaluate(const Pair& pair, bool succeeded) {
  Candidate& c = candidates_[pair.candidate];
  find_stats().measured++;
  const auto time = [&](size_t run) {
    return succeeded ? microseconds_between(pair.marks[2 * run], pair.marks[2 * run + 1]) : 0;
  };
  const double first = time(0), second = time(1);
  const double taken = pair.against_first ? first : second, other = pair.against_first ? second : first;
  measuring_queue(device_).budget.spend(allowance_of(device_).marking + std::max(0.0, other - taken) -
                                        pair.promised);
  if (c.state != Candidate::kReady || pair.against != taken_) return;  // another pair has decided meanwhile
  if (taken <= 0 || other <= 0)
    c.state = Candidate::kFailed;
  else
    count(c, other / taken, taken);
}

void Search::release(Pair& pair) {
  for (cl_event& mark : pair.marks)
    if (mark) cl::api().clReleaseEvent(std::exchange(mark, nullptr));
}

// Adds a measurement to those of the candidate, and decides on it when there are enough.
void Search::count(Candidate& c, double ratio, double taken_time) {
  Candidate& in_use = current();
  in_use.time = in_use.time > 0 ? std::min(in_use.time, taken_time) : taken_time;
  c.ratios.push_back(ratio);
  c.time = in_use.time * lower_median(c.ratios);
  const Contest contest{.current_time = in_use.time,
                        .cpu = device_.cls == cl::DeviceClass::kCpu,
                        .specialised = c.config.specialised};
  switch (judge(c.ratios, contest)) {
    case Verdict::kUndecided:
      return;
    case Verdict::kSlower:
      c.state = Candidate::kSlower;
      break;
    case Verdict::kTakesOver:
      take(c);
      measuring_queue(device_).budget.spend(-kRunsThatRepay * (in_use.time - c.time));
      break;
  }
  log(1, "measured," + key_ + "," + describe(c));
}

void Search::take(Candidate& c) {
  current().state = Candidate::kSlower;
  c.state = Candidate::kTaken;
  taken_index_ = static_cast<size_t>(&c - candidates_.data());
  taken_ = c.solution;
  if (!c.config.specialised) reusable_ = taken_;
  changed_ = true;
  find_stats().swapped++;
}

// Opens a pair for a candidate that lacks measurements. A candidate that was never measured has no other pair
// under way beside it, since it may be far slower. False when there is none, or the budget does not allow it.
bool Search::open_pair() {
  if (pairs_.size() >= kMostPairs) return false;
  for (size_t i = 0; i < candidates_.size(); i++) {
    const Candidate& c = candidates_[i];
    if (c.state != Candidate::kReady) continue;
    const size_t needed = measurements_needed(c.ratios, current().time);
    const auto under_way = static_cast<size_t>(
        std::count_if(pairs_.begin(), pairs_.end(), [&](const Pair& pair) { return pair.candidate == i; }));
    if (c.ratios.empty() ? under_way > 0 : c.ratios.size() + under_way >= needed) continue;
    const Allowance allowance = allowance_of(device_);
    const double promised =
        allowance.marking + kUsualExcess * (current().time > 0 ? current().time : current().estimate);
    if (!measuring_queue(device_).budget.take(promised, find_share(), allowance)) return false;
    Pair pair;
    pair.candidate = i, pair.against = taken_, pair.promised = promised;
    pair.against_first = (c.ratios.size() + under_way) % 2;  // alternates, so that drift favours neither
    pairs_.push_back(std::move(pair));
    return true;
  }
  return false;
}

// Computes the program's run as a measurement, where there is one to make. False when it did not.
bool Search::run_next(const Operands& operands, Stream& stream, bool reusable_only) {
  // A specialised solution in use must not run here, so no other can be compared with it.
  if (reusable_only && std::any_of(candidates_.begin(), candidates_.end(), [](const Candidate& c) {
        return c.config.specialised && (c.state == Candidate::kReady || c.state == Candidate::kTaken);
      }))
    return false;
  if (stream.queue().log.load(std::memory_order_relaxed)) return false;  // a profile shows the program alone
  if (works_in_place(problem(), operands)) return false;  // a run that fails halfway could not be repeated
  std::unique_lock<std::mutex> lock(measuring_queue(device_).mutex, std::try_to_lock);
  if (!lock) return false;
  if (!pairs_.empty() && pairs_.back().runs == 1 && pairs_.back().against != taken_) {
    release(pairs_.back());
    pairs_.pop_back();
  }
  if ((pairs_.empty() || pairs_.back().runs == 2) && !open_pair()) return false;
  Pair& pair = pairs_.back();
  const bool in_use = pair.against_first == (pair.runs == 0);
  Candidate& c = candidates_[pair.candidate];
  try {
    run_marked(in_use ? *pair.against : *c.solution, operands, stream, &pair.marks[2 * size_t(pair.runs)]);
  } catch (const std::exception& error) {  // for example for want of memory for its workspace
    log(1, std::string("run failed,") + c.solver->name() + "," + error.what());
    c.state = Candidate::kFailed;
    release(pair);
    pairs_.pop_back();
    return false;
  }
  pair.runs++;
  return true;
}

// Runs a solution between two marks, on a queue of its own that the stream waits for, so that only this queue
// needs timestamps.
void Search::run_marked(const Solution& solution, const Operands& operands, Stream& stream, cl_event* marks) {
  const cl::WithBuildMode mode(cl::optimised_mode());
  MeasuringQueue& queue = measuring_queue(device_);
  if (!queue.stream) {
    queue.stream = std::make_unique<Stream>(device_, Stream::kInternal);
    queue.stream->enable_profiling();
  }
  Stream& timed = *queue.stream;
  // The workspace is freed when this returns: later allocations of the stream come after the kernels that use
  // it.
  const c10::DataPtr workspace =
      solution.workspace ? allocate_bytes(solution.workspace, static_cast<c10::DeviceIndex>(device_.index))
                         : c10::DataPtr();
  const StoredOperands ready = with_prepared(problem(), solution, operands, stream);
  const cl_event before = mark(stream);
  DLB_CL(clFlush, stream.handle());
  const cl_int waits = cl::api().clEnqueueBarrierWithWaitList(timed.handle(), 1, &before, nullptr);
  cl::api().clReleaseEvent(before);
  cl::check(waits, "clEnqueueBarrierWithWaitList");
  marks[0] = mark(timed);
  const auto rejoin = [&] {
    marks[1] = mark(timed);
    DLB_CL(clFlush, timed.handle());
    DLB_CL(clEnqueueBarrierWithWaitList, stream.handle(), 1, &marks[1], nullptr);
  };
  try {
    solution.invoker->run_any(timed, *ready,
                              solution.workspace ? resolve(workspace, workspace.get()) : MemRef{});
  } catch (...) {
    rejoin();  // the run that replaces this one must come after what is enqueued
    throw;
  }
  rejoin();
}

}  // namespace dlb::solver
