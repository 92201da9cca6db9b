// A bounded map that forgets the entries that were not asked for longest. Not thread-safe.
#pragma once
#include <cstddef>
#include <cstdint>
#include <functional>
#include <unordered_map>
#include <utility>
#include <vector>

namespace dlb::solver {

// Two generations bound the map without bookkeeping on a hit: when the young one is full, the old one is
// dropped and the young one takes its place; what is still in use moves back on its next hit. So between
// `generation` and twice as many entries are kept, those asked for last.
template <class Key, class Value, class Hash = std::hash<Key>, class Equal = std::equal_to<>>
class RecentMap {
 public:
  explicit RecentMap(size_t generation) : generation_(generation) {}

  // The value that is remembered, or null. Valid until the next call. With a transparent hash and equality,
  // anything that compares with keys can be looked up.
  template <class Lookup>
  Value* find(const Lookup& key) {
    if (auto it = young_.find(key); it != young_.end()) [[likely]]
      return &it->second;
    auto it = old_.find(key);
    if (it == old_.end()) return nullptr;
    auto node = old_.extract(it);
    make_room();
    return &young_.insert(std::move(node)).position->second;
  }

  Value& insert(const Key& key, Value value) {
    old_.erase(key);
    make_room();
    old_.erase(key);  // it may have been in the young generation, which is the old one now
    return young_.insert_or_assign(key, std::move(value)).first->second;
  }

  // Puts `value` in the place of `expected`, unless that was forgotten or replaced meanwhile. Returns whether
  // it did.
  template <class Lookup>
  bool replace(const Lookup& key, const Value& expected, const Value& value) {
    for (Map* map : {&young_, &old_})
      if (auto it = map->find(key); it != map->end() && it->second == expected) {
        it->second = value;
        return true;
      }
    return false;
  }

  void clear() {
    young_.clear();
    old_.clear();
  }

  std::vector<Key> keys() const {
    std::vector<Key> list;
    for (const Map* map : {&old_, &young_})
      for (const auto& [key, value] : *map) list.push_back(key);
    return list;
  }

  // Entries dropped because the map was full.
  uint64_t evicted() const { return evicted_; }

 private:
  void make_room() {
    if (young_.size() < generation_) return;
    evicted_ += old_.size();
    old_ = std::exchange(young_, {});
  }

  using Map = std::unordered_map<Key, Value, Hash, Equal>;
  const size_t generation_;
  Map young_, old_;  // no key is in both
  uint64_t evicted_ = 0;
};

}  // namespace dlb::solver
