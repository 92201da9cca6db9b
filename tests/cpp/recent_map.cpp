// solver/recent_map.h: what is kept, what is dropped, and what is counted.
#include "solver/recent_map.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

namespace {

using Map = dlb::solver::RecentMap<int, std::string>;

std::string value_of(Map& map, int key) {
  const std::string* found = map.find(key);
  return found ? *found : "nothing";
}

std::vector<int> sorted_keys(const Map& map) {
  std::vector<int> keys = map.keys();
  std::sort(keys.begin(), keys.end());
  return keys;
}

void insert_range(Map& map, int begin, int end) {
  for (int key = begin; key < end; ++key) map.insert(key, std::to_string(key));
}

}  // namespace

TEST_CASE("RecentMap finds what was inserted, and the last value of a key") {
  Map map(4);
  CHECK(map.find(1) == nullptr);
  CHECK(map.insert(1, "one") == "one");
  CHECK(map.insert(1, "uno") == "uno");
  CHECK(value_of(map, 1) == "uno");
  CHECK(sorted_keys(map) == std::vector<int>{1});
}

TEST_CASE("RecentMap keeps a generation at least and two at most") {
  Map map(4);
  for (int key = 0; key < 100; ++key) {
    map.insert(key, "");
    const size_t held = map.keys().size();
    CHECK(held <= 8);
    CHECK(held >= std::min<size_t>(4, static_cast<size_t>(key) + 1));
    CHECK(map.evicted() + held == static_cast<size_t>(key) + 1);
    for (int recent = std::max(0, key - 3); recent <= key; ++recent) {
      const std::vector<int> keys = map.keys();
      CHECK(std::count(keys.begin(), keys.end(), recent) == 1);
    }
  }
}

TEST_CASE("RecentMap keeps what is asked for while others come and go") {
  Map map(4);
  map.insert(-1, "asked for");
  for (int key = 0; key < 100; ++key) {
    map.insert(key, "");
    CHECK(value_of(map, -1) == "asked for");
  }
  CHECK(map.find(0) == nullptr);
  CHECK(map.evicted() + map.keys().size() == 101);
}

TEST_CASE("RecentMap holds no key twice when it comes back from the old generation") {
  Map map(2);
  insert_range(map, 0, 3);  // 0 and 1 are old, 2 is young
  map.insert(0, "again");
  CHECK(value_of(map, 0) == "again");
  CHECK(sorted_keys(map) == std::vector<int>{0, 1, 2});
  CHECK(map.evicted() == 0);
  map.insert(3, "3");  // 1 was asked for longest ago, and goes
  CHECK(sorted_keys(map) == std::vector<int>{0, 2, 3});
  CHECK(map.evicted() == 1);
}

TEST_CASE("RecentMap replaces in both generations, and only what is expected") {
  Map map(2);
  insert_range(map, 0, 3);
  for (int key : {0, 2}) {
    CHECK_FALSE(map.replace(key, "other", "new"));
    CHECK(map.replace(key, std::to_string(key), "new"));
    CHECK(value_of(map, key) == "new");
  }
  CHECK_FALSE(map.replace(9, "", "new"));
  CHECK(map.find(9) == nullptr);
}

TEST_CASE("RecentMap moves values that cannot be copied") {
  dlb::solver::RecentMap<int, std::unique_ptr<int>> map(1);
  map.insert(1, std::make_unique<int>(10));
  map.insert(2, std::make_unique<int>(20));
  REQUIRE(map.find(1));
  CHECK(**map.find(1) == 10);
  map.clear();
  CHECK(map.keys().empty());
  CHECK(map.find(2) == nullptr);
}
