// Content-addressed files for program binaries. Safe with many processes, kill -9, full disks and read-only
// folders: an entry is written to a temporary name and renamed; anything that does not check out on reading
// is a miss.
#pragma once
#include <cstdint>
#include <optional>
#include <string>

namespace dlb::cl {

class DiskCache {
 public:
  // `folder` is created on the first store; empty means that nothing is cached. `limit` is in bytes.
  DiskCache(std::string folder, uint64_t limit) : folder_(std::move(folder)), limit_(limit) {}

  // The payload stored for exactly this key, or nothing. Never throws.
  std::optional<std::string> load(const std::string& key) noexcept;

  // Stores a payload; failures (full disk, read-only folder) are reported once per process on stderr and
  // ignored.
  void store(const std::string& key, const std::string& payload) noexcept;

  // Removes least recently used entries until the folder holds at most `limit` bytes, and stale temporaries.
  void prune() noexcept;

 private:
  std::string path(const std::string& key) const;
  const std::string folder_;
  const uint64_t limit_;
};

// The cache of program binaries under cache_dir().
DiskCache& program_disk_cache();

}  // namespace dlb::cl
