// Kernels and their launch, which allocates nothing.
#pragma once
#include <array>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <type_traits>

#include "cl/device.h"
#include "cl/library.h"
#include "cl/queue.h"
#include "cl/recording.h"
#include "cl/submitter.h"
#include "cl/tape.h"

namespace dlb::cl {

// A kernel argument of local memory, in bytes.
struct Local {
  size_t bytes;
};

// Throws Error, in PyTorch's words, for a buffer of another device: drivers crash on those. Kernels check
// each buffer that they are given anew. Costs nothing where there is one device only.
void check_buffer(Device& device, cl_mem buffer);

// Gives a buffer back to the driver, which keeps it for the launches in flight. Kernels set all their
// arguments anew, because the next buffer may get the same handle.
void release_buffer(cl_mem buffer) noexcept;
// For a buffer that no queue with a thread (cl/submitter.h) was given: does not wait for launches.
void release_scratch_buffer(cl_mem buffer) noexcept;

// A program being built or built, with its kernels.
struct ProgramEntry;
// Notes how a kernel is launched (cl/launch_sample.h).
class LaunchSampler;

// Where in a struct of arguments a LiveWord is that may have a source. A struct that has some is given to
// Kernel::launch() as a type with plain(), which returns what the kernel gets, and live_parts().
struct LivePart {
  size_t offset;
  const uint64_t* source;
};

// Enqueues a kernel of the driver's whose arguments are set, and counts the launch; returns its number on the
// queue. `end`, if given, gets the command's event where the queue is not profiled. Throws Error.
uint32_t enqueue_kernel(Queue& queue, cl_kernel kernel, const std::string& name, const Range& range,
                        cl_event* end = nullptr);

// Bounds how far the host runs ahead: to be called behind each enqueue_kernel(), without locks. May wait.
void pass_milestone(Queue& queue);
inline void throttle(Queue& queue) {
  if (queue.launches.load(std::memory_order_relaxed) % (kMostInFlight / 2) == 0) [[unlikely]]
    pass_milestone(queue);
}

// One kernel of a program.
class Kernel {
 public:
  Kernel(Device& device, cl_kernel handle, const std::string& name);
  // A kernel of a program that may not be built yet: the first launch makes the driver's kernel.
  Kernel(Device& device, ProgramEntry& program, const std::string& name);
  ~Kernel();
  Kernel(const Kernel&) = delete;

  // Takes arguments one after the other, for kernels whose number of arguments is only known at run time.
  class Arguments {
   public:
    template <class T>
    void add(const T& value) {
      static_assert(std::is_trivially_copyable_v<T>);
      if constexpr (std::is_same_v<T, Local>)
        set(nullptr, value.bytes, false);
      else if constexpr (std::is_same_v<T, LiveWord>)
        add_live(value.value, std::array{LivePart{0, value.source}});
      else if constexpr (requires { value.live_parts(); })
        add_live(value.plain(), value.live_parts());
      else
        set(&value, sizeof(T), std::is_same_v<T, cl_mem>);
    }
    void add_bytes(const void* value, size_t size) { set(value, size, false); }

   private:
    friend class Kernel;
    friend Submitter;
    Arguments(Kernel& kernel, LaunchWriter* later) : kernel_(kernel), later_(later) {}
    template <class T>
    void add_live(const T& value, std::span<const LivePart> parts) {
      if (later_)
        for (const LivePart& part : parts)
          if (part.source) [[unlikely]]
            later_->note_source(part.offset, part.source);
      set(&value, sizeof(T), false);
    }
    // A null value stands for local memory.
    void set(const void* value, size_t size, bool is_buffer) {
      if (later_) {
        if (is_buffer) check_buffer(kernel_.device_, *static_cast<const cl_mem*>(value));
        later_->add(value, size, is_buffer);
      } else {
        kernel_.set_bytes(position_++, size, value, is_buffer);
      }
    }
    Kernel& kernel_;
    LaunchWriter* const later_;  // what the arguments are for, if not the kernel itself
    cl_uint position_ = 0;
  };

  // Sets the arguments and enqueues, or has the queue's thread do so, which then reports errors late.
  // Arguments: cl_mem, Local, arithmetic values and trivially copyable structs laid out as the kernel
  // declares them. Thread-safe. Throws Error with the kernel's name. An empty range does nothing.
  template <class... Args>
  void launch(Queue& queue, const Range& range, const Args&... args) {
    launch_with(queue, range, [&](Arguments& list) { (list.add(args), ...); });
  }

