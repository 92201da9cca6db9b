#include "solver/search.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <ctime>
#include <optional>
#include <sstream>
#include <thread>
#include <unordered_map>
#include <unordered_set>

#include "cl/build_mode.h"
#include "cl/compile_process.h"
#include "cl/stores/disk_cache.h"
#include "cl/threads.h"
#include "solver/background.h"
#include "solver/prepared.h"
#include "solver/recent_map.h"
#include "solver/settings.h"
#include "solver/trial.h"

namespace dlb::solver {
namespace {

constexpr double kMinimumGain = 0.97;  // a solution takes over below this share of the other's time
constexpr double kHopeless = 1.15;     // a solution is given up above this share, before all is measured
constexpr double kNear = 1.3;          // a solver whose first config is within this share has others tried
constexpr size_t kMeasurements = 3, kMeasurementsOfShort = 7;  // before a solution takes over
constexpr double kShort = 150;                                 // microseconds
// Measurements before a solution is given up whose run may have been held up: a short kernel on a CPU, where
// one in thirty is by a thread that the system did not let run; any on a GPU that other processes use as
// well, and more of one that took so many times what it should, for another's turn takes milliseconds. Of
// what was compiled for the problem too: against that, two runs more cost nothing.
constexpr size_t kInterrupted = 3, kShared = 2;
constexpr double kHeldUp = 4;
constexpr size_t kMostPairs = 8;           // of runs under way, for one problem
constexpr double kUsualExcess = 0.3;       // of a candidate's time over the solution in use
constexpr uint32_t kSearchAfter = 2;       // runs at least
constexpr uint32_t kSpecialiseAfter = 30;  // runs

constexpr double kRepaid = 100;  // runs: a solution that takes over pays for more with what it saves in these

// Measuring before the first run: after the first turn, the second and so on a candidate that takes more than
// so many times the fastest's time is out. Microseconds of a batch, and of one long enough to be believed: a
// short kernel run alone takes up to three times its time. No more turns once one took so many microseconds
// in all, or when two in a row made nothing faster by this share.
constexpr double kBehind[] = {2, 1.4, 1.2, 1.1};
constexpr double kBatch = 200, kLong = 100, kEnough = 20e3, kSteady = 0.02;
constexpr size_t kMostTurns = 12;

// What the search may cost beside find_share(), which is low: a program that has its fastest solutions
// already shall not notice, and one that has not gets more from kRepaid.
struct Allowance {
  double burst;    // microseconds of the share that may be saved up
  double worth;    // no search before a problem took so many microseconds in all: compilers take longer
  double marking;  // microseconds that marks and another queue cost two runs
  // No program for a problem's sizes before it took so many microseconds in all: it takes the compiler a
  // second or so, and gains percents.
  double lasting;
};
constexpr Allowance kCpuAllowance = {100e3, 20e3, 40, 1e6}, kGpuAllowance = {10e3, 5e3, 150, 5e6};

constexpr const char* kRight = "right";  // payload of a voucher
constexpr size_t kFamilies = 4096;       // of a generation

// Share of a device's time that measuring may take.
class Budget {
 public:
  // False while it is used up. May go below zero, and is at most allowance.burst.
  bool take(double microseconds, const Allowance& allowance) {
    std::lock_guard<std::mutex> lock(mutex_);
    const auto now = std::chrono::steady_clock::now();
    const double share = find_share();
    left_ += share * std::chrono::duration<double, std::micro>(now - last_).count();
    left_ = std::min(left_, allowance.burst);
    last_ = now;
    if (left_ <= 0 && share < 1) return false;
    left_ -= microseconds;
    return true;
  }
  // More, or with a negative number less, was spent than taken.
  void spend(double microseconds) {
    std::lock_guard<std::mutex> lock(mutex_);
    left_ -= microseconds;
  }

 private:
  std::mutex mutex_;
  double left_ = 0;
  std::chrono::steady_clock::time_point last_ = std::chrono::steady_clock::now();
};

// Of one device: what measuring in the program's runs shares.
struct Bench {
  Budget budget;
  std::mutex mutex;                // one measurement or check at a time
  std::unique_ptr<Stream> stream;  // with timestamps; guarded by mutex
};

Bench& bench_of(const cl::Device& device) {
  static auto* benches = new std::array<Bench, cl::kDeviceIndices>;
  return (*benches)[static_cast<size_t>(device.index)];
}
const Allowance& allowance_of(const cl::Device& device) {
  return device.cls == cl::DeviceClass::kCpu ? kCpuAllowance : kGpuAllowance;
}

// Whether kernels compiled for single problems have been faster on a device, by solver; remembered in the
// find store, since each costs a compilation.
class Specialisations {
 public:
  // True when another may be tried; then end() must follow.
  bool begin(const cl::Device& device, const std::string& solver) {
    std::lock_guard<std::mutex> lock(mutex_);
    Count& count = load(device, solver);
    if (count.won == 0 && count.tried + count.under_way >= kMostInVain) return false;
    count.under_way++;
    return true;
  }
  // What came of one; nothing when it was not measured to the end, which says nothing about the solver.
  void end(const cl::Device& device, const std::string& solver, std::optional<bool> won) {
    std::lock_guard<std::mutex> lock(mutex_);
    Count& count = load(device, solver);
    count.under_way--;
    if (!won) return;
    count.tried++, count.won += *won;
    cl::find_disk_cache().store(key(device, solver),
                                std::to_string(count.tried) + " " + std::to_string(count.won));
  }

