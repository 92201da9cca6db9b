// Reads the counters.
#include "cl/statistics.h"

#include "cl/builders.h"
#include "cl/submitter.h"

namespace dlb::cl {

KernelStats kernel_stats() {
  Submitter::drain_all();
  wait_for_builders();
  return {g_counters.compiled,         g_counters.compiled_elsewhere,
          g_counters.optimised,        g_counters.loaded,
          g_counters.loaded_from_pack, static_cast<double>(g_counters.compile_ns) * 1e-9,
          g_counters.launches,         g_counters.evicted};
}

}  // namespace dlb::cl