  // As launch(), with arguments added by `fill(Arguments&)`, which may be called twice.
  template <class Fill>
  void launch_with(Queue& queue, const Range& range, Fill&& fill) {
    if (range.global[0] == 0 || range.global[1] == 0 || range.global[2] == 0) return;
    if (Recording::current()) [[unlikely]]
      return;
    LaunchSink* const sink = queue.sink.load(std::memory_order_acquire);
    if (sink && sink->is_tape()) [[unlikely]]
      return record(static_cast<Tape&>(*sink), range, fill);
    if (Kernel* const other = stand_in()) [[unlikely]]
      return other->launch_with(queue, range, fill);
    if (sink) {
      // A child of fork() has no thread that launches, and locks that nobody gives back.
      if (in_bad_fork()) [[unlikely]]
        api();  // throws
      Submitter* const submitter = static_cast<Submitter*>(sink);
      if (is_made() ? submitter->takes_next() : submitter->takes_unmade() && will_be_made()) {
        Submitter::Launch launch(*submitter, *this, range);
        Arguments arguments(*this, &launch);
        fill(arguments);
        if (launch.finish()) return;
      }
      submitter->drain();
    }
    launch_now(queue, range, fill);
  }

  // Whether the driver's kernel exists. It does not while a recording's kernel was never launched, while the
  // build is deferred, and after the program was evicted.
  bool is_made() const { return handle_.load(std::memory_order_acquire) != nullptr; }
  // Whether its build is deferred: then another thread makes it, now or soon. Never waits.
  bool will_be_made() noexcept;
  // The kernel of the program's first tier where this thread's launches go to that (cl/tiers.h), else null.
  Kernel* stand_in() noexcept {
    return stand_in_.load(std::memory_order_acquire) ? stand_in_here() : nullptr;
  }
  const std::string& name() const { return name_; }
  Device& device() const { return device_; }
  // CL_KERNEL_WORK_GROUP_SIZE: the largest work-group this kernel can run with.
  size_t max_work_group() {
    if (Kernel* const other = stand_in()) return other->max_work_group();
    if (!handle_.load(std::memory_order_acquire)) make();
    return max_work_group_;
  }

 private:
  static constexpr size_t kMaxArguments = 48, kShadowBytes = 64;

  // Puts the launch on a tape.
  template <class Fill>
  void record(Tape& tape, const Range& range, Fill&& fill) {
    Tape::Launch launch(tape, *this, range);
    Arguments arguments(*this, &launch);
    fill(arguments);
    launch.finish();
  }
  // A kernel of the driver's with arguments of its own, which the caller releases. It keeps the program.
  // Builds that where it is not built.
  cl_kernel duplicate();
  // Launches on the calling thread.
  template <class Fill>
  void launch_now(Queue& queue, const Range& range, Fill&& fill) {
    {
      const std::unique_lock<std::mutex> lock = lock_made();
      begin_arguments();
      Arguments arguments(*this, nullptr);
      fill(arguments);
      enqueue(queue, range);
    }
    throttle(queue);
  }
  // Skips the driver's call when the argument already has this value: drivers take 20 to 900 ns for one.
  void set_bytes(cl_uint position, size_t size, const void* value, bool is_buffer) {
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
  friend Submitter;
  friend Tape;
  friend class Tiers;
  // Locks the kernel with the driver's kernel made. While nobody holds the lock another thread may release
  // that again, hence the loop.
  std::unique_lock<std::mutex> lock_made() {
    std::unique_lock<std::mutex> lock(mutex_);
    while (!handle_.load(std::memory_order_acquire)) {
      lock.unlock();
      make();
      lock.lock();
    }
    return lock;
  }
  void attach(cl_kernel handle);  // takes over the driver's kernel
  void detach();                  // releases it
  void make();                    // builds the program where that is not built, and attaches its kernel
  Kernel* stand_in_here() noexcept;
  void begin_arguments();
  void set_argument(cl_uint position, size_t size, const void* value, bool is_buffer);
  void enqueue(Queue& queue, const Range& range);
  struct Shadow {
    uint32_t size = 0;
    alignas(8) unsigned char bytes[kShadowBytes];
  };
  Device& device_;
  ProgramEntry* program_ = nullptr;
  // Set by the constructor or under the program's lock; taken away under both locks.
  std::atomic<cl_kernel> handle_{nullptr};
  std::atomic<Kernel*> stand_in_{nullptr};  // of the first tier; lives as long as the process
  std::unique_ptr<LaunchSampler> sampler_;  // of a stand-in; set before its first launch
  const std::string& name_;                 // never destroyed: queues name their last kernels
  size_t max_work_group_ = 1;
  uint64_t buffer_epoch_ = 0;
  std::mutex mutex_;
  std::array<Shadow, kMaxArguments> shadows_;
};

// Names of the last kernels launched on the queue, oldest first, for messages about errors reported late.
std::string recent_kernels(const Queue& queue);

}  // namespace dlb::cl
