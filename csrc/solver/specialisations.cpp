#include "solver/specialisations.h"

#include <mutex>
#include <sstream>
#include <unordered_map>

#include "cl/stores/disk_cache.h"

namespace dlb::solver {
namespace {

// After so many specialised programs that gained nothing no more are tried, because compiling delays launches
// on some drivers.
constexpr int kMostInVain = 2;

struct Count {
  int tried = 0, won = 0, under_way = 0;
};

struct Counts {
  std::mutex mutex;
  std::unordered_map<std::string, Count> known;
};
Counts& counts() {
  static auto* instance = new Counts;
  return *instance;
}

std::string store_key(const cl::Device& device, const std::string& solver) {
  return cl::find_key(device, "specialised " + solver + " " + cl::library_version());
}

// The count of a solver on a device, read from the store when it is first asked for. The mutex must be held.
Count& count_of(const cl::Device& device, const std::string& solver) {
  const auto [it, fresh] = counts().known.try_emplace(std::to_string(device.index) + solver);
  if (fresh)
    if (const auto stored = cl::find_disk_cache().load(store_key(device, solver)))
      std::istringstream(*stored) >> it->second.tried >> it->second.won;
  return it->second;
}

}  // namespace

bool begin_specialisation(const cl::Device& device, const std::string& solver) {
  std::lock_guard<std::mutex> lock(counts().mutex);
  Count& count = count_of(device, solver);
  if (count.won == 0 && count.tried + count.under_way >= kMostInVain) return false;
  count.under_way++;
  return true;
}

void end_specialisation(const cl::Device& device, const std::string& solver, std::optional<bool> won) {
  std::lock_guard<std::mutex> lock(counts().mutex);
  Count& count = count_of(device, solver);
  count.under_way--;
  if (!won) return;
  count.tried++, count.won += *won;
  cl::find_disk_cache().store(store_key(device, solver),
                              std::to_string(count.tried) + " " + std::to_string(count.won));
}

}  // namespace dlb::solver
