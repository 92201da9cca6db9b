// Remembers what was chosen per problem. Bounded; a hit is one hash look-up and allocates nothing.
#pragma once
#include <memory>
#include <mutex>
#include <unordered_map>

#include "solver/solver.h"

namespace dlb::solver {

template <class Problem>
class InvokerCache {
 public:
  using Entry = std::shared_ptr<const Solution<Problem>>;

  // Two generations bound the cache without bookkeeping on a hit: when the young one is full, the old one is
  // dropped and the young one takes its place; what is still in use moves back on its next hit.
  static constexpr size_t kGeneration = 4096;

  // The remembered solution, or null.
  Entry find(const Problem& problem) {
    std::lock_guard<std::mutex> lock(mutex_);
    if (auto it = young_.find(problem); it != young_.end()) [[likely]]
      return it->second;
    auto it = old_.find(problem);
    if (it == old_.end()) return nullptr;
    Entry entry = it->second;
    insert_locked(problem, entry);
    return entry;
  }

  void insert(const Problem& problem, Entry entry) {
    std::lock_guard<std::mutex> lock(mutex_);
    insert_locked(problem, std::move(entry));
  }

  void clear() {
    std::lock_guard<std::mutex> lock(mutex_);
    young_.clear();
    old_.clear();
  }

 private:
  struct Hash {
    size_t operator()(const Problem& p) const noexcept { return hash(p); }
  };
  struct Same {
    bool operator()(const Problem& a, const Problem& b) const noexcept { return same(a, b); }
  };
  using Map = std::unordered_map<Problem, Entry, Hash, Same>;

  void insert_locked(const Problem& problem, Entry entry) {
    if (young_.size() >= kGeneration) {
      old_ = std::move(young_);
      young_.clear();
    }
    young_.insert_or_assign(problem, std::move(entry));
  }

  std::mutex mutex_;
  Map young_, old_;
};

}  // namespace dlb::solver
