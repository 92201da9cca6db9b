// Program building with a memory and a disk cache, and kernel launch.
#include "cl/program.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <memory>
#include <random>
#include <sstream>
#include <thread>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "cl/compile_process.h"
#include "cl/disk_cache.h"
#include "cl/driver_cache.h"
#include "cl/hash.h"
#include "cl/log.h"
#include "cl/paths.h"
#include "cl/settings.h"
#include "cl/threads.h"

namespace dlb::cl {
namespace {

constexpr uint32_t kFlushEvery = 16;  // launches: keeps the device busy without paying a flush for each

std::atomic<uint64_t> g_compiled{0}, g_compiled_elsewhere{0}, g_loaded{0}, g_loaded_from_pack{0},
    g_compile_ns{0}, g_launches{0}, g_buffer_epoch{1}, g_programs_held{0}, g_programs_evicted{0};

std::string build_log(cl_program program, cl_device_id device) {
  size_t size = 0;
  if (api().clGetProgramBuildInfo(program, device, CL_PROGRAM_BUILD_LOG, 0, nullptr, &size) != CL_SUCCESS)
    return "";
  std::string log(size, '\0');
  api().clGetProgramBuildInfo(program, device, CL_PROGRAM_BUILD_LOG, size, log.data(), nullptr);
  while (!log.empty() && (log.back() == '\0' || log.back() == '\n')) log.pop_back();
  return log;
}

std::string dump_source(const std::string& source, const std::string& options, const Hash128& key) {
  const char* tmp = std::getenv("TMPDIR");
  const std::string file =
      std::string(tmp && *tmp ? tmp : "/tmp") + "/dlbackend-" + key.hex().substr(0, 12) + ".cl";
  std::ofstream out(file);
  out << "// options: " << options << "\n";
  std::istringstream lines(source);
  int number = 1;
  for (std::string line; std::getline(lines, line);) out << "/*" << number++ << "*/ " << line << "\n";
  return out ? file : "";
}

[[noreturn]] void throw_build_error(cl_int status, const Device& device, const std::string& log,
                                    const std::string& source, const std::string& options,
                                    const Hash128& key) {
  const std::string file = dump_source(source, options, key);
  throw_error(status, "clBuildProgram",
              device.name + " (" + device.driver_version + "). Build log:\n" + log.substr(0, 4000) +
                  (file.empty() ? "" : "\nThe numbered source is in " + file));
}

std::string binary_of(cl_program program) {
  size_t size = 0;
  DLB_CL(clGetProgramInfo, program, CL_PROGRAM_BINARY_SIZES, sizeof size, &size, nullptr);
  std::string binary(size, '\0');
  auto* data = reinterpret_cast<unsigned char*>(binary.data());
  DLB_CL(clGetProgramInfo, program, CL_PROGRAM_BINARIES, sizeof data, &data, nullptr);
  return binary;
}

// PoCL ends the process where it cannot write what it compiles. (At the start it gets a folder with room.)
void check_room(const Device& device) {
  if (!device.late_code) return;
  const std::string full = driver_cache_without_room();
  if (!full.empty())
    throw Error(CL_INVALID_OPERATION, "the disk of " + full + " is full, where " + device.name +
                                          " keeps what it compiles: free some of it and go on, or set "
                                          "POCL_CACHE_DIR to a folder with room");
}

cl_program load_binary(Device& device, const std::string& binary, const std::string& options) {
  check_room(device);
  const auto* data = reinterpret_cast<const unsigned char*>(binary.data());
  const size_t size = binary.size();
  cl_int status = CL_SUCCESS, loaded = CL_SUCCESS;
  cl_program program =
      api().clCreateProgramWithBinary(device.context(), 1, &device.id, &size, &data, &loaded, &status);
  if (status != CL_SUCCESS || loaded != CL_SUCCESS) return nullptr;
  if (api().clBuildProgram(program, 1, &device.id, options.c_str(), nullptr, nullptr) != CL_SUCCESS) {
    api().clReleaseProgram(program);
    return nullptr;
  }
  return program;
}

cl_program build_source(Device& device, const std::string& source, const std::string& options,
                        const Hash128& key) {
  check_room(device);
  const char* text = source.c_str();
  cl_int status = CL_SUCCESS;
  cl_program program = api().clCreateProgramWithSource(device.context(), 1, &text, nullptr, &status);
  check(status, "clCreateProgramWithSource");
  status = api().clBuildProgram(program, 1, &device.id, options.c_str(), nullptr, nullptr);
  if (status != CL_SUCCESS) {
    const std::string log = build_log(program, device.id);
    api().clReleaseProgram(program);
    throw_build_error(status, device, log, source, options, key);
  }
  return program;
}

// "compiled,ocl:0,0.412 s,<options>,<kernels>"
void say_compiled(const Device& device, cl_program program, const std::string& options, double seconds) {
  if (verbosity() < 1) return;
  size_t size = 0;
  DLB_CL(clGetProgramInfo, program, CL_PROGRAM_KERNEL_NAMES, 0, nullptr, &size);
  std::string names(size, '\0');
  DLB_CL(clGetProgramInfo, program, CL_PROGRAM_KERNEL_NAMES, size, names.data(), nullptr);
  char time[32];
  std::snprintf(time, sizeof time, "%.3f s", seconds);
  say(1, "compiled,ocl:" + std::to_string(device.index) + "," + time + "," + options + "," + names.c_str());
}

void note_compiled(const Device& device, cl_program program, const std::string& options, double seconds) {
  g_compiled++;
  g_compile_ns += static_cast<uint64_t>(seconds * 1e9);
  say_compiled(device, program, options, seconds);
}

struct Compiled {
  cl_program program;
  double seconds;
};

Compiled compile(Device& device, const std::string& source, const std::string& options, const Hash128& key) {
  const auto start = std::chrono::steady_clock::now();
  cl_program program = build_source(device, source, options, key);
  const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - start;
  note_compiled(device, program, options, taken.count());
  return {program, taken.count()};
}

// PoCL keeps what it compiles in a cache of its own, from where a program of several kernels is built again
// in 30 ms. Asked for the binary, it compiles every kernel for work-groups of any size: seconds, under locks
// that launches need, for code that never runs where the program's IR is at hand. So the store only notes
// which folder of which cache has such a program. A single kernel's binary loads in 2 ms, and costs 0.15 s
// once.
//
// PoCL takes what it finds under the hash of a source, whatever state that is in. So what is compiled gets a
// symbol with a random name: PoCL finds nothing of it before, and only what a stored entry names, and has
// been checked, is built again. The name also tells the folder.
constexpr std::string_view kNote = "kept by the driver: ", kMarker = "dlb_build_";
constexpr size_t kMarkerDigits = 16;

std::string new_marker() {
  static std::mutex mutex;
  static std::random_device random;
  std::lock_guard<std::mutex> lock(mutex);
  char digits[kMarkerDigits + 1];
  std::snprintf(digits, sizeof digits, "%08x%08x", random(), random());
  return std::string(kMarker) + digits;
}

// Of a note or a binary; "" where there is none.
std::string marker_of(std::string_view stored) {
  const size_t at = stored.find(kMarker);
  if (at == std::string_view::npos) return "";
  const std::string_view marker = stored.substr(at, kMarker.size() + kMarkerDigits);
  const bool whole = marker.size() == kMarker.size() + kMarkerDigits &&
                     marker.find_first_not_of("0123456789abcdef", kMarker.size()) == std::string_view::npos;
  return whole ? std::string(marker) : "";
}

std::string marked(const std::string& source, const std::string& marker) {
  return marker.empty() ? source : source + "\nconstant int " + marker + " = 0;\n";
}

std::string driver_cache_of(const Device& device) {
  return device.late_code ? pocl_cache_identity() : "";
}

// Where the driver's own cache has what was stored, as far as that is known.
std::string folder_of(std::string_view stored) {
  if (!is_note(stored)) return driver_folder_of_binary(stored);
  const size_t space = stored.find(' ', kNote.size());
  const size_t end = stored.find(' ', space == std::string_view::npos ? space : space + 1);
  return end == std::string_view::npos ? "" : std::string(stored.substr(space + 1, end - space - 1));
}

// "" where the driver shall not be asked for the binary, and its cache's folder cannot be told.
std::string what_to_store(const Device& device, const Compiled& compiled, const std::string& marker) {
  const std::string cache = driver_cache_of(device);
  if (cache.empty()) return binary_of(compiled.program);
  size_t kernels = 1;
  DLB_CL(clGetProgramInfo, compiled.program, CL_PROGRAM_NUM_KERNELS, sizeof kernels, &kernels, nullptr);
  if (kernels > 1 && marker.empty()) return "";
  std::string folder = kernels > 1 ? find_driver_folder(marker, compiled.seconds) : "", stored;
  if (!folder.empty()) {
    stored = std::string(kNote) + cache + " " + folder + " " + marker;
  } else {
    stored = binary_of(compiled.program);
    folder = driver_folder_of_binary(stored);
  }
  if (!folder.empty()) record_driver_folder(folder);
  return stored;
}

cl_program load(Device& device, const std::string& stored, const std::string& source,
                const std::string& options, const Hash128& key) {
  const std::string cache = driver_cache_of(device);
  if (!is_note(stored)) {
    const std::string folder = cache.empty() ? "" : folder_of(stored);
    if (!folder.empty()) check_driver_folder(folder, stored);
    return load_binary(device, stored, options);
  }
  const std::string folder = folder_of(stored), marker = marker_of(stored);
  if (cache.empty() || folder.empty() || marker.empty() ||
      stored != std::string(kNote) + cache + " " + folder + " " + marker || !check_driver_folder(folder))
    return nullptr;
  return build_source(device, marked(source, marker), options, key);
}

// Builds that somebody waits for: how many go on, and when the last ended.
std::atomic<int> g_urgent_builds{0};
std::atomic<int64_t> g_urgent_build_end{INT64_MIN / 2};  // ns of the steady clock
constinit thread_local BuildMode t_mode;

int64_t now_ns() {
  return std::chrono::steady_clock::now().time_since_epoch() / std::chrono::nanoseconds(1);
}

class UrgentBuild {
 public:
  UrgentBuild() { g_urgent_builds += urgent_; }
  ~UrgentBuild() {
    if (!urgent_) return;
    g_urgent_build_end = now_ns();
    g_urgent_builds--;
  }
  UrgentBuild(const UrgentBuild&) = delete;

