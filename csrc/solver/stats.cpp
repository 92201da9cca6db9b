#include "solver/stats.h"

namespace dlb::solver {

FindStats& find_stats() {
  static auto* stats = new FindStats;
  return *stats;
}

}  // namespace dlb::solver
