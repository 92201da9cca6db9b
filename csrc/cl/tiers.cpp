// The threads that have programs compiled while their first tier runs, and the change from one to the other.
#include "cl/tiers.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <deque>
#include <list>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <tuple>
#include <utility>

#include "cl/build.h"
#include "cl/build_mode.h"
#include "cl/builders.h"
#include "cl/compile_process.h"
#include "cl/kernel.h"
#include "cl/launch_sample.h"
#include "cl/log.h"
#include "cl/program_entry.h"
#include "cl/settings.h"
#include "cl/statistics.h"
#include "cl/stores/disk_cache.h"
#include "cl/stores/stored_program.h"
#include "cl/threads.h"

namespace dlb::cl {

constinit thread_local FirstTierUse* FirstTierUse::current_ = nullptr;

// The state that is behind the functions of tiers.h.
class Tiers {
 public:
  static Tiers& instance() {
    static auto* tiers = new Tiers;
    return *tiers;
  }

  bool start(ProgramEntry& program, Kernel& kernel);
  void ask_for(ProgramEntry& program);
  void take_over(Kernel& kernel) noexcept;
  void hold() noexcept;
  void release() noexcept;
  void check_again(const std::vector<ProgramEntry*>& programs, std::function<bool()> check);
  void wait(const std::function<bool()>& stop);
  void stop() noexcept;

 private:
  using Clock = std::chrono::steady_clock;
  struct Asked {
    ProgramEntry* program;
    Clock::time_point since;
    uint64_t launches = 0;  // of its first tier
    double lately = 0;      // those of late
  };
  static constexpr auto kMostDelay = std::chrono::seconds(1);
  // A solver is to be checked again.
  struct Check {
    std::vector<ProgramEntry*> programs;  // that take over behind it
    std::set<ProgramEntry*> awaited;      // those of them that are not optimised yet
    std::function<bool()> check;
    uint64_t number;
  };

  static Kernel* build_stand_in(ProgramEntry& program, ProgramEntry& first_tier, const std::string& name);
  bool start_thread(const Device& device);
  void work();
  ProgramEntry* next();
  static bool improve(ProgramEntry& program);
  void improve_with(std::unique_lock<std::mutex>& lock, ProgramEntry& program);
  void run_check(std::unique_lock<std::mutex>& lock);
  bool may_take_over(const ProgramEntry& program) const;
  void let_take_over() noexcept;

  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Asked> waiting_;
  std::list<Check> checks_;  // whose programs are not all optimised
  std::deque<Check> ready_;  // whose programs are
  uint64_t numbered_ = 0;    // checks that were ever asked for
  unsigned threads_ = 0, improving_ = 0, checking_ = 0;
  bool stopping_ = false;
  int uses_ = 0;               // of first tiers that live, while which programs of solvers must not take over
  std::vector<Kernel*> held_;  // that must not take over yet
};

namespace {

std::atomic<bool (*)()> g_forbidden{nullptr};

constexpr const char* kFirstTierOption = " -cl-opt-disable";

// How often kernels of a program's first tier were launched, and how long one takes; 0 if that is not known.
struct Use {
  uint64_t launches = 0;
  double ns = 0;
};

Use use_of(ProgramEntry& first_tier) {
  Use use;
  uint64_t timed = 0;
  for (const LaunchSampler* sampler : first_tier.samplers()) {
    use.launches += sampler->launches();
    timed += sampler->timed();
    use.ns += static_cast<double>(sampler->busy_ns());
  }
  use.ns /= static_cast<double>(std::max<uint64_t>(timed, 1));
  return use;
}

// The launches that were noted of a program's first tier, and the kernels that they are of.
struct Noted {
  std::string launches;
  std::set<std::string> kernels;
};

Noted noted_of(ProgramEntry& first_tier) {
  Noted noted;
  for (const LaunchSampler* sampler : first_tier.samplers()) {
    const std::string launches = sampler->noted();
    noted.launches += launches;
    if (!launches.empty()) noted.kernels.insert(sampler->kernel());
  }
  return noted;
}

}  // namespace

// Null where the program does not build, which it will tell itself.
Kernel* Tiers::build_stand_in(ProgramEntry& program, ProgramEntry& first_tier, const std::string& name) {
  Kernel& kernel = first_tier.kernel(name, true);
  try {
    std::lock_guard<std::mutex> lock(first_tier.mutex);
    first_tier.make();
    first_tier.make(kernel);
  } catch (const Error&) {
    log_dropped("building a program's first tier");
    return nullptr;
  }
  make_room(first_tier);
  first_tier.last_tier = &program;
  program.first_tier = &first_tier;
  return &kernel;
}

bool Tiers::start(ProgramEntry& program, Kernel& kernel) {
  if (build_mode().checked) program.checked = true;
  if (kernel.stand_in_.load(std::memory_order_acquire)) return true;
  const ProgramSource& source = program.source;
  // A program that is made, or that the stores have, may still lack machine code of kernels that were never
  // launched.
  const bool begun = program.held ? program.first_tier.load() != nullptr : program.improving.load();
  const bool none = !begun && has_stored(program.device, source.source, source.options, kernel.name());
  if (none) return false;
  ProgramEntry& first_tier = entry_for(program.device, source.source, source.options + kFirstTierOption);
  Kernel* const stand_in = build_stand_in(program, first_tier, kernel.name());
  if (!stand_in) return false;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    // Else another thread has made it meanwhile.
    if (!kernel.is_made()) kernel.stand_in_.store(stand_in, std::memory_order_release);
  }
  ask_for(program);
  return true;
}