 private:
  static constexpr int kMostInVain = 2;  // a driver that compiles may hold up those that launch
  struct Count {
    int tried = 0, won = 0, under_way = 0;
  };
  static std::string key(const cl::Device& device, const std::string& solver) {
    return cl::find_key(device, "specialised " + solver + " " + cl::library_version());
  }
  Count& load(const cl::Device& device, const std::string& solver) {
    const auto [it, fresh] = counts_.try_emplace(std::to_string(device.index) + solver);
    if (fresh)
      if (const auto stored = cl::find_disk_cache().load(key(device, solver)))
        std::istringstream(*stored) >> it->second.tried >> it->second.won;
    return it->second;
  }
  std::mutex mutex_;
  std::unordered_map<std::string, Count> counts_;
};

Specialisations& specialisations() {
  static auto* instance = new Specialisations;
  return *instance;
}

double thread_cpu_microseconds() {
  timespec time{};
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) * 1e6 + static_cast<double>(time.tv_nsec) * 1e-3;
}

// Of an even number the lower one of the middle: what interrupts makes longer.
double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[(values.size() - 1) / 2];
}

template <class Problem>
std::string describe(const Candidate<Problem>& c) {
  char numbers[64];
  std::snprintf(numbers, sizeof numbers, ",%.1f us,error %.2g", c.time, c.error);
  return std::string(c.solver->name()) + "," + config_text(c.config) + "," + state_name(c.state) + numbers;
}

}  // namespace

const char* state_name(int state) {
  constexpr const char* names[] = {"waiting", "ready", "slower", "taken", "wrong", "failed"};
  return names[state];
}

template <class Problem>
SolutionPtr<Problem> make_solution(const Problem& problem, cl::Device& device, const Solver<Problem>& solver,
                                   const Config& config) {
  auto solution = std::make_shared<Solution<Problem>>();
  solution->solver = &solver;
  solution->config = config;
  solution->invoker = solver.invoker(problem, device, config);
  solution->workspace = solver.workspace(problem, device, config);
  solution->prepared = solver.prepared(problem, device, config);
  return solution;
}

template <class Problem>
std::vector<Ranked<Problem>> ranking_of(const Problem& problem, const cl::Device& device) {
  const Preference preference = preference_of(problem.op());
  const auto& solvers = solvers_for(problem);
  std::vector<Ranked<Problem>> list;
  list.reserve(solvers.size());
  for (const auto* solver : solvers)
    if (preference.allows(solver->name()) && solver->applicable(problem, device))
      list.push_back({solver, solver->estimate(problem, device)});
  std::stable_sort(list.begin(), list.end(),
                   [](const auto& a, const auto& b) { return a.estimate < b.estimate; });
  return list;
}

template <class Problem>
std::vector<Candidate<Problem>> candidates_of(const Problem& problem, const cl::Device& device) {
  std::vector<Candidate<Problem>> list;
  for (const auto& [solver, estimate] : ranking_of(problem, device))
    for (const Config& config : solver->configs(problem, device)) {
      Candidate<Problem>& candidate = list.emplace_back();
      candidate.solver = solver, candidate.config = config, candidate.estimate = estimate;
    }
  return list;
}

template <class Problem>
FindRecord record_of(const Problem& problem, const cl::Device& device,
                     const std::vector<Candidate<Problem>>& candidates) {
  FindRecord record;
  record.version = cl::library_version();
  const Preference preference = preference_of(problem.op());
  for (const auto* solver : solvers_for(problem))
    if (preference.allows(solver->name()) && solver->applicable(problem, device))
      record.considered.push_back(revision_name(*solver));
  for (const auto& c : candidates)
    if (c.time > 0 && c.state != Candidate<Problem>::kWrong)
      record.results.push_back({revision_name(*c.solver), c.config, c.time,
                                c.solution ? c.solution->workspace : c.workspace, c.error});
  // The one taken first: others may be faster by less than it takes to be believed.
  const auto rank = [&](const FindResult& r) {
    for (const auto& c : candidates)
      if (c.state == Candidate<Problem>::kTaken && revision_name(*c.solver) == r.solver &&
          c.config == r.config)
        return 0.0;
    return r.time;
  };
  std::stable_sort(record.results.begin(), record.results.end(),
                   [&](const auto& a, const auto& b) { return rank(a) < rank(b); });
  return record;
}

