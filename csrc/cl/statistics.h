// Counts of what this process built, loaded and launched.
#pragma once
#include <atomic>
#include <cstdint>

namespace dlb::cl {

// Counts of what this process compiled and ran; see dlbackend.kernel_stats().
struct KernelStats {
  uint64_t compiled = 0;            // programs built from source
  uint64_t compiled_elsewhere = 0;  // of these, by other processes for this one (cl/compile_process.h)
  uint64_t optimised = 0;  // programs that took the place of their first tier (cl/tiers.h), not counted again
  uint64_t loaded = 0;     // programs loaded from the disk cache, from a pack, or from the driver's own cache
  uint64_t loaded_from_pack = 0;
  double compile_seconds = 0;  // spent building from source, summed over threads and processes
  uint64_t launches = 0;
  uint64_t evicted = 0;  // programs that were released because DLBACKEND_MAX_PROGRAMS others were in use
};
// The counts up to now, with what is being launched and built. Thread-safe.
KernelStats kernel_stats();

// The counters behind kernel_stats(), for the files of this folder.
struct Counters {
  std::atomic<uint64_t> compiled{0}, compiled_elsewhere{0}, optimised{0}, loaded{0}, loaded_from_pack{0};
  std::atomic<uint64_t> compile_ns{0}, launches{0}, evicted{0};
};
inline constinit Counters g_counters;

// KernelStats::compiled at this moment. Never waits.
inline uint64_t programs_compiled() noexcept {
  return g_counters.compiled.load(std::memory_order_relaxed);
}

}  // namespace dlb::cl