 private:
  const bool urgent_ = t_mode.awaited;
};

void prune_driver_cache() {
  static std::atomic<unsigned> stores{0};
  if (stores++ % DiskCache::kPruneEvery == 0) own_driver_programs().prune();
}

cl_program build(Device& device, const std::string& source, const std::string& options, const Hash128& key) {
  const UrgentBuild urgent;
  const std::string disk_key = program_key(device, options, source);
  DiskCache& disk = program_disk_cache();
  bool from_pack = false;
  if (auto stored = disk.load(disk_key, &from_pack))
    if (cl_program program = load(device, *stored, source, options, key)) {
      g_loaded++;
      g_loaded_from_pack += from_pack;
      return program;
    }
  if (t_mode.elsewhere)
    if (const auto seconds = compile_elsewhere(device, source, options))
      if (auto stored = disk.load(disk_key))
        if (cl_program program = load(device, *stored, source, options, key)) {
          note_compiled(device, program, options, *seconds);
          g_compiled_elsewhere++;
          return program;
        }
  if (!t_mode.awaited && compile_processes_stopped())
    throw Error(CL_INVALID_OPERATION, "the process ends: nothing is compiled that nobody waits for");
  // Where nothing can be stored, what PoCL has kept of the plain source is all there is.
  const std::string marker =
      !driver_cache_of(device).empty() && disk.can_store() ? new_marker() : std::string();
  const Compiled compiled = compile(device, marked(source, marker), options, key);
  const std::string stored = what_to_store(device, compiled, marker);
  if (!stored.empty() && disk.store(disk_key, stored) && device.late_code) prune_driver_cache();
  return compiled.program;
}

cl_kernel kernel_of(cl_program program, const std::string& name) {
  cl_int status = CL_SUCCESS;
  cl_kernel handle = api().clCreateKernel(program, name.c_str(), &status);
  if (status != CL_SUCCESS) throw_error(status, "clCreateKernel", "kernel " + name);
  return handle;
}

}  // namespace

// Its own lock makes other threads that want it wait for the one build.
struct ProgramEntry {
  Device& device;
  const Hash128 key;
  const ProgramSource source;  // with all options
  std::atomic<uint64_t> used;  // the number of the process's last launch of one of the kernels, about
  std::atomic<bool> held{false};
  std::mutex mutex;
  cl_program program = nullptr;
  std::unique_ptr<Error> failure;  // a program that does not build is not built again
  std::unordered_map<std::string, std::unique_ptr<Kernel>> kernels;

