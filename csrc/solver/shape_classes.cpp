#include "solver/shape_classes.h"

#include <algorithm>
#include <mutex>
#include <unordered_set>

#include "solver/op.h"
#include "solver/recent_map.h"

namespace dlb::solver {

size_t sizes_met(const Problem& problem) {
  constexpr size_t kClasses = 4096;  // shape classes in a generation of the map
  static std::mutex mutex;
  static auto* classes = new RecentMap<uint64_t, std::unordered_set<uint64_t>>(kClasses);
  const uint64_t id = hash(problem);
  size_t most = 0;
  for (const uint64_t shape_class : problem.op->shape_classes(problem)) {
    std::lock_guard<std::mutex> lock(mutex);
    auto* members = classes->find(shape_class);
    if (!members) members = &classes->insert(shape_class, {});
    if (members->size() <= kManySizes) members->insert(id);
    most = std::max(most, members->size());
  }
  return most;
}

}  // namespace dlb::solver
