// Kernels and their launch, which allocates nothing.
#pragma once
#include <array>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <mutex>
#include <string>
#include <type_traits>

#include "cl/device.h"
#include "cl/library.h"
#include "cl/queue.h"
#include "cl/recording.h"

namespace dlb::cl {

// A kernel argument of local memory, in bytes.
struct Local {
  size_t bytes;
};

// Throws Error, in PyTorch's words, for a buffer of another device: drivers crash on those. Kernels check
// each buffer that they are given anew. Costs nothing where there is one device only.
void check_buffer(Device& device, cl_mem buffer);

// Makes all kernels set their buffer arguments anew. It is called when a buffer is released, because the next
// buffer may get the same handle.
void forget_buffer_arguments() noexcept;

// A program being built or built, with its kernels.
struct ProgramEntry;

// One kernel of a program.
class Kernel {
 public:
  Kernel(Device& device, cl_kernel handle, const std::string& name);
  // Of a program that may not be built yet: the first launch makes the driver's kernel.
  Kernel(Device& device, ProgramEntry& program, const std::string& name);
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

  // Takes arguments one after the other, for kernels whose number of arguments is only known at run time.
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

  // Whether the driver's kernel exists. It does not while a recording's kernel was never launched, and after
  // the program was evicted.
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

// Names of the last kernels launched on the queue, oldest first, for messages about errors reported late.
std::string recent_kernels(const Queue& queue);

}  // namespace dlb::cl