template <class Problem>
void remember(const Problem& problem, const cl::Device& device, const std::string& key,
              const FindRecord& record) {
  const std::string forced = preference_of(problem.op()).forced;
  const auto known = forced.empty() ? std::nullopt : load_record(device, key);
  if (!known || known->version != record.version || known->results.empty())
    return store_record(device, key, record);
  // The first is taken: that stays as it was, unless it is of the forced solver.
  const bool newer = known->results.front().solver.rfind(forced + "@", 0) == 0;
  FindRecord both = newer ? record : *known;
  const FindRecord& other = newer ? *known : record;
  for (const std::string& solver : other.considered)
    if (std::find(both.considered.begin(), both.considered.end(), solver) == both.considered.end())
      both.considered.push_back(solver);
  for (const FindResult& result : other.results)
    if (std::none_of(both.results.begin(), both.results.end(), [&](const FindResult& r) {
          return r.solver == result.solver && r.config == result.config;
        }))
      both.results.push_back(result);
  store_record(device, key, both);
}

namespace {

// One that does not build becomes kFailed.
template <class Problem>
void build_one(const Problem& problem, cl::Device& device, Candidate<Problem>& c) {
  try {
    c.solution = make_solution(problem, device, *c.solver, c.config);
  } catch (const std::exception& error) {
    c.state = Candidate<Problem>::kFailed;
    say(1, std::string("build failed,") + c.solver->name() + "," + error.what());
  }
}

// Builds candidates on several threads.
template <class Problem>
void build_all(const Problem& problem, cl::Device& device, std::vector<Candidate<Problem>>& candidates) {
  std::atomic<size_t> next{0};
  const auto build = [&] {
    for (size_t i; (i = next++) < candidates.size();)
      if (!candidates[i].solution) build_one(problem, device, candidates[i]);
  };
  const size_t threads =
      std::min<size_t>({candidates.size(), std::max(1u, std::thread::hardware_concurrency()), 8});
  const cl::WithBuildMode mode({.awaited = cl::build_mode().awaited, .elsewhere = true});
  cl::run_on_threads(threads, build);
}

// What this process knows of solvers being right, by device and voucher.
class Vouchers {
 public:
  std::optional<bool> find(const std::string& name) {
    std::lock_guard<std::mutex> lock(mutex_);
    const auto it = known_.find(name);
    return it == known_.end() ? std::nullopt : std::optional(it->second);
  }
  void set(const std::string& name, bool right) {
    std::lock_guard<std::mutex> lock(mutex_);
    known_[name] = right;
  }

 private:
  std::mutex mutex_;
  std::unordered_map<std::string, bool> known_;
};

Vouchers& vouchers_of(const cl::Device& device) {
  static auto* vouchers = new std::array<Vouchers, cl::kDeviceIndices>;
  return (*vouchers)[static_cast<size_t>(device.index)];
}

// Of a wrong result for one problem, whatever the solver did for others.
template <class Problem>
std::string rejection(const Problem& problem, const Solver<Problem>& solver) {
  return "rejected " + revision_name(solver) + " " + std::to_string(hash(problem));
}

// Compares one candidate with the reference solver's result at both ends, or with the anchor's everywhere.
template <class Problem>
void check_one(Trial<Problem>& trial, const Problem& problem, Candidate<Problem>& c, bool is_anchor,
               double allowed) {
  try {
    c.error = is_anchor ? trial.error_of_parts(*c.solution) : trial.error(*c.solution);
    find_stats().verified++;
    c.state = c.error <= allowed ? Candidate<Problem>::kReady : Candidate<Problem>::kWrong;
    if (c.state == Candidate<Problem>::kWrong)
      vouchers_of(device_of(problem.device)).set(rejection(problem, *c.solver), false);
  } catch (const std::exception& error) {
    c.state = Candidate<Problem>::kFailed;
    say(1, std::string("run failed,") + c.solver->name() + "," + error.what());
  }
  if (c.state != Candidate<Problem>::kReady) {
    find_stats().rejected++;
    say(1, "rejected," + describe(c));
  }
}

// Checks all candidates: the first that agrees with the reference solver becomes what the others must agree
// with. Returns its index, or the number of candidates when none is right.
template <class Problem>
size_t check_all(Trial<Problem>& trial, const Problem& problem, std::vector<Candidate<Problem>>& candidates) {
  const double allowed = tolerance_of(problem);
  size_t anchor = candidates.size();
  for (size_t i = 0; i < candidates.size() && !background_stopping(); i++) {
    Candidate<Problem>& c = candidates[i];
    const bool unchecked = c.state == Candidate<Problem>::kWaiting || c.state == Candidate<Problem>::kTaken;
    if (!c.solution || !unchecked) continue;
    check_one(trial, problem, c, anchor == candidates.size(), allowed);
    if (c.state == Candidate<Problem>::kReady && anchor == candidates.size()) {
      anchor = i;
      trial.expect_last();
    }
  }
  return anchor;
}

}  // namespace

namespace {

template <class Problem>
std::string voucher(const Problem& problem, const Solver<Problem>& solver) {
  std::string kernels;  // a solver of launch problems has other kernels for each variant
  if constexpr (requires { problem.variant; }) kernels = std::string(" ") + problem.variant;
  if constexpr (requires { problem.tf32; }) kernels = problem.tf32 ? " tf32" : "";  // checked less strictly
  return std::string("vouched ") + op_name(problem.op()) + kernels + " " + revision_name(solver) + " " +
         c10::toString(problem.dtype) + " " + cl::library_version();
}

}  // namespace

