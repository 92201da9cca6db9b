// Counts of the search for solvers since the process started; dlbackend.solvers.stats() shows them.
#pragma once
#include <atomic>
#include <cstdint>

namespace dlb::solver {

struct FindStats {
  std::atomic<uint64_t> hits{0};            // problems that the store knew
  std::atomic<uint64_t> misses{0};          // problems that it did not
  std::atomic<uint64_t> bucket_choices{0};  // sizes that first ran what another size of their bucket runs
  std::atomic<uint64_t> searches{0};        // problems whose other solutions were looked at between runs
  std::atomic<uint64_t> measured{0};        // measurements of a solution
  std::atomic<uint64_t> verified{0};        // solutions compared with the reference
  std::atomic<uint64_t> rejected{0};        // solutions found wrong, or that do not build
  std::atomic<uint64_t> swapped{0};         // times a faster solution took over
  std::atomic<uint64_t> specialised{0};     // programs built for one problem
  std::atomic<uint64_t> evicted{0};         // specialised solutions given up because there were too many
  std::atomic<uint64_t> benchmark_ns{0};    // nanoseconds of measuring while the caller waited
};

FindStats& find_stats();

}  // namespace dlb::solver
