// A folder of records, one per file, named by the hash of its key.
#include "cl/stores/disk_cache.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstdio>
#include <cstring>
#include <random>

#include "cl/hash.h"
#include "cl/log.h"
#include "cl/stores/files.h"
#include "cl/stores/paths.h"

namespace dlb::cl {
namespace {

constexpr DiskCache::Limits kProgramLimits = {512ull << 20, 100'000};
constexpr DiskCache::Limits kFindLimits = {32ull << 20, 20'000};
constexpr int64_t kEver = int64_t{1} << 61;
constexpr std::chrono::seconds kListEvery{1};
constexpr char kSuffix[] = ".bin", kTemporary[] = "tmp.";

void warn_of_storing(const std::string& what) {
  static std::atomic<bool> warned{false};
  if (!warned.exchange(true))
    std::fprintf(
        stderr,
        "dlbackend: disk cache: %s; going on without storing (DLBACKEND_CACHE_DIR chooses the folder)\n",
        what.c_str());
}

void warn_of_damage(const std::string& file, Fault fault) {
  static std::atomic<bool> warned{false};
  if (!warned.exchange(true))
    std::fprintf(stderr, "dlbackend: disk cache: %s: %s; such entries are left out and written anew\n",
                 file.c_str(), describe(fault));
}

std::string name_of(const Hash128& key_hash) {
  return key_hash.hex() + kSuffix;
}

bool is_entry(const std::string& name) {
  return name.size() == 32 + sizeof kSuffix - 1 && name.ends_with(kSuffix) &&
         name.find_first_not_of("0123456789abcdef") == 32;
}

// The hash that the name of an entry spells.
Hash128 key_hash_of(const std::string& name) {
  Hash128 hash;
  std::from_chars(name.data(), name.data() + 16, hash.high, 16);
  std::from_chars(name.data() + 16, name.data() + 32, hash.low, 16);
  return hash;
}

// Unique among threads, processes and the machines that share the folder.
std::string temporary_name() {
  static const uint64_t machine = (uint64_t{std::random_device{}()} << 32) | std::random_device{}();
  static std::atomic<unsigned> serial{0};
  char name[64];
  std::snprintf(name, sizeof name, "%s%016llx.%d.%u", kTemporary, static_cast<unsigned long long>(machine),
                static_cast<int>(::getpid()), serial++);
  return name;
}

// Calls fn(name, stat) for each regular file; files that vanish meanwhile are left out.
template <class Fn>
void for_each_file(const std::string& folder, Fn&& fn) {
  for_each_name(folder, [&](const std::string& name, int descriptor) {
    struct stat info {};
    if (::fstatat(descriptor, name.c_str(), &info, AT_SYMLINK_NOFOLLOW) == 0 && S_ISREG(info.st_mode))
      fn(name, info);
  });
}

// Opens, reads and checks an entry's file; `kMisplaced` where it is not the entry of that name and kind.
Fault read_once(const std::string& folder, const std::string& name, StoreKind kind, Record& record,
                bool touch) {
  const File file(folder + "/" + name, O_RDONLY);
  struct stat info {};
  if (!file.ok() || ::fstat(file.fd(), &info) != 0)
    return errno == ENOENT ? Fault::kMissing : Fault::kUnreadable;
  if (!S_ISREG(info.st_mode)) return Fault::kUnreadable;
  const auto size = static_cast<uint64_t>(info.st_size);
  RecordHeader header{};
  Fault fault = read_header(file, 0, size, header);
  if (fault == Fault::kNone && header.bytes() != size) fault = Fault::kDamaged;
  if (fault == Fault::kNone) fault = read_body(file, 0, header, record);
  if (fault != Fault::kNone) return fault;
  if (record.kind != kind || name_of(header.key_hash) != name) return Fault::kMisplaced;
  // Marks the entry as used, at most once a day. A time in the future is corrected, because it would keep the
  // entry for ever.
  if (touch && (now() - modified(info) > kDay || in_future(modified(info)))) ::futimens(file.fd(), nullptr);
  return Fault::kNone;
}

// On NFS another machine's rename can leave us a stale handle of the old file; opening it again finds the new
// one.
Fault read_entry(const std::string& folder, const std::string& name, StoreKind kind, Record& record,
                 bool touch) {
  errno = 0;
  const Fault fault = read_once(folder, name, kind, record, touch);
  return fault == Fault::kUnreadable && errno == ESTALE ? read_once(folder, name, kind, record, touch)
                                                        : fault;
}

}  // namespace

// Whether it is worth opening the entry's file. A missed program costs a compilation, so its file is always
// tried. Missing a find record costs less than an open() that fails on some file systems, and a program whose
// sizes change misses dozens of them with each size: those are looked up in a list of the folder's names.
bool DiskCache::may_hold(const Hash128& key_hash) {
  if (kind_ != StoreKind::kFind) return true;
  std::lock_guard<std::mutex> lock(listing_mutex_);
  if (listed_.count(key_hash)) return true;
  if (std::chrono::steady_clock::now() < next_listing_) return false;
  list();
  return listed_.count(key_hash) > 0;
}

// Lists the folder's names. The next listing may come only after a hundred times as long as this one takes.
void DiskCache::list() {
  const auto start = std::chrono::steady_clock::now();
  listed_.clear();
  for_each_name(folder_, [&](const std::string& name, int) {
    if (is_entry(name)) listed_.insert(key_hash_of(name));
  });
  const auto end = std::chrono::steady_clock::now();
  next_listing_ = end + std::max<std::chrono::steady_clock::duration>(kListEvery, 100 * (end - start));
}

std::optional<std::string> DiskCache::load_file(const std::string& key) {
  if (folder_.empty()) return std::nullopt;
  const Hash128 key_hash = hash128(key);
  if (!may_hold(key_hash)) return std::nullopt;
  const std::string name = name_of(key_hash);
  Record record;
  const Fault fault = read_entry(folder_, name, kind_, record, true);
  if (fault == Fault::kNone && record.key == key) return std::move(record.payload);
  if (fault == Fault::kNone || fault == Fault::kMissing || fault == Fault::kUnreadable) return std::nullopt;
  if (fault != Fault::kVersion) warn_of_damage(folder_ + "/" + name, fault);
  remove(name);
  return std::nullopt;
}

std::optional<std::string> DiskCache::load(const std::string& key, bool* from_pack) noexcept try {
  if (from_pack) *from_pack = false;
  if (auto payload = load_file(key)) return payload;
  auto payload = load_from_packs(key);
  if (from_pack) *from_pack = payload.has_value();
  return payload;
} catch (...) {
  log_dropped("reading the disk cache");
  return std::nullopt;
}

std::optional<std::string> DiskCache::load_from_packs(const std::string& key) const noexcept try {
  if (!packs_) return std::nullopt;
  for (const auto& pack : packs_())
    if (auto payload = pack->load(kind_, key)) return payload;
  return std::nullopt;
} catch (...) {
  log_dropped("reading packs");
  return std::nullopt;
}

// Returns 0, or the errno of what failed; then nothing of the entry stays in the folder.
int DiskCache::write_entry(const Record& record) {
  const std::string temporary = folder_ + "/" + temporary_name();
  File file(temporary, O_CREAT | O_EXCL | O_WRONLY);
  if (!file.ok()) return errno;
  errno = EIO;  // for a write() of zero bytes
  if (write_record(file, record) && file.close() &&
      ::rename(temporary.c_str(), (folder_ + "/" + name_of(hash128(record.key))).c_str()) == 0)
    return 0;
  const int error = errno;
  ::unlink(temporary.c_str());
  return error;
}

bool DiskCache::store(const std::string& key, const std::string& payload) noexcept try {
  if (folder_.empty()) return false;
  const Record record{kind_, key, payload};
  int error = write_entry(record);
  // The folder does not exist yet, or somebody removed it or the temporary file.
  if ((error == ENOENT || error == ESTALE) && make_folders(folder_)) error = write_entry(record);
  if (error) warn_of_storing("cannot write to " + folder_ + ": " + std::strerror(error));
  if (!error) {
    std::lock_guard<std::mutex> lock(listing_mutex_);
    listed_.insert(hash128(key));
  }
  if (!error && stores_++ % kPruneEvery == 0) prune();
  return !error;
} catch (...) {
  log_dropped("storing");
  warn_of_storing("storing failed");
  return false;
}

bool DiskCache::can_store() const noexcept try {
  if (folder_.empty()) return false;
  if (make_folders(folder_) && ::access(folder_.c_str(), W_OK) == 0) return true;
  warn_of_storing("cannot write to " + folder_ + ": " + std::strerror(errno));
  return false;
} catch (...) {
  log_dropped("looking at the cache folder");
  return false;
}

void DiskCache::prune() noexcept try {
  std::vector<EntryFile> entries;
  uint64_t bytes = 0;
  for_each_file(folder_, [&](const std::string& name, const struct stat& info) {
    // An entry with a time in the future counts as older than any other.
    const int64_t used = in_future(modified(info)) ? modified(info) - kEver : modified(info);
    if (name.starts_with(kTemporary)) {
      // A temporary file that is this old was left by a process that was killed.
      if (now() - used > kDay) remove(name);
    } else if (is_entry(name)) {
      bytes += static_cast<uint64_t>(info.st_size);
      entries.push_back({name, static_cast<uint64_t>(info.st_size), used});
    }
  });
  uint64_t count = entries.size();
  if (bytes <= limits_.bytes && count <= limits_.entries) return;
  std::sort(entries.begin(), entries.end(), [](auto& a, auto& b) { return a.used < b.used; });
  for (const EntryFile& entry : entries) {
    if (bytes <= limits_.bytes && count <= limits_.entries) break;
    remove(entry.name);
    bytes -= entry.bytes;
    count--;
  }
} catch (...) {
  log_dropped("pruning the disk cache");
}

std::vector<DiskCache::EntryFile> DiskCache::files() const {
  std::vector<EntryFile> entries;
  for_each_file(folder_, [&](const std::string& name, const struct stat& info) {
    if (is_entry(name)) entries.push_back({name, static_cast<uint64_t>(info.st_size), modified(info)});
  });
  return entries;
}

bool DiskCache::is_empty() const noexcept {
  DIR* folder = ::opendir(folder_.c_str());
  if (!folder) return true;
  bool found = false;
  while (const dirent* entry = found ? nullptr : ::readdir(folder)) found = is_entry(entry->d_name);
  ::closedir(folder);
  return !found;
}

Fault DiskCache::read(const std::string& name, Record& record) const {
  return read_entry(folder_, name, kind_, record, false);
}

bool DiskCache::remove(const std::string& name) const {
  return ::unlink((folder_ + "/" + name).c_str()) == 0;
}

namespace {
std::string folder_of(const char* store) {
  return cache_dir().empty() ? "" : cache_dir() + "/" + store;
}
}  // namespace

DiskCache& program_disk_cache() {
  static auto* cache =
      new DiskCache(StoreKind::kProgram, folder_of("programs"), kProgramLimits, &system_packs);
  return *cache;
}

DiskCache& find_disk_cache() {
  static auto* cache = new DiskCache(StoreKind::kFind, folder_of("find"), kFindLimits, &system_packs);
  return *cache;
}

std::string program_key(const Device& device, const std::string& options, const std::string& source) {
  return device.cache_tag + "\n" + options + "\n" + source;
}

namespace {

std::string find_key(const std::string& tag, const Device& device, const std::string& problem) {
  return tag + "|" + std::to_string(device.compute_units) +
         (device.cls == DeviceClass::kCpu ? "|cpu" : "|gpu") + "\n" + problem;
}

}  // namespace

std::string find_key(const Device& device, const std::string& problem) {
  return find_key(device.cache_tag, device, problem);
}

std::string find_key_of_any_driver(const Device& device, const std::string& problem) {
  return find_key(device.platform_name + "|*|" + device.name + "|*|*", device, problem);
}

const char* library_version() {
  return DLB_VERSION;
}

}  // namespace dlb::cl