// With the lock held.
bool Tiers::may_take_over(const ProgramEntry& program) const {
  return !program.checked || (uses_ == 0 && program.checks_to_come == 0);
}

void Tiers::take_over(Kernel& kernel) noexcept {
  if (!kernel.stand_in_.load(std::memory_order_relaxed)) return;
  std::lock_guard<std::mutex> lock(mutex_);
  if (may_take_over(*kernel.program_))
    kernel.stand_in_.store(nullptr, std::memory_order_release);
  else
    held_.push_back(&kernel);
}

// With the lock held.
void Tiers::let_take_over() noexcept {
  std::erase_if(held_, [this](Kernel* kernel) {
    if (!may_take_over(*kernel->program_)) return false;
    kernel->stand_in_.store(nullptr, std::memory_order_release);
    return true;
  });
}

void Tiers::hold() noexcept {
  std::lock_guard<std::mutex> lock(mutex_);
  uses_++;
}

void Tiers::release() noexcept {
  std::lock_guard<std::mutex> lock(mutex_);
  uses_--;
  let_take_over();
}

void Tiers::check_again(const std::vector<ProgramEntry*>& programs, std::function<bool()> check) {
  std::lock_guard<std::mutex> lock(mutex_);
  Check added{{}, {}, std::move(check), numbered_++};
  for (ProgramEntry* program : programs) {
    if (!program->checked) continue;
    program->checks_to_come++;
    added.programs.push_back(program);
    if (program->improving) added.awaited.insert(program);
  }
  if (stopping_ || added.programs.empty()) return;
  const Device& device = added.programs.front()->device;
  if (added.awaited.empty())
    ready_.push_back(std::move(added));
  else
    checks_.push_back(std::move(added));
  changed_.notify_all();
  start_thread(device);
}

// With the lock held. As many as there are processes, and one for checks. One is needed also where there are
// no more processes, and this one compiles. False where there is none.
bool Tiers::start_thread(const Device& device) {
  if (threads_ > std::max(1U, improving_processes(device))) return true;
  // Where there is no thread more, those that there are do all the work.
  threads_ += start_detached([this] { work(); }, "starting a thread that has programs optimised");
  return threads_ > 0;
}

void Tiers::ask_for(ProgramEntry& program) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (stopping_ || program.improving.exchange(true)) return;
  waiting_.push_back({&program, Clock::now()});
  if (start_thread(program.device)) return;
  waiting_.pop_back();  // its first tier stays
  program.improving = false;
}