template <class Problem>
bool is_vouched(const Problem& problem, const cl::Device& device, const Solver<Problem>& solver) {
  if (&solver == solvers_for(problem).back()) return true;  // the reference
  const std::string name = voucher(problem, solver);
  Vouchers& vouchers = vouchers_of(device);
  if (const auto known = vouchers.find(name)) return *known;
  const auto stored = cl::find_disk_cache().load(cl::find_key(device, name));
  if (!stored || *stored != kRight) return false;
  vouchers.set(name, true);
  return true;
}

namespace {

// Checks a solution against the reference solver; false where there is no memory for that.
template <class Problem>
bool try_check(const Problem& problem, cl::Device& device, Candidate<Problem>& candidate) {
  try {
    Trial<Problem> trial(problem, device);
    check_one(trial, problem, candidate, true, tolerance_of(problem));
    return true;
  } catch (const std::exception& error) {  // no memory for it now
    say(1, "not checked," + key(problem) + "," + candidate.solver->name() + "," + error.what());
    return false;
  }
}

}  // namespace

template <class Problem>
bool vouch(const Problem& problem, cl::Device& device, const SolutionPtr<Problem>& solution) {
  const Solver<Problem>& solver = *solution->solver;
  if (vouchers_of(device).find(rejection(problem, solver))) return false;
  if (is_vouched(problem, device, solver)) return true;
  const std::string name = voucher(problem, solver);
  if (vouchers_of(device).find(name)) return false;  // known to be wrong
  Candidate<Problem> candidate;
  candidate.solver = &solver, candidate.config = solution->config, candidate.solution = solution;
  if (!try_check(problem, device, candidate)) {
    const Problem sibling = problem.sibling();
    if (hash(sibling) == hash(problem) || !solver.applicable(sibling, device)) return false;
    candidate.config = solver.first_config(sibling, device);
    candidate.solution = make_solution(sibling, device, solver, candidate.config);
    if (!try_check(sibling, device, candidate)) return false;
  }
  const bool right = candidate.state == Candidate<Problem>::kReady;
  vouchers_of(device).set(name, right);
  if (right)
    cl::find_disk_cache().store(cl::find_key(device, name), kRight);
  else
    TORCH_WARN("dlbackend: solver ", solver.name(), " gives wrong results for ", key(problem), " on ",
               device.name, " (", device.driver_version, ", error ", candidate.error,
               ") and is not used. Please report this.");
  return right;
}

namespace {

// Times the candidates that are right in turns, a batch of runs each, so that a change of the machine's pace
// meets all alike; the fastest batch counts. After each turn those that have fallen behind are out.
template <class Problem>
void race(Trial<Problem>& trial, std::vector<Candidate<Problem>>& candidates) {
  struct Runner {
    Candidate<Problem>* candidate;
    int batch = 1;
  };
  std::vector<Runner> runners;
  for (Candidate<Problem>& c : candidates)
    if (c.state == Candidate<Problem>::kReady) {
      c.time = INFINITY;
      runners.push_back({&c});
    }
  find_stats().measured += runners.size();
  double best = INFINITY, spent = 0;  // spent on one candidate
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
    steady = turn > 0 && fell < kSteady ? steady + 1 : 0;
    const double behind = kBehind[std::min(turn, std::size(kBehind) - 1)] * best;
    std::erase_if(runners, [&](const Runner& r) {
      return r.candidate->time > behind && r.candidate->time * r.batch > kLong;
    });
    for (Runner& r : runners) r.batch = static_cast<int>(std::clamp(kBatch / r.candidate->time, 1.0, 50.0));
    if (turn >= 2 && (runners.size() == 1 || steady == 2 || spent > kEnough)) break;
  }
}

}  // namespace

template <class Problem>
void measure_all(const Problem& problem, cl::Device& device, std::vector<Candidate<Problem>>& candidates) {
  const auto start = std::chrono::steady_clock::now();
  build_all(problem, device, candidates);
  Bench& bench = bench_of(device);
  {
    std::lock_guard<std::mutex> lock(bench.mutex);
    synchronize_device(static_cast<c10::DeviceIndex>(device.index));  // nothing else runs meanwhile
    Trial<Problem> trial(problem, device);
    check_all(trial, problem, candidates);
    race(trial, candidates);
  }
  // Not-a-gain is decided in the order of the estimates, as everywhere.
  Candidate<Problem>* taken = nullptr;
  for (Candidate<Problem>& c : candidates)
    if (c.state == Candidate<Problem>::kReady && (!taken || c.time < taken->time * kMinimumGain)) taken = &c;
  for (Candidate<Problem>& c : candidates) {
    if (c.state == Candidate<Problem>::kReady)
      c.state = &c == taken ? Candidate<Problem>::kTaken : Candidate<Problem>::kSlower;
    say(1, "measured," + key(problem) + "," + describe(c));
  }
  find_stats().benchmark_ns += static_cast<uint64_t>(
      std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now() - start).count());
}

