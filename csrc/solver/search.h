// The search for a problem's fastest solution while a program runs: other solutions are built and checked in
// the background; then they compute single runs of the program's, each beside a run of the solution in use,
// and are timed. Measuring costs only as much as they are slower. Nothing here waits for the device.
#pragma once
#include <array>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "solver/candidates.h"

namespace dlb::solver {

class Search : public std::enable_shared_from_this<Search> {
 public:
  // `taken` is the solution in use; of `others`, those that wait are to be measured: the first config of each
  // solver, then the other configs of those that came near. With `specialise`, the winner is afterwards
  // compiled for the problem's sizes and measured against itself. `runs` were made already.
  Search(const Problem& problem, cl::Device& device, std::string key, SolutionPtr taken,
         std::vector<Candidate> others, bool specialise, uint32_t runs = 0);
  ~Search();
  Search(const Search&) = delete;

  struct Step {
    bool changed = false;  // `taken` or `reusable`, or the search ended
    bool ran = false;      // the problem was computed, as a measurement
  };
  // Called at a run of the problem, before it: notices finished measurements, and may take the run for the
  // next. With `reusable_only` nothing is built for the problem's sizes, nor does such a kernel run.
  Step step(const Operands& operands, Stream& stream, bool reusable_only);

  // The state at the last change.
  SolutionPtr taken() const;
  SolutionPtr reusable() const;  // the fastest that takes sizes as arguments
  bool ended() const;

 private:
  enum Phase : uint8_t { kNew, kPostponed, kPreparing, kMeasuring, kWatching, kEnded };
  // Two runs of the program's, one with each solution. Marks lie before and behind each.
  struct Pair {
    size_t candidate = 0;
    SolutionPtr against;  // the one in use at that time
    bool against_first = false;
    int runs = 0;
    std::array<cl_event, 4> marks{};
    double promised = 0;  // microseconds taken from the budget
  };

  const Problem& problem() const { return *problem_; }
  Candidate& current() { return candidates_[taken_index_]; }
  const Candidate& current() const { return candidates_[taken_index_]; }

  // search.cpp: phases, preparing, what follows when all is measured.
  void advance(Step& step, const Operands& operands, Stream& stream, bool reusable_only);
  double cost_of_checks() const;
  void prepare_in_background();
  std::function<bool()> build_behind() const;
  void prepare();
  void build_waiting(std::vector<Candidate>& work) const;
  size_t check(std::vector<Candidate>& work) const;
  void adopt(std::vector<Candidate> work, size_t anchor);
  void finish();
  bool widen();
  void watch();
  bool is_lasting() const;
  bool specialise();
  void end_specialisation();
  void store();

  // search_pairs.cpp: measuring in the program's runs.
  bool collect();
  void evaluate(const Pair& pair, bool succeeded);
  static void release(Pair& pair);
  void count(Candidate& candidate, double ratio, double taken_time);
  void take(Candidate& candidate);
  bool open_pair();
  bool run_next(const Operands& operands, Stream& stream, bool reusable_only);
  void run_marked(const Solution& solution, const Operands& operands, Stream& stream, cl_event* marks);

  const StoredProblem problem_;
  cl::Device& device_;
  const std::string key_;
  const bool may_specialise_;
  mutable std::mutex mutex_;
  Phase phase_ = kNew;
  bool changed_ = false, first_round_ = true;
  const AnySolver* specialising_ = nullptr;  // the solver that is being compiled for the problem's sizes
  uint32_t runs_;
  std::vector<Candidate> candidates_;
  std::vector<Candidate> later_;  // further configs of solvers
  size_t taken_index_ = 0;        // of candidates_; the solution in use is always one of them
  SolutionPtr taken_, reusable_;
  std::deque<Pair> pairs_;  // the oldest first; only the last may lack a run
};

}  // namespace dlb::solver
