// The table of programs, their kernels, and the eviction of those not used for long.
#include "cl/program_table.h"

#include <algorithm>
#include <atomic>
#include <mutex>
#include <thread>
#include <unordered_map>
#include <utility>

#include "cl/build.h"
#include "cl/build_mode.h"
#include "cl/compile.h"
#include "cl/kernel_facts.h"
#include "cl/launch_sample.h"
#include "cl/log.h"
#include "cl/program_entry.h"
#include "cl/settings.h"
#include "cl/statistics.h"
#include "cl/threads.h"
#include "cl/tiers.h"

namespace dlb::cl {

namespace {

std::atomic<size_t> g_programs_held{0};

// Entries are never removed, because callers keep their kernels. Only the driver's programs and kernels are
// released.
struct ProgramTable {
  std::mutex mutex;
  std::unordered_map<Hash128, std::unique_ptr<ProgramEntry>, Hash128Hasher> entries;
};
ProgramTable& program_table() {
  static auto* table = new ProgramTable;
  return *table;
}

size_t most_programs() {
  static const size_t most = [] {
    constexpr size_t kDefault = 2048;
    const uint64_t chosen = settings::max_programs();
    return chosen ? static_cast<size_t>(chosen) : kDefault;
  }();
  return most;
}

}  // namespace

ProgramEntry& entry_for(Device& device, const std::string& source, const std::string& all_options) {
  const Hash128 key = hash128(std::to_string(device.index) + "\n" + all_options + "\n" + source);
  ProgramTable& table = program_table();
  std::lock_guard<std::mutex> lock(table.mutex);
  auto& entry = table.entries[key];
  if (!entry) entry = std::make_unique<ProgramEntry>(device, key, ProgramSource{source, all_options});
  return *entry;
}

ProgramEntry::ProgramEntry(Device& device, const Hash128& key, ProgramSource source)
    : device(device), key(key), source(std::move(source)), used(g_counters.launches.load()) {}

void ProgramEntry::make(bool counted) {
  if (failure) throw Error(*failure);
  if (program) return;
  try {
    program = build(device, source.source, source.options, key, counted);
  } catch (const Error& error) {
    if (error.code == CL_BUILD_PROGRAM_FAILURE) failure = std::make_unique<Error>(error), failed = true;
    throw;
  }
  used = g_counters.launches.load();
  held = true;
  g_programs_held++;
}

void ProgramEntry::make(Kernel& kernel) {
  if (kernel.handle_.load()) return;
  check_room(device);  // the kernel's first launch compiles machine code, which needs room on disk
  kernel.attach(kernel_of(program, kernel.name()));
  take_over(kernel);
}

void ProgramEntry::make_kernels(const std::set<std::string>* stood_for) {
  for (Kernel* kernel : all_kernels())
    if (!stood_for || !kernel->stand_in_.load() || stood_for->contains(kernel->name())) make(*kernel);
}

Kernel& ProgramEntry::kernel(const std::string& name, bool sampled) {
  std::lock_guard<std::mutex> lock(kernels_mutex_);
  auto& kernel = kernels_[name];
  if (kernel) return *kernel;
  kernel = std::make_unique<Kernel>(device, *this, name);
  if (sampled) kernel->sampler_ = std::make_unique<LaunchSampler>(name);
  return *kernel;
}

std::vector<const LaunchSampler*> ProgramEntry::samplers() {
  std::vector<const LaunchSampler*> list;
  for (const Kernel* kernel : all_kernels())
    if (kernel->sampler_) list.push_back(kernel->sampler_.get());
  return list;
}

std::vector<Kernel*> ProgramEntry::all_kernels() {
  std::lock_guard<std::mutex> lock(kernels_mutex_);
  std::vector<Kernel*> list;
  for (const auto& [name, kernel] : kernels_) list.push_back(kernel.get());
  return list;
}

bool ProgramEntry::has_first_tier(const Kernel& kernel) {
  return kernel.program_ && kernel.program_->first_tier.load();
}

void ProgramEntry::release() {
  for (Kernel* kernel : all_kernels()) kernel->detach();
  api().clReleaseProgram(program);
  program = nullptr;
  held = false;
  g_programs_held--;
  g_counters.evicted++;
}

void make_room(const ProgramEntry& wanted) {
  const size_t most = most_programs();
  if (g_programs_held.load(std::memory_order_relaxed) <= most) [[likely]]
    return;
  static std::mutex one_at_a_time;
  std::lock_guard<std::mutex> alone(one_at_a_time);
  std::vector<std::pair<uint64_t, ProgramEntry*>> held;
  {
    std::lock_guard<std::mutex> lock(program_table().mutex);
    for (const auto& [key, entry] : program_table().entries)
      if (entry->held && entry.get() != &wanted) held.emplace_back(entry->used.load(), entry.get());
  }
  const size_t left = most - most / 8 - 1;  // how many stay, beside the wanted one
  if (held.size() < most) return;
  std::sort(held.begin(), held.end());
  for (size_t i = 0; i < held.size() - left; ++i) {
    ProgramEntry& entry = *held[i].second;
    std::unique_lock<std::mutex> lock(entry.mutex, std::try_to_lock);
    if (lock && entry.program) entry.release();
  }
}

Kernel& get_kernel(Device& device, const std::string& source, const std::string& options,
                   const std::string& name) {
  const std::string all_options = with_device_options(device, options);
  ProgramEntry& entry = entry_for(device, source, all_options);
  Kernel& kernel = entry.kernel(name);
  if (!entry.held && !entry.failed) {
    if (Recording* recording = Recording::current()) {
      // What runs in its first tier does not wait for a compiler.
      const bool runs = recording->wanted() == Recording::kWhether && entry.first_tier.load() &&
                        start_in_first_tier(entry, kernel);
      if (!runs) recording->note(source, options);
      return kernel;
    }
    if (build_mode().deferred && kernel.will_be_made()) return kernel;
  }
  if (!kernel.is_made() && !entry.failed && start_in_first_tier(entry, kernel)) return kernel;
  {
    std::lock_guard<std::mutex> lock(entry.mutex);
    entry.make();
    entry.make(kernel);
  }
  make_room(entry);
  return kernel;
}

KernelFacts kernel_facts(Device& device, const std::string& source, const std::string& options,
                         const std::string& name) {
  ProgramEntry& entry = entry_for(device, source, with_device_options(device, options));
  KernelFacts facts{entry.kernel(name)};
  {
    std::lock_guard<std::mutex> lock(entry.mutex);
    entry.make();
    entry.make(facts.kernel);
    const cl_kernel handle = kernel_of(entry.program, name);
    const auto ask = [&](cl_kernel_work_group_info what, size_t size, void* to) {
      return api().clGetKernelWorkGroupInfo(handle, device.id, what, size, to, nullptr);
    };
    cl_int status =
        api().clGetKernelInfo(handle, CL_KERNEL_NUM_ARGS, sizeof facts.arguments, &facts.arguments, nullptr);
    if (status == CL_SUCCESS)
      status = ask(CL_KERNEL_WORK_GROUP_SIZE, sizeof facts.max_group, &facts.max_group);
    if (status == CL_SUCCESS)
      status =
          ask(CL_KERNEL_COMPILE_WORK_GROUP_SIZE, sizeof facts.required_group, facts.required_group.data());
    if (status == CL_SUCCESS)
      status = ask(CL_KERNEL_LOCAL_MEM_SIZE, sizeof facts.local_bytes, &facts.local_bytes);
    api().clReleaseKernel(handle);
    check(status, "clGetKernelWorkGroupInfo");
  }
  // A device may have more dimensions than the three of every device.
  std::array<size_t, 16> items{};
  DLB_CL(clGetDeviceInfo, device.id, CL_DEVICE_MAX_WORK_ITEM_SIZES, sizeof items, items.data(), nullptr);
  std::copy_n(items.begin(), facts.max_items.size(), facts.max_items.begin());
  make_room(entry);
  return facts;
}

bool may_stay_unbuilt(Kernel& kernel) {
  Recording* recording = Recording::current();
  if (!recording) return kernel.stand_in() || (build_mode().deferred && kernel.will_be_made());
  if (recording->wanted() != Recording::kWhether) return false;
  if (kernel.stand_in()) return true;
  if (ProgramEntry::has_first_tier(kernel)) return false;
  recording->note_unbuilt();
  return true;
}

std::shared_ptr<Kernel> get_own_kernel(Device& device, const std::string& source, const std::string& options,
                                       const std::string& name) {
  const std::string all_options = with_device_options(device, options);
  cl_program program = build(device, source, all_options, hash128(all_options + "\n" + source));
  try {
    auto kernel = std::make_shared<Kernel>(device, kernel_of(program, name), name);
    api().clReleaseProgram(program);  // the driver's kernel still holds it
    return kernel;
  } catch (...) {
    api().clReleaseProgram(program);
    throw;
  }
}

size_t prefetch(Device& device, const std::vector<ProgramSource>& programs, unsigned threads,
                const std::function<bool(size_t)>& progress) {
  std::atomic<size_t> next{0}, ready{0};
  std::mutex mutex;
  size_t done = 0;
  bool stop = false;
  auto work = [&] {
    for (size_t i = next++; i < programs.size(); i = next++) {
      try {
        const std::string all_options = with_device_options(device, programs[i].options);
        ProgramEntry& entry = entry_for(device, programs[i].source, all_options);
        {
          std::lock_guard<std::mutex> lock(entry.mutex);
          entry.make();
        }
        make_room(entry);
        ready++;
      } catch (...) {
        log_dropped("building a program ahead");  // its first use throws the error again
      }
      std::lock_guard<std::mutex> lock(mutex);
      done++;
      stop = stop || (progress && !progress(done));
      if (stop) return;
    }
  };
  if (threads == 0) threads = std::max(1u, std::thread::hardware_concurrency());
  const size_t helpers = std::min<size_t>(threads, programs.size());
  device.context();  // makes a device that does not work throw here and not in a thread
  const WithBuildMode mode({.waited_by = build_mode().waited_by, .elsewhere = true});
  run_on_threads(helpers, work);
  return ready;
}

std::function<bool()> prefetch_behind(Device& device, const std::vector<ProgramSource>& programs,
                                      AheadFor what) {
  std::vector<const ProgramEntry*> entries;
  for (const ProgramSource& program : programs) {
    ProgramEntry& entry = entry_for(device, program.source, with_device_options(device, program.options));
    build_ahead(entry, what);
    entries.push_back(&entry);
  }
  return [entries] {
    return std::none_of(entries.begin(), entries.end(), [](auto* e) { return e->ahead.load(); });
  };
}

}  // namespace dlb::cl