  ProgramEntry(Device& device, const Hash128& key, ProgramSource source)
      : device(device), key(key), source(std::move(source)), used(g_launches.load()) {}

  // The rest under mutex.
  void make() {
    if (failure) throw Error(*failure);
    if (program) return;
    try {
      program = build(device, source.source, source.options, key);
    } catch (const Error& error) {
      if (error.code == CL_BUILD_PROGRAM_FAILURE) failure = std::make_unique<Error>(error);
      throw;
    }
    used = g_launches.load();
    held = true;
    g_programs_held++;
  }

  void make(Kernel& kernel) {
    if (kernel.handle_.load()) return;
    check_room(device);  // for the machine code, which the first launch makes
    kernel.attach(kernel_of(program, kernel.name()));
  }

  // What waits in a queue keeps what it needs of them; the next launch makes them again.
  void release() {
    for (const auto& [name, kernel] : kernels) kernel->detach();
    api().clReleaseProgram(program);
    program = nullptr;
    held = false;
    g_programs_held--;
    g_programs_evicted++;
  }
};

namespace {

// Entries are never removed, as others keep their kernels; what the driver has of them is.
struct ProgramTable {
  std::mutex mutex;
  std::unordered_map<Hash128, std::unique_ptr<ProgramEntry>, Hash128Hasher> entries;
};
ProgramTable& program_table() {
  static auto* table = new ProgramTable;
  return *table;
}

std::string with_device_options(const Device& device, const std::string& options) {
  return options.empty() ? device.build_options : device.build_options + " " + options;
}

ProgramEntry& entry_for(Device& device, const std::string& source, const std::string& all_options) {
  const Hash128 key = hash128(std::to_string(device.index) + "\n" + all_options + "\n" + source);
  ProgramTable& table = program_table();
  std::lock_guard<std::mutex> lock(table.mutex);
  auto& entry = table.entries[key];
  if (!entry) entry = std::make_unique<ProgramEntry>(device, key, ProgramSource{source, all_options});
  return *entry;
}

size_t most_programs() {
  static const size_t most = [] {
    constexpr size_t kDefault = 2048;
    const uint64_t chosen = positive_setting("DLBACKEND_MAX_PROGRAMS", "programs");
    return chosen ? static_cast<size_t>(chosen) : kDefault;
  }();
  return most;
}

// Releases the programs that were used least recently, an eighth at once, where there are too many; never
// `wanted`, whose kernel is about to be launched. Nobody may hold an entry's lock.
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
  const size_t left = most - most / 8 - 1;  // beside the wanted one
  if (held.size() < most) return;
  std::sort(held.begin(), held.end());
  for (size_t i = 0; i < held.size() - left; ++i) {
    ProgramEntry& entry = *held[i].second;
    std::unique_lock<std::mutex> lock(entry.mutex, std::try_to_lock);
    if (lock && entry.program) entry.release();
  }
}

}  // namespace

