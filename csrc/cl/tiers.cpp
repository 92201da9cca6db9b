// The threads that have programs compiled while their first tier runs, and the change from one to the other.
#include "cl/tiers.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <system_error>
#include <thread>
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
  void wait(const std::function<bool()>& stop);
  void stop() noexcept;

 private:
  using Clock = std::chrono::steady_clock;
  struct Asked {
    ProgramEntry* program;
    Clock::time_point since;
  };
  static constexpr auto kMostDelay = std::chrono::seconds(1);

  static Kernel* build_stand_in(ProgramEntry& program, ProgramEntry& first_tier, const std::string& name);
  void work();
  ProgramEntry* next();
  static bool improve(ProgramEntry& program);

  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Asked> waiting_;
  unsigned threads_ = 0, busy_ = 0;
  bool stopping_ = false;
  int checks_ = 0;             // for which programs of solvers must not take over
  std::vector<Kernel*> held_;  // that wait for those
};

namespace {

std::atomic<bool (*)()> g_forbidden{nullptr};

constexpr const char* kFirstTierOption = " -cl-opt-disable";

uint64_t launches_of(ProgramEntry& first_tier) {
  uint64_t launches = 0;
  for (const LaunchSampler* sampler : first_tier.samplers()) launches += sampler->launches();
  return launches;
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
  // One that is made has a first tier for kernels that were not launched before.
  const bool none = program.held
                        ? !program.first_tier.load()
                        : !program.improving && has_stored(program.device, source.source, source.options);
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

void Tiers::take_over(Kernel& kernel) noexcept {
  if (!kernel.stand_in_.load(std::memory_order_relaxed)) return;
  std::lock_guard<std::mutex> lock(mutex_);
  if (kernel.program_->checked && checks_ > 0)
    held_.push_back(&kernel);
  else
    kernel.stand_in_.store(nullptr, std::memory_order_release);
}

void Tiers::hold() noexcept {
  std::lock_guard<std::mutex> lock(mutex_);
  checks_++;
}

void Tiers::release() noexcept {
  std::lock_guard<std::mutex> lock(mutex_);
  if (--checks_ > 0) return;
  for (Kernel* kernel : std::exchange(held_, {})) kernel->stand_in_.store(nullptr, std::memory_order_release);
}

void Tiers::ask_for(ProgramEntry& program) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (stopping_ || program.improving.exchange(true)) return;
  waiting_.push_back({&program, Clock::now()});
  // One is needed also where there are no more processes, and this one compiles.
  if (threads_ >= std::max(1U, improving_processes(program.device))) return;
  const WithoutSignals blocked;
  try {
    std::thread([this] { work(); }).detach();
    threads_++;
  } catch (const std::system_error&) {
    log_dropped("starting a thread that has programs optimised");  // those that there are do all the work
    if (threads_ > 0) return;
    waiting_.pop_back();  // its first tier stays
    program.improving = false;
  }
}

// The program whose first tier probably costs most: products and convolutions take longest, and are what
// solvers are checked for. Null where none was launched yet, so that it is not known which machine code it
// needs; it is not waited for long. With the lock held.
ProgramEntry* Tiers::next() {
  const auto cost = [](const Asked& asked) {
    const uint64_t launches = launches_of(*asked.program->first_tier.load());
    return std::pair(launches > 0 && asked.program->checked, launches);
  };
  const auto most =
      std::max_element(waiting_.begin(), waiting_.end(), [&](auto& a, auto& b) { return cost(a) < cost(b); });
  if (cost(*most).second == 0 && Clock::now() < most->since + kMostDelay) return nullptr;
  ProgramEntry* const program = most->program;
  waiting_.erase(most);
  return program;
}

void Tiers::work() {
  const WithBuildMode mode({.waited_by = WaitedBy::kNobody});
  std::unique_lock<std::mutex> lock(mutex_);
  while (!waiting_.empty()) {
    ProgramEntry* const program = next();
    if (!program) {
      changed_.wait_for(lock, std::chrono::milliseconds(20));
      continue;
    }
    busy_++;
    lock.unlock();
    bool again = false;
    try {
      again = improve(*program);
    } catch (...) {
      log_dropped("having a program optimised");  // its first tier stays
    }
    lock.lock();
    program->improving = again && !stopping_;
    if (program->improving) waiting_.push_back({program, Clock::now()});
    busy_--;
    changed_.notify_all();
  }
  threads_--;
  std::notify_all_at_thread_exit(changed_, std::move(lock));
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
  while (!stopping_ && (!waiting_.empty() || busy_ > 0) && !stop())
    changed_.wait_for(lock, std::chrono::milliseconds(20));
}

void Tiers::stop() noexcept {
  std::unique_lock<std::mutex> lock(mutex_);
  stopping_ = true;
  waiting_.clear();
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
  if (!kept_) Tiers::instance().release();
}

void release_take_overs() noexcept {
  Tiers::instance().release();
}

void wait_until_improved(const std::vector<ProgramEntry*>& programs, const std::function<bool()>& stop) {
  for (const ProgramEntry* program : programs)
    while (program->checked && program->improving && !stop())
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
}

void wait_for_improvements(const std::function<bool()>& stop) {
  if (!in_bad_fork()) Tiers::instance().wait(stop);
}

void stop_improvements() noexcept {
  if (!in_bad_fork()) Tiers::instance().stop();
}

}  // namespace dlb::cl