// The program whose first tier costs most now: launches count half when others were optimised since. Those of
// products and convolutions cost most as long as nothing of them was timed. Null where none was launched yet,
// so that it is not known which machine code it needs; it is not waited for long. With the lock held.
ProgramEntry* Tiers::next() {
  const auto costs = [](Asked& asked) {
    const Use use = use_of(*asked.program->first_tier.load());
    asked.lately = asked.lately / 2 + static_cast<double>(use.launches - asked.launches);
    asked.launches = use.launches;
    const bool unknown = use.launches > 0 && use.ns == 0 && asked.program->checked;
    return std::tuple(unknown, asked.lately * use.ns, asked.launches);
  };
  auto most = waiting_.end();
  std::tuple<bool, double, uint64_t> most_costs;
  for (auto it = waiting_.begin(); it != waiting_.end(); ++it) {
    const auto these = costs(*it);
    if (most == waiting_.end() || these > most_costs) most = it, most_costs = these;
  }
  if (most->launches == 0 && Clock::now() < most->since + kMostDelay) return nullptr;
  ProgramEntry* const program = most->program;
  waiting_.erase(most);
  return program;
}

void Tiers::work() {
  const WithBuildMode mode({.waited_by = WaitedBy::kNobody});
  std::unique_lock<std::mutex> lock(mutex_);
  while (!waiting_.empty() || !ready_.empty()) {
    if (!ready_.empty()) {
      run_check(lock);
      continue;
    }
    const bool busy = improving_ >= std::max(1U, improving_processes(waiting_.front().program->device));
    if (ProgramEntry* const program = busy ? nullptr : next())
      improve_with(lock, *program);
    else
      changed_.wait_for(lock, std::chrono::milliseconds(20));
  }
  threads_--;
  std::notify_all_at_thread_exit(changed_, std::move(lock));
}

void Tiers::improve_with(std::unique_lock<std::mutex>& lock, ProgramEntry& program) {
  improving_++;
  const uint64_t numbered = numbered_;
  lock.unlock();
  bool again = false, done = false;
  try {
    again = improve(program);
    done = program.held;
  } catch (...) {
    log_dropped("having a program optimised");  // its first tier stays
  }
  lock.lock();
  program.improving = again && !stopping_;
  if (program.improving) waiting_.push_back({&program, Clock::now()});
  for (auto it = checks_.begin(); it != checks_.end();) {
    // What later checks launched may not have been noted in time.
    const bool had_all = !again || it->number < numbered;
    if (!had_all || it->awaited.erase(&program) == 0 || (done && !it->awaited.empty())) {
      ++it;
      continue;
    }
    if (done) ready_.push_back(std::move(*it));
    it = checks_.erase(it);
  }
  improving_--;
  changed_.notify_all();
}

void Tiers::run_check(std::unique_lock<std::mutex>& lock) {
  const Check check = std::move(ready_.front());
  ready_.pop_front();
  checking_++;
  lock.unlock();
  bool right = false;
  try {
    const WithBuildMode mode({.waited_by = WaitedBy::kNobody, .only_checked_optimised = true});
    right = check.check();
  } catch (...) {
    log_dropped("checking a solver again");  // its first tiers stay
  }
  lock.lock();
  if (right) {
    for (ProgramEntry* program : check.programs) program->checks_to_come--;
    let_take_over();
  }
  checking_--;
  changed_.notify_all();
}

