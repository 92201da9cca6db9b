// Programs and kernels: built once per process however many threads ask, loaded from disk where any process
// built them before, launched without allocation.
#pragma once
#include <array>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <type_traits>
#include <unordered_set>
#include <vector>

#include "cl/api.h"
#include "cl/device.h"
#include "cl/queue.h"

namespace dlb::cl {

// What this process compiled and ran; see dlbackend.kernel_stats().
struct KernelStats {
  uint64_t compiled = 0;            // programs built from source
  uint64_t compiled_elsewhere = 0;  // of these by other processes for this one (cl/compile_process.h)
  uint64_t loaded =
      0;  // programs loaded from the disk cache, a pack, or the driver's cache by a note in ours
  uint64_t loaded_from_pack = 0;
  double compile_seconds = 0;  // spent building from source, summed over threads and processes
  uint64_t launches = 0;
  uint64_t evicted = 0;  // programs that the driver gave up, as DLBACKEND_MAX_PROGRAMS were there
};
KernelStats kernel_stats();

// How the programs that a thread asks for are built.
struct BuildMode {
  bool awaited = true;  // somebody waits for them
  bool elsewhere =
      false;  // another process may compile them (cl/compile_process.h): worth its start for many
};
BuildMode build_mode() noexcept;

// Sets the calling thread's mode while it lives.
class WithBuildMode {
 public:
  explicit WithBuildMode(BuildMode mode) noexcept;
  ~WithBuildMode();
  WithBuildMode(const WithBuildMode&) = delete;

 private:
  const BuildMode before_;
};

// Since the last build or load that somebody waited for ended; 0 while there is one.
double seconds_since_urgent_build() noexcept;

// A kernel argument of local memory, in bytes.
struct Local {
  size_t bytes;
};

// Throws Error, in PyTorch's words, for a buffer of another device, which drivers do not survive. Kernels do
// so for arguments that changed. Costs nothing where there is one device only.
void check_buffer(Device& device, cl_mem buffer);

// Invalidates what kernels remember of their buffer arguments; called when a buffer is released.
void forget_buffer_arguments() noexcept;

struct ProgramSource {
  std::string source, options;  // as for get_kernel()
};

// While it lives, its thread only finds out which programs it needs: get_kernel() notes what is not built yet
// instead of building it, launches and copies of tensors do nothing, and a transfer to the host throws. What
// is uploaded for kernels' own use still is: it may be kept for later launches. No two on one thread.
class Recording {
 public:
  // kWhether only finds out whether something is not built: programs() stays empty.
  enum Wanted { kPrograms, kWhether };
  explicit Recording(Wanted wanted = kPrograms);
  ~Recording();
  Recording(const Recording&) = delete;
  static Recording* current() noexcept { return current_; }

  void note(const std::string& source, const std::string& options);
  void note_unbuilt() { unbuilt_ = true; }
  Wanted wanted() const { return wanted_; }
  bool unbuilt() const { return unbuilt_; }
  // In the order in which they were first asked for, each once.
  const std::vector<ProgramSource>& programs() const { return programs_; }

 private:
  static constinit thread_local Recording* current_;  // constinit: read at every launch without a guard
  const Wanted wanted_;
  bool unbuilt_ = false;
  std::vector<ProgramSource> programs_;
  std::unordered_set<std::string> known_;
};

// A program being built or built, with its kernels.
struct ProgramEntry;

// One kernel of a program.
class Kernel {
 public:
  Kernel(Device& device, cl_kernel handle, const std::string& name);
  Kernel(Device& device, ProgramEntry& program, const std::string& name);  // made when it is needed
  ~Kernel();
  Kernel(const Kernel&) = delete;

  // Sets the arguments and enqueues. Arguments: cl_mem, Local, arithmetic values and trivially copyable
  // structs laid out as the kernel declares them. Thread-safe. Throws Error with the kernel's name. An empty
  // range does nothing.
  template <class... Args>
  void launch(Queue& queue, const Range& range, const Args&... args) {
    if (range.global[0] == 0 || range.global[1] == 0 || range.global[2] == 0) return;
    if (Recording::current()) [[unlikely]]
      return;
    {
      const std::unique_lock<std::mutex> lock = lock_made();
      begin_arguments();
      cl_uint position = 0;
      (set(position++, args), ...);
      enqueue(queue, range);
    }
    throttle(queue);
  }

  // Takes the arguments one after the other where their number is only known at run time.
  class Arguments {
   public:
    template <class T>
    void add(const T& value) {
      kernel_.set(position_++, value);
    }
    void add_bytes(const void* value, size_t size) { kernel_.set_bytes(position_++, size, value); }

   private:
    friend class Kernel;
    explicit Arguments(Kernel& kernel) : kernel_(kernel) {}
    Kernel& kernel_;
    cl_uint position_ = 0;
  };

  // As launch(), with arguments added by `fill(Arguments&)`.
  template <class Fill>
  void launch_with(Queue& queue, const Range& range, Fill&& fill) {
    if (range.global[0] == 0 || range.global[1] == 0 || range.global[2] == 0) return;
    if (Recording::current()) [[unlikely]]
      return;
    {
      const std::unique_lock<std::mutex> lock = lock_made();
      begin_arguments();
      Arguments arguments(*this);
      fill(arguments);
      enqueue(queue, range);
    }
    throttle(queue);
  }

