// Kernels by what their source is made of. A launch whose kernel is known makes no text and takes no lock.
#pragma once
#include <array>
#include <functional>
#include <memory>
#include <mutex>
#include <unordered_map>

#include "cl/program_table.h"

namespace dlb {

// The process's kernels of one kind of key, which says all that the source depends on but the device. A key
// is a small value with ==; one that refers to a caller's memory has a member interned() that
// returns an equal key which lives as long as the process.
template <class Key, class Hash = std::hash<Key>>
class KernelCache {
 public:
  // The kernel of `key` on `device`. `make()` gets it from cl::get_kernel() where no thread has asked before,
  // and again while it is not built and has to be noted or built now (cl::is_settled). Thread-safe. Throws
  // what `make` throws.
  template <class Make>
  static cl::Kernel& get(cl::Device& device, const Key& key, Make&& make) {
    thread_local const auto slots = std::make_unique<std::array<Slot, kSlots>>();
    const size_t first = Hash{}(key)*kGolden >> (64 - kSlotBits);
    Slot* place = &(*slots)[first];
    // Kernels that a loop alternates must not evict each other.
    for (size_t i = 0; i < kProbes; ++i) {
      Slot& slot = (*slots)[(first + i) % kSlots];
      if (slot.device == &device && slot.key == key) [[likely]] {
        if (cl::is_settled(*slot.kernel)) [[likely]]
          return *slot.kernel;
        place = &slot;
        break;
      }
      if (!slot.kernel) {
        place = &slot;
        break;
      }
    }
    cl::Kernel& kernel = shared(device, key, make);
    *place = {lasting(key), &device, &kernel};
    return kernel;
  }

 private:
  struct Slot {
    Key key;
    cl::Device* device = nullptr;
    cl::Kernel* kernel = nullptr;
  };
  static constexpr size_t kSlotBits = 9, kSlots = 1 << kSlotBits, kProbes = 8;
  static constexpr size_t kGolden = 0x9E3779B97F4A7C15ull;

  static Key lasting(const Key& key) {
    if constexpr (requires { key.interned(); })
      return key.interned();
    else
      return key;
  }

  // The table behind the threads' slots, for threads that are new.
  template <class Make>
  static cl::Kernel& shared(cl::Device& device, const Key& key, Make&& make) {
    static std::mutex mutex;
    static auto* kernels = new std::unordered_map<cl::Device*, std::unordered_map<Key, cl::Kernel*, Hash>>;
    {
      std::lock_guard<std::mutex> lock(mutex);
      auto& of_device = (*kernels)[&device];
      if (const auto it = of_device.find(key); it != of_device.end() && cl::is_settled(*it->second))
        return *it->second;
    }
    cl::Kernel& kernel = make();
    std::lock_guard<std::mutex> lock(mutex);
    (*kernels)[&device][lasting(key)] = &kernel;
    return kernel;
  }
};

}  // namespace dlb