BuildMode build_mode() noexcept {
  return t_mode;
}
WithBuildMode::WithBuildMode(BuildMode mode) noexcept : before_(t_mode) {
  t_mode = mode;
}
WithBuildMode::~WithBuildMode() {
  t_mode = before_;
}
double seconds_since_urgent_build() noexcept {
  return g_urgent_builds ? 0 : static_cast<double>(now_ns() - g_urgent_build_end) * 1e-9;
}

KernelStats kernel_stats() {
  return {g_compiled,
          g_compiled_elsewhere,
          g_loaded,
          g_loaded_from_pack,
          static_cast<double>(g_compile_ns) * 1e-9,
          g_launches,
          g_programs_evicted};
}

void forget_buffer_arguments() noexcept {
  g_buffer_epoch++;
}

constinit thread_local Recording* Recording::current_ = nullptr;

Recording::Recording(Wanted wanted) : wanted_(wanted) {
  if (current_) throw Error(CL_INVALID_OPERATION, "this thread records already");
  current_ = this;
}
Recording::~Recording() {
  current_ = nullptr;
}
void Recording::note(const std::string& source, const std::string& options) {
  unbuilt_ = true;
  if (wanted_ == kWhether) return;
  if (known_.insert(options + "\n" + source).second) programs_.push_back({source, options});
}