// Whether launches were noted meanwhile, for which it is to be done again. Kernels that were not launched yet
// keep their stand-ins.
bool Tiers::improve(ProgramEntry& program) {
  ProgramEntry& first_tier = *program.first_tier.load();
  const Noted noted = noted_of(first_tier);
  const auto done =
      improve_elsewhere(program.device, program.source.source, program.source.options, noted.launches);
  if (compile_processes_stopped()) return false;
  // Where it failed, what it did until then is in the stores, and the rest is done here.
  const bool first = !program.held;
  {
    std::lock_guard<std::mutex> lock(program.mutex);
    program.make(false);
    program.make_kernels(&noted.kernels);
  }
  make_room(program);
  if (first) g_counters.optimised++;
  char time[32];
  std::snprintf(time, sizeof time, "%.3f s", done ? done->seconds : 0);
  std::string names;
  for (const std::string& name : noted.kernels) names += (names.empty() ? "" : ";") + name;
  log(1, "optimised,ocl:" + std::to_string(program.device.index) + "," + time + "," + program.source.options +
             "," + names);
  return noted_of(first_tier).launches != noted.launches;
}

void Tiers::wait(const std::function<bool()>& stop) {
  std::unique_lock<std::mutex> lock(mutex_);
  while (!stopping_ && (!waiting_.empty() || !ready_.empty() || improving_ + checking_ > 0) && !stop())
    changed_.wait_for(lock, std::chrono::milliseconds(20));
}

void Tiers::stop() noexcept {
  std::unique_lock<std::mutex> lock(mutex_);
  stopping_ = true;
  waiting_.clear();
  ready_.clear();
  checks_.clear();
  changed_.notify_all();
  changed_.wait(lock, [this] { return threads_ == 0; });
}

// --- The functions
// -------------------------------------------------------------------------------------------------------

bool has_tiers(const Device& device) {
  static const std::string chosen = settings::emulated_tiers();
  const bool pays = chosen.empty()
                        ? device.late_code && device.clang_on_host && device.cls == DeviceClass::kCpu
                        : chosen == "1";
  if (!pays || improving_processes(device) == 0 || can_defer_builds(device)) return false;
  return program_disk_cache().can_store() && (!device.late_code || !driver_cache_of(device).empty());
}

bool may_run_first_tier(const ProgramEntry& program) noexcept {
  const BuildMode mode = build_mode();
  const auto forbidden = g_forbidden.load(std::memory_order_relaxed);
  if (mode.optimised || (forbidden && forbidden())) return false;
  return mode.waited_by != WaitedBy::kNobody || (mode.only_checked_optimised && !program.checked);
}

void no_first_tier_while(bool (*condition)()) noexcept {
  g_forbidden = condition;
}

bool start_in_first_tier(ProgramEntry& program, Kernel& kernel) {
  return may_run_first_tier(program) && has_tiers(program.device) && Tiers::instance().start(program, kernel);
}

void ask_for_improvement(ProgramEntry& first_tier) noexcept try {
  if (ProgramEntry* const program = first_tier.last_tier) Tiers::instance().ask_for(*program);
} catch (...) {
  log_dropped("asking for a program to be optimised");
}

void take_over(Kernel& kernel) noexcept {
  Tiers::instance().take_over(kernel);
}

Kernel* Kernel::stand_in_here() noexcept {
  if (!may_run_first_tier(*program_)) return nullptr;
  if (FirstTierUse* const use = FirstTierUse::current_)
    if (std::find(use->programs_.begin(), use->programs_.end(), program_) == use->programs_.end())
      use->programs_.push_back(program_);
  return stand_in_.load(std::memory_order_acquire);
}

FirstTierUse::FirstTierUse() : before_(std::exchange(current_, this)) {
  Tiers::instance().hold();
}

FirstTierUse::~FirstTierUse() {
  current_ = before_;
  Tiers::instance().release();
}

bool FirstTierUse::any() const noexcept {
  return std::any_of(programs_.begin(), programs_.end(),
                     [](auto* program) { return program->checked.load(); });
}

void FirstTierUse::check_again(std::function<bool()> check) {
  Tiers::instance().check_again(programs_, std::move(check));
}

void wait_for_improvements(const std::function<bool()>& stop) {
  if (!in_bad_fork()) Tiers::instance().wait(stop);
}

void stop_improvements() noexcept {
  if (!in_bad_fork()) Tiers::instance().stop();
}

}  // namespace dlb::cl
