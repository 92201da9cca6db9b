// Remembers what was chosen per problem. Bounded; a hit is one hash look-up and allocates nothing.
#pragma once
#include <memory>
#include <mutex>
#include <vector>

#include "solver/problem.h"
#include "solver/recent_map.h"

namespace dlb::solver {

template <class Value>
class InvokerCache {
 public:
  using Entry = std::shared_ptr<const Value>;

  // The value that is remembered, or null.
  Entry find(const Problem& problem) {
    std::lock_guard<std::mutex> lock(mutex_);
    const Entry* entry = known_.find(problem);
    return entry ? *entry : nullptr;
  }

  void insert(const Problem& problem, Entry entry) {
    std::lock_guard<std::mutex> lock(mutex_);
    known_.insert(StoredProblem(problem), std::move(entry));
  }

  // Inserts only if valid() is true. It is called under the lock, so nothing clears the cache in between.
  template <class Valid>
  void insert_if(const Problem& problem, Entry entry, const Valid& valid) {
    std::lock_guard<std::mutex> lock(mutex_);
    if (valid()) known_.insert(StoredProblem(problem), std::move(entry));
  }

  // Puts `entry` in the place of `expected`, unless that was forgotten or replaced meanwhile. Returns whether
  // it did.
  bool replace(const Problem& problem, const Entry& expected, const Entry& entry) {
    std::lock_guard<std::mutex> lock(mutex_);
    return known_.replace(problem, expected, entry);
  }

  void clear() {
    std::lock_guard<std::mutex> lock(mutex_);
    known_.clear();
  }

  std::vector<StoredProblem> problems() {
    std::lock_guard<std::mutex> lock(mutex_);
    return known_.keys();
  }

  // Entries dropped because the cache was full.
  uint64_t evicted() {
    std::lock_guard<std::mutex> lock(mutex_);
    return known_.evicted();
  }

 private:
  static constexpr size_t kGeneration = 4096;  // problems
  // Not noexcept: libstdc++'s maps then keep hashes in place of computing neighbours' anew.
  struct Hash {
    using is_transparent = void;
    size_t operator()(const Problem& p) const { return hash(p); }
    size_t operator()(const StoredProblem& p) const { return hash(*p); }
  };
  struct Same {
    using is_transparent = void;
    bool operator()(const StoredProblem& a, const StoredProblem& b) const noexcept { return same(*a, *b); }
    bool operator()(const Problem& a, const StoredProblem& b) const noexcept { return same(a, *b); }
    bool operator()(const StoredProblem& a, const Problem& b) const noexcept { return same(*a, b); }
  };

  std::mutex mutex_;
  RecentMap<StoredProblem, Entry, Hash, Same> known_{kGeneration};
};

}  // namespace dlb::solver