namespace {

const std::string& interned(const std::string& name) {
  static std::mutex mutex;
  static auto* names = new std::unordered_set<std::string>;
  std::lock_guard<std::mutex> lock(mutex);
  return *names->insert(name).first;
}

}  // namespace

Kernel::Kernel(Device& device, cl_kernel handle, const std::string& name)
    : device_(device), name_(interned(name)) {
  attach(handle);
}
Kernel::Kernel(Device& device, ProgramEntry& program, const std::string& name)
    : device_(device), program_(&program), name_(interned(name)) {}

void Kernel::attach(cl_kernel handle) {
  DLB_CL(clGetKernelWorkGroupInfo, handle, device_.id, CL_KERNEL_WORK_GROUP_SIZE, sizeof max_work_group_,
         &max_work_group_, nullptr);
  handle_.store(handle, std::memory_order_release);
}

void Kernel::detach() {
  std::lock_guard<std::mutex> lock(mutex_);
  if (const cl_kernel handle = handle_.exchange(nullptr)) api().clReleaseKernel(handle);
  for (Shadow& shadow : shadows_) shadow.size = 0;
}

void Kernel::make() {
  {
    std::lock_guard<std::mutex> lock(program_->mutex);
    program_->make();
    program_->make(*this);
  }
  make_room(*program_);
}

// The driver keeps what is still in a queue.
Kernel::~Kernel() {
  const cl_kernel handle = handle_.load();
  if (handle && !in_bad_fork()) api().clReleaseKernel(handle);
}

void check_buffer(Device& device, cl_mem buffer) {
  static const bool several = device_count() > 1;
  if (!several || !buffer) return;
  cl_context context = nullptr;
  DLB_CL(clGetMemObjectInfo, buffer, CL_MEM_CONTEXT, sizeof(cl_context), &context, nullptr);
  if (context == device.context()) [[likely]]
    return;
  int other = 0;
  while (other < device_count() && cl::device(other).context() != context) ++other;
  throw Error(CL_INVALID_MEM_OBJECT,
              "Expected all tensors to be on the same device, but found at least two devices, ocl:" +
                  std::to_string(device.index) + " and ocl:" + std::to_string(other) + "!");
}

void Kernel::begin_arguments() {
  const uint64_t epoch = g_buffer_epoch.load(std::memory_order_relaxed);
  if (epoch == buffer_epoch_) return;
  for (Shadow& shadow : shadows_) shadow.size = 0;
  buffer_epoch_ = epoch;
}

void Kernel::set_argument(cl_uint position, size_t size, const void* value, bool is_buffer) {
  if (is_buffer) check_buffer(device_, *static_cast<const cl_mem*>(value));
  const cl_int status = api().clSetKernelArg(handle_.load(std::memory_order_relaxed), position, size, value);
  if (status != CL_SUCCESS) [[unlikely]]
    throw_error(status, "clSetKernelArg", "argument " + std::to_string(position) + " of kernel " + name_);
}

void Kernel::enqueue(Queue& queue, const Range& range) {
  Command command(queue, CommandKind::kKernel, name_.c_str());
  command.set_range(range);
  const cl_int status =
      api().clEnqueueNDRangeKernel(command.queue(), handle_.load(std::memory_order_relaxed), range.dims,
                                   nullptr, range.global, range.local, 0, nullptr, command.event());
  if (status != CL_SUCCESS) [[unlikely]]
    throw_error(status, "clEnqueueNDRangeKernel", "kernel " + name_ + " on " + device_.name);
  const uint32_t number = queue.launches.fetch_add(1, std::memory_order_relaxed);
  queue.recent[number % queue.recent.size()].store(name_.c_str(), std::memory_order_relaxed);
  const uint64_t launch = g_launches.fetch_add(1, std::memory_order_relaxed);
  if (program_) program_->used.store(launch, std::memory_order_relaxed);
  if (device_.flush_needed && number % kFlushEvery == 0) DLB_CL(clFlush, command.queue());
}

