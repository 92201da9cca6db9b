// Content-addressed files for program binaries and for what measuring solvers found. Safe with many
// processes, also on NFS, with kill -9, full disks and read-only folders: there are no locks, an entry is
// written to a temporary name and renamed, and anything that does not check out on reading is a miss.
#pragma once
#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_set>
#include <vector>

#include "cl/device.h"
#include "cl/hash.h"
#include "cl/stores/pack.h"
#include "cl/stores/record.h"

namespace dlb::cl {

class DiskCache {
 public:
  struct Limits {
    uint64_t bytes, entries;
  };
  using Packs = std::vector<std::unique_ptr<Pack>>;

  // `folder` is created on the first store; empty means that nothing is stored. `packs()` gives what is
  // looked into on a miss.
  DiskCache(StoreKind kind, std::string folder, Limits limits, const Packs& (*packs)() = nullptr)
      : kind_(kind), folder_(std::move(folder)), limits_(limits), packs_(packs) {}

  // The payload stored for exactly this key in the folder, else in a pack, or nothing. Never throws. An entry
  // of the folder that is damaged is removed; one from a pack is not copied. A find record that another
  // process stores is seen up to a second later, a program at once.
  std::optional<std::string> load(const std::string& key, bool* from_pack = nullptr) noexcept;

  // The payload of this key in a pack, or nothing. Never throws.
  std::optional<std::string> load_from_packs(const std::string& key) const noexcept;

  // Stores a payload. False where that fails (full disk, read-only folder), which is reported once per
  // process on stderr.
  bool store(const std::string& key, const std::string& payload) noexcept;

  // Whether the folder exists or can be made, and can be written. Where it cannot, says so as store() does.
  bool can_store() const noexcept;

  static constexpr unsigned kPruneEvery = 64;  // stores
  // Removes least recently used entries until the folder is within its limits, and stale temporaries. Each
  // process does so with its first store and then now and again.
  void prune() noexcept;

  // For tools: the files of entries as they are at this moment, those of other processes among them.
  struct EntryFile {
    std::string name;  // in the folder
    uint64_t bytes = 0;
    int64_t used = 0;  // nanoseconds since 1970: when it was stored or, to a day, last read
  };
  std::vector<EntryFile> files() const;
  bool is_empty() const noexcept;  // of entries, or there is no folder
  Fault read(const std::string& name, Record& record) const;
  bool remove(const std::string& name) const;

  StoreKind kind() const { return kind_; }
  const std::string& folder() const { return folder_; }
  Limits limits() const { return limits_; }

 private:
  std::optional<std::string> load_file(const std::string& key);
  bool may_hold(const Hash128& key_hash);
  void list();
  int write_entry(const Record& record);

  const StoreKind kind_;
  const std::string folder_;
  const Limits limits_;
  const Packs& (*const packs_)();
  std::atomic<unsigned> stores_{0};
  // Entries of the folder when it was last listed, and those stored since.
  std::mutex listing_mutex_;
  std::unordered_set<Hash128, Hash128Hasher> listed_;
  std::chrono::steady_clock::time_point next_listing_{};
};

// Program binaries; keys are program_key(). Under cache_dir(), over the packs.
DiskCache& program_disk_cache();

// Results of measuring solvers, small texts; keys are find_key(). Under cache_dir(), over the packs.
DiskCache& find_disk_cache();

// A key's first line is the device's cache tag. The results of measuring also depend on how many compute
// units and which class of kernels this process uses. The library's version is in the payload and not in the
// key, so that a new version starts from what an older one found, and verifies it.
std::string program_key(const Device& device, const std::string& options, const std::string& source);
std::string find_key(const Device& device, const std::string& problem);
// The key of the same problem for all versions of platform and driver, as packs may hold it (`cache export
// --any-driver`).
std::string find_key_of_any_driver(const Device& device, const std::string& problem);

// This library's version, as in pyproject.toml.
const char* library_version();

}  // namespace dlb::cl