size_t sizes_met(uint64_t family, uint64_t problem) {  // of one family
  static std::mutex mutex;
  static auto* families = new RecentMap<uint64_t, std::unordered_set<uint64_t>>(kFamilies);
  std::lock_guard<std::mutex> lock(mutex);
  auto* members = families->find(family);
  if (!members) members = &families->insert(family, {});
  if (members->size() <= kManySizes) members->insert(problem);
  return members->size();
}

namespace {

template <class Problem>
size_t waiting(const std::vector<Candidate<Problem>>& candidates) {
  return static_cast<size_t>(std::count_if(candidates.begin(), candidates.end(), [](const auto& c) {
    return c.state == Candidate<Problem>::kWaiting;
  }));
}

}  // namespace

uint32_t run_to_search_at(const cl::Device& device, double estimate) {
  find_share();  // throws here, to the user, if the environment's is none
  const double runs = std::ceil(allowance_of(device).worth / std::max(estimate, 1e-3));
  return std::max(kSearchAfter, static_cast<uint32_t>(std::min(runs, 1e9)));
}

template <class Problem>
Search<Problem>::Search(const Problem& problem, cl::Device& device, std::string key,
                        SolutionPtr<Problem> taken, std::vector<Candidate<Problem>> others, bool specialise,
                        uint32_t runs)
    : problem_(problem),
      device_(device),
      key_(std::move(key)),
      may_specialise_(specialise),
      runs_(runs),
      taken_(taken),
      reusable_(std::move(taken)) {
  find_stats().searches++;
  Candidate<Problem> current;
  current.state = Candidate<Problem>::kTaken;
  current.solver = taken_->solver, current.config = taken_->config, current.solution = taken_;
  current.estimate = taken_->solver->estimate(problem, device);
  const auto same_as_taken = [&](const auto& c) {
    return c.solver == taken_->solver && c.config == taken_->config;
  };
  if (const auto it = std::find_if(others.begin(), others.end(), same_as_taken); it != others.end())
    current.time = it->time, current.error = it->error;
  candidates_.push_back(current);
  std::vector<const Solver<Problem>*> seen = {current.solver};
  for (auto& other : others) {
    if (same_as_taken(other)) continue;
    // Measured before, or what a record says was faster when it was compiled for the problem.
    const bool known = other.state != Candidate<Problem>::kWaiting || other.config.specialised;
    if (!known && other.estimate > most_estimate(device).between * current.estimate) continue;
    const bool first = std::find(seen.begin(), seen.end(), other.solver) == seen.end();
    if (first) seen.push_back(other.solver);
    (first || known ? candidates_ : later_).push_back(std::move(other));
  }
  // All was measured before the first run: what is left is to compile the winner for these sizes.
  if (!others.empty() && waiting(candidates_) + later_.size() == 0 && current.time > 0)
    first_round_ = false, watch();
}

template <class Problem>
Search<Problem>::~Search() {
  if (cl::in_bad_fork()) return;
  end_specialisation();
  for (Pair& pair : pairs_) release(pair);
}

template <class Problem>
SolutionPtr<Problem> Search<Problem>::taken() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return taken_;
}
template <class Problem>
SolutionPtr<Problem> Search<Problem>::reusable() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return reusable_;
}
template <class Problem>
bool Search<Problem>::ended() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return phase_ == kEnded;
}
template <class Problem>
std::vector<Candidate<Problem>> Search<Problem>::candidates() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return candidates_;
}

template <class Problem>
typename Search<Problem>::Step Search<Problem>::step(const typename Problem::Operands& operands,
                                                     Stream& stream, bool reusable_only) {
  std::unique_lock<std::mutex> lock(mutex_, std::try_to_lock);
  if (!lock) return {};
  runs_++;
  bool ran = false;
  try {
    switch (phase_) {
      case kNew:
        if (runs_ >= run_to_search_at(device_, candidates_[0].estimate)) phase_ = kPostponed;
        break;
      case kPostponed:  // until there is time for it; the background thread never waits for that
        if (bench_of(device_).budget.take(cost_of_checks(), allowance_of(device_))) prepare_in_background();
        break;
      case kMeasuring:
        if (collect())
          finish();
        else
          ran = run_next(operands, stream, reusable_only);
        break;
      case kWatching:
        if (!reusable_only && is_lasting() && !specialise()) phase_ = kEnded, changed_ = true;
        break;
      case kPreparing:
      case kEnded:
        break;
    }
  } catch (const std::exception& error) {  // never the caller's business: its own run is untouched
    say(1, "search ended," + key_ + "," + error.what());
    phase_ = kEnded, changed_ = true;
  }
  return {std::exchange(changed_, false), ran};
}

// Microseconds of the device's time for checking what waits.
template <class Problem>
double Search<Problem>::cost_of_checks() const {
  return 3 * static_cast<double>(1 + waiting(candidates_)) * candidates_.front().estimate;
}

template <class Problem>
void Search<Problem>::prepare_in_background() {
  phase_ = kPreparing;
  in_background([self = this->shared_from_this()] { self->prepare(); });
}

