// Read-only files with the entries of both stores one after the other: shipped with the package, or a
// fleet's.
#pragma once
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "cl/stores/record.h"

namespace dlb::cl {

// A pack is opened and its headers are read on the first use; keys and payloads only when they are asked for.
// A damaged or missing part costs its own entries and one warning on stderr; the others stay usable.
// Thread-safe.
class Pack {
 public:
  struct Item {
    StoreKind kind;
    Hash128 key_hash;
    uint64_t offset, bytes;  // of the record
  };

  explicit Pack(std::string path) : path_(std::move(path)) {}
  const std::string& path() const { return path_; }

  // The payload of exactly this key, or nothing. Never throws.
  std::optional<std::string> load(StoreKind kind, const std::string& key) noexcept;

  // Entries whose headers are sound, sorted by key; what is wrong with the rest of the file.
  const std::vector<Item>& items();
  const std::vector<std::string>& faults();
  Fault read(const Item& item, Record& record) const;

 private:
  void open();
  void scan(uint64_t size);
  void warn(const std::string& what);

  const std::string path_;
  std::once_flag opened_, warned_;
  std::optional<File> file_;
  std::vector<Item> items_;
  std::vector<std::string> faults_;
};

// Writes a pack beside `path` under another name, and gives it its name in finish(): nobody sees half of one.
class PackWriter {
 public:
  explicit PackWriter(std::string path);  // these throw std::runtime_error with the system's reason
  void add(const Record& record);
  void finish();
  void discard() noexcept;  // without finish(): nothing stays
  ~PackWriter() { discard(); }

 private:
  [[noreturn]] void fail();
  const std::string path_, temporary_;
  File file_;
  uint64_t entries_ = 0;
  bool finished_ = false;
};

// The packs under the user's stores, first one first: those named in DLBACKEND_PACKS (by colon), then those
// in the package's folder packs/. None at all when DLBACKEND_PACKS is set to the empty string.
const std::vector<std::unique_ptr<Pack>>& system_packs();

}  // namespace dlb::cl