void Kernel::pass_milestone(Queue& queue) {
  cl_event marker = nullptr;
  const cl_command_queue handle = queue.handle;
  DLB_CL(clEnqueueMarkerWithWaitList, handle, 0, nullptr, &marker);
  DLB_CL(clFlush, handle);
  const cl_event previous = queue.milestone.exchange(marker);
  if (!previous) return;
  const cl_int status = api().clWaitForEvents(1, &previous);
  api().clReleaseEvent(previous);
  if (status != CL_SUCCESS)
    throw_error(
        status, "clWaitForEvents",
        queue.device->name +
            ", reported late: it belongs to one of the last kernels, oldest first: " + recent_kernels(queue));
}

Kernel& get_kernel(Device& device, const std::string& source, const std::string& options,
                   const std::string& name) {
  const std::string all_options = with_device_options(device, options);
  ProgramEntry& entry = entry_for(device, source, all_options);
  Kernel* found = nullptr;
  {
    std::lock_guard<std::mutex> lock(entry.mutex);
    Recording* recording = Recording::current();
    const bool later = recording && !entry.program && !entry.failure;
    if (later)
      recording->note(source, options);
    else
      entry.make();
    auto& kernel = entry.kernels[name];
    if (!kernel) kernel = std::make_unique<Kernel>(device, entry, name);
    if (!later) entry.make(*kernel);
    found = kernel.get();
  }
  make_room(entry);
  return *found;
}

std::shared_ptr<Kernel> get_own_kernel(Device& device, const std::string& source, const std::string& options,
                                       const std::string& name) {
  const std::string all_options = with_device_options(device, options);
  cl_program program = build(device, source, all_options, hash128(all_options + "\n" + source));
  try {
    auto kernel = std::make_shared<Kernel>(device, kernel_of(program, name), name);
    api().clReleaseProgram(program);  // the kernel keeps it
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
      } catch (...) {  // the first use throws it again
      }
      std::lock_guard<std::mutex> lock(mutex);
      done++;
      stop = stop || (progress && !progress(done));
      if (stop) return;
    }
  };
  if (threads == 0) threads = std::max(1u, std::thread::hardware_concurrency());
  const size_t helpers = std::min<size_t>(threads, programs.size());
  device.context();  // throws here, not in a thread
  const WithBuildMode mode({.awaited = true, .elsewhere = true});
  run_on_threads(helpers, work);
  return ready;
}

void compile_into_cache(Device& device, const std::string& source, const std::string& options) {
  cl_program program = build(device, source, options, hash128(options + "\n" + source));
  // Drivers may leave the machine code to this, which their own caches then keep.
  std::vector<cl_kernel> kernels(64);
  cl_uint count = 0;
  const cl_int status =
      api().clCreateKernelsInProgram(program, static_cast<cl_uint>(kernels.size()), kernels.data(), &count);
  for (cl_uint i = 0; status == CL_SUCCESS && i < count; ++i) api().clReleaseKernel(kernels[i]);
  api().clReleaseProgram(program);
}

std::string complete_binary(Device& device, const std::string& key) {
  const size_t options = device.cache_tag.size() + 1, source = key.find('\n', options) + 1;
  if (key.compare(0, options, device.cache_tag + "\n") != 0 || source == 0)
    throw Error(CL_INVALID_VALUE, "not a key of a program of " + device.name);
  const auto stored = program_disk_cache().load(key);
  const std::string folder = stored && device.late_code ? folder_of(*stored) : "";
  if (!folder.empty()) check_driver_folder(folder, is_note(*stored) ? "" : *stored);
  const std::string text = marked(key.substr(source), stored ? marker_of(*stored) : "");
  const Compiled compiled = compile(device, text, key.substr(options, source - 1 - options), hash128(key));
  std::string binary = binary_of(compiled.program);
  api().clReleaseProgram(compiled.program);
  return binary;
}

bool is_note(std::string_view stored) {
  return stored.substr(0, kNote.size()) == kNote;
}

std::string recent_kernels(const Queue& queue) {
  std::string names;
  const uint32_t size = static_cast<uint32_t>(queue.recent.size());
  const uint32_t end = queue.launches.load(), count = std::min(end, size);
  for (uint32_t i = end - count; i != end; ++i)
    if (const char* name = queue.recent[i % size].load())
      names += (names.empty() ? "" : ", ") + std::string(name);
  return names;
}

}  // namespace dlb::cl
