// The search for a problem's fastest solution while a program runs: other solutions are built and checked in
// the background, then take single runs of the program's, each beside one of the solution in use, and are
// timed. What measuring costs is only what they are slower. Nothing here waits for the device.
#pragma once
#include <algorithm>
#include <array>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "solver/find_record.h"
#include "solver/solver.h"

namespace dlb::solver {

// One way to solve a problem, while it is being looked at.
template <class Problem>
struct Candidate {
  enum State : uint8_t { kWaiting, kReady, kSlower, kTaken, kWrong, kFailed };  // kSlower: or known before
  const Solver<Problem>* solver = nullptr;
  Config config;
  double estimate = 0;  // microseconds
  State state = kWaiting;
  SolutionPtr<Problem> solution;
  uint64_t workspace = 0;      // bytes
  double error = 0, time = 0;  // relative; microseconds, 0 until measured
  std::vector<double> ratios;  // its time over that of the solution in use, one per measurement
};

const char* state_name(int state);

// "cpu_packed@1".
template <class Problem>
std::string revision_name(const Solver<Problem>& solver) {
  return std::string(solver.name()) + "@" + std::to_string(solver.revision());
}

// Solver and config made ready. Throws what a failing build throws.
template <class Problem>
SolutionPtr<Problem> make_solution(const Problem& problem, cl::Device& device, const Solver<Problem>& solver,
                                   const Config& config);

// An applicable, allowed solver, and its expected microseconds.
template <class Problem>
struct Ranked {
  const Solver<Problem>* solver = nullptr;
  double estimate = 0;
};
// All of them, the lowest estimate first.
template <class Problem>
std::vector<Ranked<Problem>> ranking_of(const Problem& problem, const cl::Device& device);

// Those with all their configs, which take longer to find than the estimates; a solver's configs in its
// order.
template <class Problem>
std::vector<Candidate<Problem>> candidates_of(const Problem& problem, const cl::Device& device);

// Whether a solver is known to be right on this device for this op and dtype: it was checked against the
// reference once, by this process or an earlier one, with the first problem that it met, or where that would
// take too much memory with its sibling. A check waits; a solver found wrong is named in a warning and not
// used again by this process. False too where it cannot be checked now, and for a problem for which it was
// found wrong at any time.
template <class Problem>
bool vouch(const Problem& problem, cl::Device& device, const SolutionPtr<Problem>& solution);

// Whether vouch() has found the solver right before; looks at the store, checks nothing.
template <class Problem>
bool is_vouched(const Problem& problem, const cl::Device& device, const Solver<Problem>& solver);

// Builds all candidates in parallel, checks them and measures the right ones; the fastest first. Waits for
// the device. Candidates that are wrong or fail keep that state; throws cl::Error when there is no memory.
template <class Problem>
void measure_all(const Problem& problem, cl::Device& device, std::vector<Candidate<Problem>>& candidates);

// Times the lowest estimate: what is not measured in the program's runs, and what not before the first. On
// GPUs estimates are near, and each program takes a driver's compiler a quarter of a second or more.
struct MostEstimate {
  double between, before;
};
inline MostEstimate most_estimate(const cl::Device& device) {
  return device.cls == cl::DeviceClass::kCpu ? MostEstimate{4, 6} : MostEstimate{1.8, 2};
}

// The run of a problem, counted from 1, with which its search begins: one that is seen once, or takes no
// time, is not worth it. Throws where find_share() does.
uint32_t run_to_search_at(const cl::Device& device, double estimate);

template <class Problem>
class Search : public std::enable_shared_from_this<Search<Problem>> {
 public:
  // `taken` is the solution in use; of `others`, those that wait are to be measured: the first config of each
  // solver, then the other configs of those that came near. With `specialise`, the winner is afterwards
  // compiled for the problem's sizes and measured against itself. `runs` were made already.
  Search(const Problem& problem, cl::Device& device, std::string key, SolutionPtr<Problem> taken,
         std::vector<Candidate<Problem>> others, bool specialise, uint32_t runs = 0);

  ~Search();
  Search(const Search&) = delete;

  struct Step {
    bool changed = false;  // `taken` or `reusable`, or the search ended
    bool ran = false;      // the problem was computed, as a measurement
  };
  // Called at a run of the problem, before it: notices finished measurements, and may take the run for the
  // next. With `reusable_only` nothing is built for the problem's sizes, nor does such a kernel run.
  Step step(const typename Problem::Operands& operands, Stream& stream, bool reusable_only);

  // State at the last change.
  SolutionPtr<Problem> taken() const;
  SolutionPtr<Problem> reusable() const;  // the fastest that takes sizes as arguments
  bool ended() const;
  std::vector<Candidate<Problem>> candidates() const;

 private:
  enum Phase : uint8_t { kNew, kPostponed, kPreparing, kMeasuring, kWatching, kEnded };
  // Two runs of the program's, one with each solution. Marks lie before and behind each.
  struct Pair {
    size_t candidate = 0;
    SolutionPtr<Problem> against;  // the one in use at that time
    bool against_first = false;
    int runs = 0;
    std::array<cl_event, 4> marks{};
    double promised = 0;  // microseconds taken from the budget
  };

  double cost_of_checks() const;
  void prepare_in_background();
  void prepare();  // on the background thread
  bool collect();
  void evaluate(const Pair& pair, bool succeeded);
  void release(Pair& pair);
  void judge(Candidate<Problem>& candidate, double ratio, double taken_time);
  size_t needed() const;
  bool next_pair();
  bool run_next(const typename Problem::Operands& operands, Stream& stream, bool reusable_only);
  void run_marked(const Solution<Problem>& solution, const typename Problem::Operands& operands,
                  Stream& stream, cl_event* marks);
  bool finish();
  bool widen();
  void watch();
  bool is_lasting() const;
  bool specialise();
  void end_specialisation();
  void take(Candidate<Problem>& candidate);
  void store();

  const Problem problem_;
  cl::Device& device_;
  const std::string key_;
  const bool may_specialise_;
  mutable std::mutex mutex_;
  Phase phase_ = kNew;
  bool changed_ = false, first_round_ = true;
  const Solver<Problem>* specialising_ = nullptr;  // of whose programs for the problem one is under way
  uint32_t runs_;
  std::vector<Candidate<Problem>> candidates_;
  std::vector<Candidate<Problem>> later_;  // further configs of solvers
  size_t taken_index_ = 0;                 // of candidates_; the solution in use is always one of them
  SolutionPtr<Problem> taken_, reusable_;
  std::deque<Pair> pairs_;  // the oldest first; only the last may lack a run
};

// How many problems of a family this process met, counted up to one more than kManySizes: so many mean that
// sizes change from call to call.
constexpr size_t kManySizes = 6;
size_t sizes_met(uint64_t family, uint64_t problem);
// Of the problem's families, in the one of most.
template <class Problem>
size_t sizes_met(const Problem& problem) {
  size_t most = 0;
  const uint64_t id = hash(problem);
  for (const uint64_t family : problem.families()) most = std::max(most, sizes_met(family, id));
  return most;
}

// The find record of what candidates showed; it names all solvers that may be taken, measured or not.
template <class Problem>
FindRecord record_of(const Problem& problem, const cl::Device& device,
                     const std::vector<Candidate<Problem>>& candidates);
// Stores it; where a solver is forced, with what a record that is there knows of others.
template <class Problem>
void remember(const Problem& problem, const cl::Device& device, const std::string& key,
              const FindRecord& record);

}  // namespace dlb::solver
