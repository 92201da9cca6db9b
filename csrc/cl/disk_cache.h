// Content-addressed files for program binaries and for what measuring solvers found. Safe with many
// processes, kill -9, full disks and read-only folders: an entry is written to a temporary name and renamed;
// anything that does not check out on reading is a miss.
#pragma once
#include <cstdint>
#include <optional>
#include <string>

#include "cl/device.h"

namespace dlb::cl {

class DiskCache {
 public:
  struct Limits {
    uint64_t bytes, entries;
  };

  // `folder` is created on the first store; empty means that nothing is cached.
  DiskCache(std::string folder, Limits limits) : folder_(std::move(folder)), limits_(limits) {}

  // The payload stored for exactly this key, or nothing. Never throws.
  std::optional<std::string> load(const std::string& key) noexcept;

  // Stores a payload; failures (full disk, read-only folder) are reported once per process on stderr and
  // ignored.
  void store(const std::string& key, const std::string& payload) noexcept;

  // Removes least recently used entries until the folder is within its limits, and stale temporaries.
  void prune() noexcept;

 private:
  std::string path(const std::string& key) const;
  const std::string folder_;
  const Limits limits_;
};

// Program binaries; keys are program_key(). Under cache_dir().
DiskCache& program_disk_cache();

// Results of measuring solvers, small texts; keys are find_key(). Under cache_dir().
DiskCache& find_disk_cache();

// A key's first line is the device's cache tag. Found results also depend on the library's version: another
// one may have other solvers.
std::string program_key(const Device& device, const std::string& options, const std::string& source);
std::string find_key(const Device& device, const std::string& problem);

}  // namespace dlb::cl
