// Configs: what a solver can vary for one problem, such as tile sizes and splits.
#pragma once
#include <array>
#include <cstdint>
#include <cstring>
#include <iterator>
#include <string>
#include <type_traits>

namespace dlb::solver {

// Up to six integers, as the stores keep them. A solver gives them names and types with a struct of its own:
//
//   struct TileConfig {
//     int32_t tile_m = 0, tile_n = 0;
//     static constexpr const char* kNames[] = {"tile_m", "tile_n"};
//   };
//   const auto tiles = config.as<TileConfig>();
//   list.push_back(Config::of(TileConfig{64, 32}));
//
// Raise Solver::revision() when their meaning changes, because configs go to disk.
struct Config {
  static constexpr size_t kValues = 6;
  std::array<int32_t, kValues> values{};
  // A program compiled for the problem's very sizes, in place of one that takes sizes as arguments.
  bool specialised = false;
  bool operator==(const Config&) const = default;

  template <class Named>
  Named as() const {
    check<Named>();
    Named named;
    std::memcpy(static_cast<void*>(&named), values.data(), sizeof named);
    return named;
  }
  template <class Named>
  static Config of(const Named& named) {
    check<Named>();
    Config config;
    std::memcpy(config.values.data(), &named, sizeof named);
    return config;
  }

 private:
  template <class Named>
  static constexpr void check() {
    static_assert(std::is_trivially_copyable_v<Named> && std::has_unique_object_representations_v<Named>);
    static_assert(sizeof(Named) <= kValues * sizeof(int32_t) && alignof(Named) == alignof(int32_t));
  }
};

// The names of a config's values, in order; empty where a solver has nothing to vary.
struct ConfigNames {
  const char* const* names = nullptr;
  size_t count = 0;
  template <class Named>
  static constexpr ConfigNames of() {
    return {Named::kNames, std::size(Named::kNames)};
  }
};

// "3,0,0,0,0,0", with an "s" in front when specialised: the form of the stores.
std::string config_text(const Config& config);
// "tile_m=64 tile_n=32", with "specialised " in front: the form of logs. "-" without names.
std::string describe(const Config& config, ConfigNames names);

}  // namespace dlb::solver