// Builds and checks what waits. The anchor is the solution in use, unless that turns out to be wrong.
template <class Problem>
void Search<Problem>::prepare() {
  std::vector<Candidate<Problem>> work;
  double cost = 0;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    work = candidates_;
    cost = cost_of_checks();
  }
  const double start = thread_cpu_microseconds();
  std::atomic<size_t> next{0};
  const auto build = [&] {
    for (size_t i; (i = next++) < work.size() && !background_stopping();) {
      Candidate<Problem>& c = work[i];
      if (c.solution || c.state != Candidate<Problem>::kWaiting) continue;
      wait_while_program_starts(device_);
      build_one(problem_, device_, c);
    }
  };
  // In this process a driver's compiler would take more than a core from the program, or do one after the
  // other.
  cl::run_on_threads(std::min<size_t>(work.size(), std::max(1u, cl::compile_processes(device_))), build);
  if (background_stopping()) return;
  Bench& bench = bench_of(device_);
  const double compiling = thread_cpu_microseconds() - start;
  const auto checking = std::chrono::steady_clock::now();
  size_t anchor = work.size();
  try {
    std::lock_guard<std::mutex> bench_lock(bench.mutex);
    const auto current = work.begin() + static_cast<ptrdiff_t>(taken_index_);
    std::rotate(work.begin(), current, current + 1);
    Trial<Problem> trial(problem_, device_);
    anchor = check_all(trial, problem_, work);
    if (anchor == work.size() && !background_stopping()) {  // none is right: then whatever is
      for (const auto& c : candidates_of(problem_, device_))
        if (std::none_of(work.begin(), work.end(),
                         [&](const auto& w) { return w.solver == c.solver && w.config == c.config; }))
          work.push_back(c);
      build_all(problem_, device_, work);
      anchor = check_all(trial, problem_, work);
    }
  } catch (const std::exception& error) {  // no memory for it now: stay with what works
    say(1, "not checked," + key_ + "," + error.what());
  }
  // The compiler took a core from the program's kernels, the checks at most all of them.
  if (device_.host_memory) {
    const std::chrono::duration<double, std::micro> taken = std::chrono::steady_clock::now() - checking;
    bench.budget.spend(compiling / device_.compute_units + std::max(0.0, taken.count() - cost));
  }
  std::lock_guard<std::mutex> lock(mutex_);
  if (anchor == work.size()) {
    phase_ = kEnded, changed_ = true;
    return;
  }
  candidates_ = std::move(work);
  taken_index_ = 0;
  if (anchor != 0) {
    TORCH_WARN("dlbackend: solver ", candidates_[0].solver->name(), " gives wrong results for ", key_, " on ",
               device_.name, " (", device_.driver_version, ", error ", candidates_[0].error, "); ",
               candidates_[anchor].solver->name(), " takes its place. Please report this.");
    taken_index_ = anchor;
    taken_ = candidates_[anchor].solution;
    if (!taken_->config.specialised) reusable_ = taken_;
    changed_ = true;
  }
  candidates_[taken_index_].state = Candidate<Problem>::kTaken;
  phase_ = kMeasuring;
}

// Evaluates the measurements that are complete. True when nothing is left to measure.
template <class Problem>
bool Search<Problem>::collect() {
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
                                        [](const auto& c) { return c.state == Candidate<Problem>::kReady; });
}

template <class Problem>
void Search<Problem>::evaluate(const Pair& pair, bool succeeded) {
  Candidate<Problem>& c = candidates_[pair.candidate];
  find_stats().measured++;
  const auto time = [&](size_t run) {
    return succeeded ? microseconds_between(pair.marks[2 * run], pair.marks[2 * run + 1]) : 0;
  };
  const double first = time(0), second = time(1);
  const double taken = pair.against_first ? first : second, other = pair.against_first ? second : first;
  bench_of(device_).budget.spend(allowance_of(device_).marking + std::max(0.0, other - taken) -
                                 pair.promised);
  if (c.state != Candidate<Problem>::kReady || pair.against != taken_) return;  // decided meanwhile
  if (taken <= 0 || other <= 0)
    c.state = Candidate<Problem>::kFailed;
  else
    judge(c, other / taken, taken);
}

template <class Problem>
void Search<Problem>::release(Pair& pair) {
  for (cl_event& mark : pair.marks)
    if (mark) cl::api().clReleaseEvent(std::exchange(mark, nullptr));
}

// Measurements before a solution takes over: the shorter, the less one says.
template <class Problem>
size_t Search<Problem>::needed() const {
  return candidates_[taken_index_].time < kShort ? kMeasurementsOfShort : kMeasurements;
}