  // False where a recording gave it out and nothing has launched it since, and where its program was evicted.
  bool is_made() const { return handle_.load(std::memory_order_acquire) != nullptr; }
  const std::string& name() const { return name_; }
  Device& device() const { return device_; }
  // CL_KERNEL_WORK_GROUP_SIZE: the largest work-group this kernel can run with.
  size_t max_work_group() {
    if (!handle_.load(std::memory_order_acquire)) make();
    return max_work_group_;
  }

 private:
  static constexpr size_t kMaxArguments = 48, kShadowBytes = 64;

  template <class T>
  void set(cl_uint position, const T& value) {
    static_assert(std::is_trivially_copyable_v<T>);
    if constexpr (std::is_same_v<T, Local>)
      set_bytes(position, value.bytes, nullptr);
    else
      set_bytes(position, sizeof(T), &value, std::is_same_v<T, cl_mem>);
  }
  // Skips the driver's call when the argument already has this value: drivers take 20 to 900 ns for one.
  void set_bytes(cl_uint position, size_t size, const void* value, bool is_buffer = false) {
    if (position < kMaxArguments && value && size <= kShadowBytes) [[likely]] {
      Shadow& shadow = shadows_[position];
      if (shadow.size == size && std::memcmp(shadow.bytes, value, size) == 0) return;
      set_argument(position, size, value, is_buffer);
      shadow.size = static_cast<uint32_t>(size);
      std::memcpy(shadow.bytes, value, size);
    } else {
      set_argument(position, size, value, is_buffer);
    }
  }
  friend ProgramEntry;
  // With the driver's kernel there, which another thread may release while nobody holds the lock.
  std::unique_lock<std::mutex> lock_made() {
    std::unique_lock<std::mutex> lock(mutex_);
    while (!handle_.load(std::memory_order_acquire)) {
      lock.unlock();
      make();
      lock.lock();
    }
    return lock;
  }
  void attach(cl_kernel handle);
  void detach();
  void make();  // the program, where a recording left it unbuilt or it was evicted, and the driver's kernel
  void begin_arguments();
  void set_argument(cl_uint position, size_t size, const void* value, bool is_buffer);
  void enqueue(Queue& queue, const Range& range);
  static void throttle(Queue& queue) {
    if (queue.launches.load(std::memory_order_relaxed) % (kMostInFlight / 2) == 0) [[unlikely]]
      pass_milestone(queue);
  }
  static void pass_milestone(Queue& queue);

  struct Shadow {
    uint32_t size = 0;
    alignas(8) unsigned char bytes[kShadowBytes];
  };
  Device& device_;
  ProgramEntry* program_ = nullptr;
  // Set by the constructor or under the program's lock; taken away under both locks.
  std::atomic<cl_kernel> handle_{nullptr};
  const std::string& name_;  // never destroyed: queues name their last kernels
  size_t max_work_group_ = 1;
  uint64_t buffer_epoch_ = 0;
  std::mutex mutex_;
  std::array<Shadow, kMaxArguments> shadows_;
};

// The kernel `name` of the program with this source and these build options (added to the device's own),
// built or loaded on the first request. Thread-safe, never holds a global lock while building. Throws Error
// with the build log, and the name of a file that holds the numbered source, when the program does not build.
// The kernel lives as long as the process. What the driver keeps of its program may go when others are used
// more (DLBACKEND_MAX_PROGRAMS); the next launch loads it again.
Kernel& get_kernel(Device& device, const std::string& source, const std::string& options,
                   const std::string& name);

// Builds or loads programs ahead of their first use, in up to `threads` threads (0: as many as the host has
// cores), and returns how many are ready. One that does not build is left for its first use to report.
// `progress(done)` is called after each program, by one thread at a time; where it returns false, no more are
// started.
size_t prefetch(Device& device, const std::vector<ProgramSource>& programs, unsigned threads = 0,
                const std::function<bool(size_t)>& progress = {});

// Compiles a program with all its kernels, as `options` say (the device's own included), and stores it in the
// disk cache, unless it is there. Throws Error.
void compile_into_cache(Device& device, const std::string& source, const std::string& options);

// The binary of the program of a program_key() of this device, built from its source by the driver. On
// devices with late_code it holds the machine code of every kernel and work-group size that the driver's own
// cache has, which what was stored when the program was new does not. Throws Error.
std::string complete_binary(Device& device, const std::string& key);

// Whether an entry of the program store holds no binary but a note that the driver's own cache has the
// program, which says nothing on other machines.
bool is_note(std::string_view stored);

// As get_kernel(), for a program that few will want: the kernel belongs to the caller, and its program goes
// with it. Only the disk cache remembers it.
std::shared_ptr<Kernel> get_own_kernel(Device& device, const std::string& source, const std::string& options,
                                       const std::string& name);

// Names of the last kernels launched on the queue, oldest first, for messages about errors reported late.
std::string recent_kernels(const Queue& queue);

}  // namespace dlb::cl
