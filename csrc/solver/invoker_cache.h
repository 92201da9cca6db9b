// Remembers what was chosen per problem. Bounded; a hit is one hash look-up and allocates nothing.
#pragma once
#include <memory>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "solver/problem.h"

namespace dlb::solver {

template <class Problem, class Value>
class InvokerCache {
 public:
  using Entry = std::shared_ptr<const Value>;

  // Two generations bound the cache without bookkeeping on a hit: when the young one is full, the old one is
  // dropped and the young one takes its place; what is still in use moves back on its next hit.
  static constexpr size_t kGeneration = 4096;

  // What is remembered, or null.
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

  // Puts `entry` in the place of `expected`, unless that was forgotten or replaced meanwhile.
  void replace(const Problem& problem, const Entry& expected, Entry entry) {
    std::lock_guard<std::mutex> lock(mutex_);
    for (Map* map : {&young_, &old_})
      if (auto it = map->find(problem); it != map->end() && it->second == expected) it->second = entry;
  }

  void clear() {
    std::lock_guard<std::mutex> lock(mutex_);
    young_.clear();
    old_.clear();
  }

  std::vector<Problem> problems() {
    std::lock_guard<std::mutex> lock(mutex_);
    std::vector<Problem> list;
    for (const auto& [problem, entry] : old_)
      if (!young_.count(problem)) list.push_back(problem);
    for (const auto& [problem, entry] : young_) list.push_back(problem);
    return list;
  }

  // Entries dropped because the cache was full.
  uint64_t evicted() {
    std::lock_guard<std::mutex> lock(mutex_);
    return evicted_;
  }

 private:
  struct Hash {  // not noexcept: libstdc++'s maps then keep hashes, in place of computing neighbours' anew
    size_t operator()(const Problem& p) const { return hash(p); }
  };
  struct Same {
    bool operator()(const Problem& a, const Problem& b) const noexcept { return same(a, b); }
  };
  using Map = std::unordered_map<Problem, Entry, Hash, Same>;

  void insert_locked(const Problem& problem, Entry entry) {
    if (young_.size() >= kGeneration) {
      for (const auto& [dropped, value] : old_) evicted_ += !young_.count(dropped);
      old_ = std::move(young_);
      young_.clear();
    }
    young_.insert_or_assign(problem, std::move(entry));
  }

  std::mutex mutex_;
  Map young_, old_;
  uint64_t evicted_ = 0;
};

}  // namespace dlb::solver