template <class Problem>
void Search<Problem>::judge(Candidate<Problem>& c, double ratio, double taken_time) {
  Candidate<Problem>& current = candidates_[taken_index_];
  current.time = current.time > 0 ? std::min(current.time, taken_time) : taken_time;
  c.ratios.push_back(ratio);
  const double middle = median(c.ratios);
  c.time = current.time * middle;
  const bool interrupted = device_.cls == cl::DeviceClass::kCpu ? current.time < kShort : middle > kHeldUp;
  size_t enough = device_.cls == cl::DeviceClass::kCpu ? 1 : kShared;
  if (interrupted || c.config.specialised) enough = kInterrupted;
  if ((middle > kHopeless && c.ratios.size() >= enough) ||
      (c.ratios.size() >= needed() && middle > kMinimumGain))
    c.state = Candidate<Problem>::kSlower;
  else if (c.ratios.size() >= needed()) {
    take(c);
    bench_of(device_).budget.spend(-kRepaid * (current.time - c.time));
  }
  if (c.state != Candidate<Problem>::kReady) say(1, "measured," + key_ + "," + describe(c));
}

template <class Problem>
void Search<Problem>::take(Candidate<Problem>& c) {
  candidates_[taken_index_].state = Candidate<Problem>::kSlower;
  c.state = Candidate<Problem>::kTaken;
  taken_index_ = static_cast<size_t>(&c - candidates_.data());
  taken_ = c.solution;
  if (!c.config.specialised) reusable_ = taken_;
  changed_ = true;
  find_stats().swapped++;
}

// Opens a pair for a candidate that lacks measurements. One that was never measured runs alone: it may be far
// slower. False when there is none, or no time for it.
template <class Problem>
bool Search<Problem>::next_pair() {
  if (pairs_.size() >= kMostPairs) return false;
  for (size_t i = 0; i < candidates_.size(); i++) {
    const Candidate<Problem>& c = candidates_[i];
    if (c.state != Candidate<Problem>::kReady) continue;
    const auto under_way = static_cast<size_t>(
        std::count_if(pairs_.begin(), pairs_.end(), [&](const Pair& pair) { return pair.candidate == i; }));
    if (c.ratios.empty() ? under_way > 0 : c.ratios.size() + under_way >= needed()) continue;
    const Candidate<Problem>& current = candidates_[taken_index_];
    const Allowance& allowance = allowance_of(device_);
    const double promised =
        allowance.marking + kUsualExcess * (current.time > 0 ? current.time : current.estimate);
    if (!bench_of(device_).budget.take(promised, allowance)) return false;
    Pair pair;
    pair.candidate = i, pair.against = taken_, pair.promised = promised;
    pair.against_first = (c.ratios.size() + under_way) % 2;  // drift hits both alike
    pairs_.push_back(std::move(pair));
    return true;
  }
  return false;
}

// Whether a result is also an operand.
template <class Problem>
bool works_in_place(const Problem& problem, const typename Problem::Operands& operands) {
  const auto spans = problem.spans();
  for (const auto& result : spans)
    for (const auto& operand : spans) {
      const auto &to = operands.*result.buffer, &from = operands.*operand.buffer;
      if (result.result && !operand.result && to.mem == from.mem && to.offset == from.offset) return true;
    }
  return false;
}

// Takes the program's run for a measurement, where there is one to make. False when it did not.
template <class Problem>
bool Search<Problem>::run_next(const typename Problem::Operands& operands, Stream& stream,
                               bool reusable_only) {
  // Not the one in use, nor the others while it is measured beside them.
  if (reusable_only && std::any_of(candidates_.begin(), candidates_.end(), [](const auto& c) {
        return c.config.specialised &&
               (c.state == Candidate<Problem>::kReady || c.state == Candidate<Problem>::kTaken);
      }))
    return false;
  if (stream.queue().log.load(std::memory_order_relaxed)) return false;  // a profile shows the program alone
  if (works_in_place(problem_, operands)) return false;  // a run that fails halfway could not be made good
  std::unique_lock<std::mutex> lock(bench_of(device_).mutex, std::try_to_lock);
  if (!lock) return false;
  if (!pairs_.empty() && pairs_.back().runs == 1 && pairs_.back().against != taken_) {
    release(pairs_.back());
    pairs_.pop_back();
  }
  if ((pairs_.empty() || pairs_.back().runs == 2) && !next_pair()) return false;
  Pair& pair = pairs_.back();
  const bool old = pair.against_first == (pair.runs == 0);
  Candidate<Problem>& c = candidates_[pair.candidate];
  try {
    run_marked(old ? *pair.against : *c.solution, operands, stream, &pair.marks[2 * size_t(pair.runs)]);
  } catch (const std::exception& error) {  // no memory for its workspace, say
    say(1, std::string("run failed,") + c.solver->name() + "," + error.what());
    c.state = Candidate<Problem>::kFailed;
    release(pair);
    pairs_.pop_back();
    return false;
  }
  pair.runs++;
  return true;
}

