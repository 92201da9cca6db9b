// Entry layout: magic, sizes of key and payload, 128-bit hash of the rest, key, payload.
#include "cl/disk_cache.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <vector>

#include "cl/hash.h"
#include "cl/paths.h"

namespace dlb::cl {
namespace {

namespace fs = std::filesystem;

constexpr char kMagic[8] = {'D', 'L', 'B', 'K', 'C', '0', '0', '1'};
constexpr DiskCache::Limits kProgramLimits = {512ull << 20, 100'000};
constexpr DiskCache::Limits kFindLimits = {32ull << 20, 20'000};
constexpr std::time_t kTouchAfter = 24 * 3600;  // seconds: reading an entry marks it used at most once a day

struct Header {
  char magic[8];
  uint64_t key_size, payload_size;
  Hash128 checksum;
};

void warn_once(const std::string& what) {
  static std::atomic<bool> said{false};
  if (!said.exchange(true))
    std::fprintf(
        stderr,
        "dlbackend: disk cache: %s; going on without storing (DLBACKEND_CACHE_DIR chooses the folder)\n",
        what.c_str());
}

void touch_when_old(const std::string& file) {
  struct stat info {};
  if (::stat(file.c_str(), &info) == 0 && std::time(nullptr) - info.st_mtime > kTouchAfter)
    ::utimensat(AT_FDCWD, file.c_str(), nullptr, 0);
}

bool write_all(int fd, const void* data, size_t size) {
  const char* at = static_cast<const char*>(data);
  while (size > 0) {
    const ssize_t written = ::write(fd, at, size);
    if (written <= 0) return false;
    at += written;
    size -= static_cast<size_t>(written);
  }
  return true;
}

}  // namespace

std::string DiskCache::path(const std::string& key) const {
  return folder_ + "/" + hash128(key).hex() + ".bin";
}

std::optional<std::string> DiskCache::load(const std::string& key) noexcept try {
  if (folder_.empty()) return std::nullopt;
  const std::string file = path(key);
  std::ifstream in(file, std::ios::binary);
  if (!in) return std::nullopt;
  Header header{};
  std::string body(
      (in.read(reinterpret_cast<char*>(&header), sizeof header), std::istreambuf_iterator<char>(in)), {});
  const bool sound = std::memcmp(header.magic, kMagic, sizeof kMagic) == 0 && header.key_size == key.size() &&
                     body.size() >= key.size() && header.payload_size == body.size() - key.size() &&
                     body.compare(0, key.size(), key) == 0 && hash128(body) == header.checksum;
  if (!sound) {
    ::unlink(file.c_str());  // rewritten by the build that follows
    return std::nullopt;
  }
  touch_when_old(file);
  return body.substr(key.size());
} catch (...) {
  return std::nullopt;
}

void DiskCache::store(const std::string& key, const std::string& payload) noexcept try {
  if (folder_.empty()) return;
  static std::atomic<unsigned> serial{0};
  if (!make_folders(folder_)) return warn_once("cannot create " + folder_);
  const unsigned number = serial++;
  const std::string temporary = folder_ + "/tmp." + std::to_string(::getpid()) + "." + std::to_string(number);
  const int fd = ::open(temporary.c_str(), O_CREAT | O_EXCL | O_WRONLY, 0600);
  if (fd < 0) return warn_once("cannot write to " + folder_);
  const std::string body = key + payload;
  Header header{{}, key.size(), payload.size(), hash128(body)};
  std::memcpy(header.magic, kMagic, sizeof kMagic);
  const bool written = write_all(fd, &header, sizeof header) && write_all(fd, body.data(), body.size());
  if (::close(fd) != 0 || !written || ::rename(temporary.c_str(), path(key).c_str()) != 0) {
    ::unlink(temporary.c_str());
    return warn_once("cannot write to " + folder_ + " (disk full?)");
  }
  if (number % 64 == 0) prune();
} catch (...) {
  warn_once("storing failed");
}

void DiskCache::prune() noexcept try {
  struct Entry {
    fs::path file;
    fs::file_time_type used;
    uint64_t size;
  };
  std::vector<Entry> entries;
  uint64_t total = 0;
  std::error_code ignored;
  const auto now = fs::file_time_type::clock::now();
  for (const auto& item : fs::directory_iterator(folder_, ignored)) {
    const auto used = item.last_write_time(ignored);
    const uint64_t size = item.is_regular_file(ignored) ? item.file_size(ignored) : 0;
    // A temporary that old was left by a killed process.
    if (item.path().filename().string().starts_with("tmp.") && now - used > std::chrono::hours(1))
      fs::remove(item.path(), ignored);
    else
      entries.push_back({item.path(), used, size});
    total += size;
  }
  uint64_t count = entries.size();
  if (total <= limits_.bytes && count <= limits_.entries) return;
  std::sort(entries.begin(), entries.end(), [](auto& a, auto& b) { return a.used < b.used; });
  for (const Entry& entry : entries) {
    if (total <= limits_.bytes && count <= limits_.entries) break;
    fs::remove(entry.file, ignored);
    total -= entry.size;
    count--;
  }
} catch (...) {
}

namespace {
std::string folder_of(const char* store) {
  return cache_dir().empty() ? "" : cache_dir() + "/" + store;
}
}  // namespace

DiskCache& program_disk_cache() {
  static auto* cache = new DiskCache(folder_of("programs"), kProgramLimits);
  return *cache;
}

DiskCache& find_disk_cache() {
  static auto* cache = new DiskCache(folder_of("find"), kFindLimits);
  return *cache;
}

std::string program_key(const Device& device, const std::string& options, const std::string& source) {
  return device.cache_tag + "\n" + options + "\n" + source;
}

std::string find_key(const Device& device, const std::string& problem) {
  return device.cache_tag + "\ndlbackend " DLB_VERSION "\n" + problem;
}

}  // namespace dlb::cl
