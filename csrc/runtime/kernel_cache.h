// Kernels by what their source is made of. A launch whose kernel is known makes no text and takes no lock.
#pragma once
#include <array>
#include <functional>
#include <memory>
#include <mutex>
#include <unordered_map>

#include "cl/program_table.h"

namespace dlb {

// The process's kernels for one type of key. A key says everything that the source depends on except the
// device. It is a small value with ==. One that refers to its caller's memory has a member interned(), which
// returns an equal key that stays valid as long as the process.
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
    const Key kept = lasting(key);
    cl::Kernel& kernel = shared(device, kept, make);
    *place = {kept, &device, &kernel};
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
    cl::Kernel* known = nullptr;
    {
      std::lock_guard<std::mutex> lock(mutex);
      known = (*kernels)[&device][key];
    }
    if (known && cl::is_settled(*known)) return *known;
    cl::Kernel& kernel = make();
    std::lock_guard<std::mutex> lock(mutex);
    (*kernels)[&device][key] = &kernel;
    return kernel;
  }
};

}  // namespace dlb