// Runs a solution between two marks, on a queue of its own that the stream waits for, so that only this queue
// needs timestamps.
template <class Problem>
void Search<Problem>::run_marked(const Solution<Problem>& solution,
                                 const typename Problem::Operands& operands, Stream& stream,
                                 cl_event* marks) {
  Bench& bench = bench_of(device_);
  if (!bench.stream) {
    bench.stream = std::make_unique<Stream>(device_, Stream::kInternal);
    bench.stream->enable_profiling();
  }
  Stream& timed = *bench.stream;
  // Freed when this returns: later allocations of the stream come after the kernels that use it.
  const c10::DataPtr workspace =
      solution.workspace ? allocate_bytes(solution.workspace, static_cast<c10::DeviceIndex>(device_.index))
                         : c10::DataPtr();
  const auto ready = with_prepared<Problem>(solution, operands, stream);
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
    solution.invoker->run(timed, ready, solution.workspace ? resolve(workspace, workspace.get()) : MemRef{});
  } catch (...) {
    rejoin();  // the run that makes good for it comes after what is enqueued
    throw;
  }
  rejoin();
}

// Further configs, where a solver's first came near the solution in use. False when there are none.
template <class Problem>
bool Search<Problem>::widen() {
  const auto came_near = [&](const Solver<Problem>* solver) {
    return std::any_of(candidates_.begin(), candidates_.end(), [&](const auto& c) {
      return c.solver == solver &&
             (c.state == Candidate<Problem>::kTaken ||
              (c.state == Candidate<Problem>::kSlower && c.time <= kNear * candidates_[taken_index_].time));
    });
  };
  bool any = false;
  for (auto& c : std::exchange(later_, {}))
    if (came_near(c.solver)) candidates_.push_back(std::move(c)), any = true;
  if (any) phase_ = kPostponed;
  return any;
}

// All is measured: what is known goes to the store, and the winner may be compiled for these sizes.
template <class Problem>
bool Search<Problem>::finish() {
  if (widen()) return false;
  store();
  end_specialisation();
  if (std::exchange(first_round_, false))
    watch();
  else
    phase_ = kEnded;
  changed_ = true;
  return true;
}

// Waits for what the problem takes in all, if it can be compiled for its sizes.
template <class Problem>
void Search<Problem>::watch() {
  const bool can = may_specialise_ && !taken_->config.specialised &&
                   taken_->solver->can_specialise(problem_, device_, taken_->config);
  phase_ = can ? kWatching : kEnded;
}

template <class Problem>
bool Search<Problem>::is_lasting() const {
  const Candidate<Problem>& current = candidates_[taken_index_];
  const double time = current.time > 0 ? current.time : current.estimate;
  return runs_ >= kSpecialiseAfter && (find_share() >= 1 || runs_ * time >= allowance_of(device_).lasting);
}

template <class Problem>
bool Search<Problem>::specialise() {
  if (sizes_met(problem_) > kManySizes) return false;
  Candidate<Problem> candidate;
  candidate.solver = taken_->solver, candidate.config = taken_->config;
  candidate.config.specialised = true;
  candidate.estimate = candidates_[taken_index_].estimate;
  for (const auto& c : candidates_)
    if (c.solver == candidate.solver && c.config == candidate.config) return false;
  if (!specialisations().begin(device_, revision_name(*candidate.solver))) return false;
  specialising_ = candidate.solver;
  candidates_.push_back(candidate);
  phase_ = kPostponed;
  return true;
}

// Says what came of the program that was built for the problem, if there was one.
template <class Problem>
void Search<Problem>::end_specialisation() {
  if (!specialising_) return;
  const auto it = std::find_if(candidates_.begin(), candidates_.end(), [&](const auto& c) {
    return c.config.specialised && c.solver == specialising_ && c.state >= Candidate<Problem>::kSlower;
  });
  std::optional<bool> won;
  if (it != candidates_.end()) won = it->state == Candidate<Problem>::kTaken;
  specialisations().end(device_, revision_name(*std::exchange(specialising_, nullptr)), won);
}

template <class Problem>
void Search<Problem>::store() {
  FindRecord record = record_of(problem_, device_, candidates_);
  if (record.results.empty()) {  // nothing to compare with: remembered, so that nobody looks again
    const Candidate<Problem>& only = candidates_[taken_index_];
    record.results.push_back(
        {revision_name(*only.solver), only.config, 0, only.solution->workspace, only.error});
  }
  remember(problem_, device_, key_, record);
}

#define DLB_SEARCH(Problem)                                                                                 \
  template SolutionPtr<Problem> make_solution(const Problem&, cl::Device&, const Solver<Problem>&,          \
                                              const Config&);                                               \
  template std::vector<Ranked<Problem>> ranking_of(const Problem&, const cl::Device&);                      \
  template std::vector<Candidate<Problem>> candidates_of(const Problem&, const cl::Device&);                \
  template bool vouch(const Problem&, cl::Device&, const SolutionPtr<Problem>&);                            \
  template bool is_vouched(const Problem&, const cl::Device&, const Solver<Problem>&);                      \
  template void measure_all(const Problem&, cl::Device&, std::vector<Candidate<Problem>>&);                 \
  template FindRecord record_of(const Problem&, const cl::Device&, const std::vector<Candidate<Problem>>&); \
  template void remember(const Problem&, const cl::Device&, const std::string&, const FindRecord&);         \
  template class Search<Problem>;
DLB_SEARCH(GemmProblem)
DLB_SEARCH(ConvProblem)
DLB_SEARCH(LaunchProblem)
#undef DLB_SEARCH

}  // namespace dlb::solver
