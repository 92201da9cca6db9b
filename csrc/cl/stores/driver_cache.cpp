// Finds, checks and bounds what PoCL keeps on disk.
#include "cl/stores/driver_cache.h"

#include <elf.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>
#include <cstdint>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <set>
#include <sstream>

#include "cl/hash.h"
#include "cl/library.h"
#include "cl/log.h"
#include "cl/settings.h"
#include "cl/stores/files.h"
#include "cl/stores/paths.h"
#include "cl/stores/record.h"

namespace dlb::cl {
namespace {

constexpr uint64_t kMaxBytes = 512ull << 20;
constexpr char kChecksums[] = "dlbackend.sums", kRemoved[] = "dlbackend.removed.", kIr[] = "program.bc";
constexpr size_t kHashSize = 40, kHashWithin = 128;  // "AB/CDEF…"; bytes of a binary that hold it

bool of_hash(std::string_view text) {
  return std::all_of(text.begin(), text.end(), [](char c) { return c >= 'A' && c <= 'P'; });
}

bool is_folder_name(std::string_view name) {
  return name.size() == kHashSize && name[2] == '/' && of_hash(name.substr(0, 2)) && of_hash(name.substr(3));
}

bool read_file(const std::string& path, std::string& content) {
  const File file(path, O_RDONLY);
  struct stat info {};
  if (!file.ok() || ::fstat(file.fd(), &info) != 0 || !S_ISREG(info.st_mode)) return false;
  content.resize(static_cast<size_t>(info.st_size));
  return file.read_at(0, content.data(), content.size());
}

// Calls fn(name, stat) for what is in a folder.
template <class Fn>
void for_each_in(const std::string& folder, Fn&& fn) {
  for_each_name(folder, [&](const std::string& name, int descriptor) {
    struct stat info {};
    if (name != "." && name != ".." && ::fstatat(descriptor, name.c_str(), &info, AT_SYMLINK_NOFOLLOW) == 0)
      fn(name, info);
  });
}

// Calls fn(path in the folder, stat) for each file below it.
template <class Fn>
void for_each_below(const std::string& folder, const std::string& within, const Fn& fn) {
  for_each_in(folder + "/" + within, [&](const std::string& name, const struct stat& info) {
    if (S_ISDIR(info.st_mode))
      for_each_below(folder, within + name + "/", fn);
    else
      fn(within + name, info);
  });
}

bool is_code_or_ir(const std::string& path) {
  return path.ends_with(".so") || path == kIr;
}

// Calls fn(name) for each program's folder in PoCL's cache. They lie in 256 group folders, of which only
// those are read for which wanted(stat) is true.
template <class Wanted, class Fn>
void for_each_program(const std::string& root, Wanted&& wanted, Fn&& fn) {
  for_each_in(root, [&](const std::string& group, const struct stat& info) {
    if (group.size() != 2 || !of_hash(group) || !S_ISDIR(info.st_mode) || !wanted(info)) return;
    for_each_in(root + "/" + group, [&](const std::string& name, const struct stat& inner) {
      if (S_ISDIR(inner.st_mode) && is_folder_name(group + "/" + name)) fn(group + "/" + name);
    });
  });
}

using Checksums = std::map<std::string, std::string>;  // of each file, by its path in the program's folder

// "<checksum of the rest>\n", then "<checksum> <path>\n" for each file. Empty where it is damaged or not
// there.
Checksums read_checksums(const std::string& folder) {
  std::string text;
  Checksums sums;
  if (!read_file(folder + "/" + kChecksums, text)) return sums;
  const size_t end = text.find('\n');
  if (end == std::string::npos ||
      hash128(std::string_view(text).substr(end + 1)).hex() != text.substr(0, end))
    return sums;
  std::istringstream lines(text.substr(end + 1));
  for (std::string sum, path; lines >> sum && lines.get() == ' ' && std::getline(lines, path);)
    sums[path] = sum;
  return sums;
}

void write_checksums(const std::string& folder, const Checksums& sums) {
  static const unsigned machine = std::random_device{}();
  std::string text;
  for (const auto& [path, sum] : sums) text += sum + " " + path + "\n";
  text = hash128(text).hex() + "\n" + text;
  const std::string file = folder + "/" + kChecksums;
  const std::string temporary = file + "." + std::to_string(machine) + "." + std::to_string(::getpid());
  File out(temporary, O_CREAT | O_TRUNC | O_WRONLY);
  if (!out.ok()) return;
  if (!out.write(text.data(), text.size()) || !out.close() || ::rename(temporary.c_str(), file.c_str()) != 0)
    ::unlink(temporary.c_str());
}

// The linker writes section headers last: a file that ends before they do is cut.
bool is_whole_library(std::string_view file) {
  Elf64_Ehdr header;
  if (file.size() < sizeof header) return false;
  std::memcpy(&header, file.data(), sizeof header);
  return std::memcmp(header.e_ident, ELFMAG, SELFMAG) == 0 &&
         header.e_shoff + uint64_t{header.e_shnum} * header.e_shentsize <= file.size() && header.e_shoff != 0;
}

// A binary holds each file behind its size.
bool holds_file(std::string_view binary, const std::string& content) {
  const auto size = static_cast<uint32_t>(content.size());
  std::string with_size(sizeof size, '\0');
  std::memcpy(with_size.data(), &size, sizeof size);
  return !content.empty() && binary.find(with_size + content) != std::string_view::npos;
}

enum class State { kSound, kUnknown, kDamaged };

// A process that was killed leaves code without a checksum; of such a file it is only checked that it is not
// cut.
State state_of(const std::string& folder, const std::string& path, const Checksums& sums) {
  std::string content;
  if (!read_file(folder + "/" + path, content)) return State::kUnknown;  // it vanished, or cannot be read
  const auto sum = sums.find(path);
  if (sum != sums.end()) return hash128(content).hex() == sum->second ? State::kSound : State::kDamaged;
  if (path == kIr) return content.empty() ? State::kDamaged : State::kUnknown;
  return is_whole_library(content) ? State::kUnknown : State::kDamaged;
}

void warn_of_damage(const std::string& file) {
  static std::atomic<bool> warned{false};
  if (!warned.exchange(true))
    std::fprintf(stderr, "dlbackend: disk cache: %s: damaged; such files are removed and made anew\n",
                 file.c_str());
}

std::mutex g_used_mutex;
std::set<std::string>& used_folders() {
  static auto* folders = new std::set<std::string>;
  return *folders;
}

void mark_used(const std::string& folder) {
  std::lock_guard<std::mutex> lock(g_used_mutex);
  used_folders().insert(folder);
}

}  // namespace

std::string driver_folder_of_binary(std::string_view binary) {
  if (!binary.starts_with("poclbin")) return "";
  for (size_t at = 0; at + kHashSize <= std::min(binary.size(), kHashWithin); ++at)
    if (is_folder_name(binary.substr(at, kHashSize))) return std::string(binary.substr(at, kHashSize));
  return "";
}

// Compares times of the file system with each other, because its clock may differ from this machine's. A
// build makes and removes files in the root, so the root's time is that of the build.
std::string find_driver_folder(const std::string& marker, double seconds) {
  const std::string root = settings::pocl_cache_dir();
  struct stat info {};
  if (::stat(root.c_str(), &info) != 0) return "";
  const int64_t since = modified(info) - static_cast<int64_t>((seconds + 2) * 1e9);
  std::string found;
  for_each_program(
      root, [&](const struct stat& group) { return modified(group) >= since; },
      [&](const std::string& name) {
        const std::string file = root + "/" + name + "/" + kIr;
        struct stat ir {};
        std::string content;
        if (found.empty() && ::stat(file.c_str(), &ir) == 0 && modified(ir) >= since &&
            read_file(file, content) && content.find(marker) != std::string::npos)
          found = name;
      });
  return found;
}

bool has_driver_code(const std::string& folder, const std::string& kernel) {
  bool found = false;
  for_each_below(settings::pocl_cache_dir() + "/" + folder, kernel + "/",
                 [&](const std::string& path, const struct stat&) { found = found || is_code_or_ir(path); });
  return found;
}

bool check_driver_folder(const std::string& name, std::string_view binary) {
  const std::string folder = settings::pocl_cache_dir() + "/" + name;
  if (::access(folder.c_str(), F_OK) != 0) {
    mark_used(name);
    return false;
  }
  Checksums sums = read_checksums(folder);
  const size_t known = sums.size();
  bool sound = false;
  for_each_below(folder, "", [&](const std::string& path, const struct stat&) {
    if (!is_code_or_ir(path)) return;
    State state = state_of(folder, path, sums);
    std::string content;
    if (path == kIr && state == State::kUnknown && !binary.empty() && read_file(folder + "/" + path, content))
      state = holds_file(binary, content) ? State::kSound : State::kDamaged;
    if (path == kIr) sound = state == State::kSound;
    if (state != State::kDamaged) return;
    warn_of_damage(folder + "/" + path);
    ::unlink((folder + "/" + path).c_str());
    sums.erase(path);
  });
  if (!sound && binary.empty()) {
    remove_driver_folder(settings::pocl_cache_dir(),
                         name);  // code is useless without the IR that it was made from
    return false;
  }
  if (sums.size() != known) write_checksums(folder, sums);
  mark_used(name);
  return sound;
}

void record_driver_folder(const std::string& name) noexcept try {
  const std::string folder = settings::pocl_cache_dir() + "/" + name;
  mark_used(name);
  const Checksums before = read_checksums(folder);
  Checksums sums;
  for_each_below(folder, "", [&](const std::string& path, const struct stat&) {
    if (!is_code_or_ir(path)) return;
    const auto known = before.find(path);
    std::string content;
    if (known != before.end())
      sums.insert(*known);
    else if (read_file(folder + "/" + path, content))
      sums[path] = hash128(content).hex();
  });
  if (!sums.empty() && sums != before) write_checksums(folder, sums);
} catch (...) {
  log_dropped("recording a program's files");
}

void record_driver_folders() noexcept try {
  if (in_bad_fork()) return;
  std::set<std::string> folders;
  {
    std::lock_guard<std::mutex> lock(g_used_mutex);
    folders = used_folders();
  }
  for (const std::string& name : folders) record_driver_folder(name);
} catch (...) {
  log_dropped("recording programs' files");
}

bool remove_driver_folder(const std::string& root, const std::string& folder) noexcept try {
  static const unsigned machine = std::random_device{}();
  static std::atomic<unsigned> serial{0};
  const std::string removed = root + "/" + kRemoved + std::to_string(machine) + "." +
                              std::to_string(::getpid()) + "." + std::to_string(serial++);
  if (::rename((root + "/" + folder).c_str(), removed.c_str()) != 0) return false;
  std::error_code error;
  std::filesystem::remove_all(removed, error);
  return true;
} catch (...) {
  log_dropped("removing a program of PoCL");
  return false;
}

uint64_t OwnDriverCache::max_bytes() const {
  return kMaxBytes;
}

std::vector<OwnDriverCache::Folder> OwnDriverCache::folders() const {
  std::vector<Folder> result;
  for_each_program(
      root_, [](const struct stat&) { return true; },
      [&](const std::string& name) {
        struct stat made {};
        if (::stat((root_ + "/" + name).c_str(), &made) != 0) return;
        Folder folder{name, 0, modified(made)};
        for_each_below(root_ + "/" + name, "", [&](const std::string& path, const struct stat& info) {
          folder.bytes += static_cast<uint64_t>(info.st_size);
          if (path == "last_accessed") folder.used = modified(info);
        });
        result.push_back(std::move(folder));
      });
  return result;
}

std::string OwnDriverCache::fault(const std::string& name) const {
  const std::string folder = root_ + "/" + name;
  const Checksums sums = read_checksums(folder);
  std::string result;
  for_each_below(folder, "", [&](const std::string& path, const struct stat&) {
    if (is_code_or_ir(path) && state_of(folder, path, sums) == State::kDamaged) result = path + " is damaged";
  });
  return result;
}

void OwnDriverCache::prune() const noexcept try {
  if (root_.empty()) return;
  std::error_code error;
  for_each_in(root_, [&](const std::string& name, const struct stat& info) {
    const bool left = name.starts_with(kRemoved) || name.starts_with("temp");  // tempfile_…, tempdir_…
    if (left && modified(info) < now() - kDay) std::filesystem::remove_all(root_ + "/" + name, error);
  });
  std::vector<Folder> all = folders();
  uint64_t bytes = 0;
  for (Folder& folder : all) {
    bytes += folder.bytes;
    if (in_future(folder.used)) folder.used = 0;  // a wrong clock left it, so it says nothing
  }
  std::sort(all.begin(), all.end(), [](auto& a, auto& b) { return a.used < b.used; });
  for (const Folder& folder : all) {
    if (bytes <= kMaxBytes) break;
    remove(folder.name);
    bytes -= folder.bytes;
  }
} catch (...) {
  log_dropped("pruning the cache of PoCL");
}

const OwnDriverCache& own_driver_programs() {
  static const auto* cache = new OwnDriverCache(own_driver_cache());
  return *cache;
}

}  // namespace dlb::cl
