// Resolves the cache folder once per process and gives drivers a writable one.
#include "cl/stores/paths.h"

#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>
#include <cstdint>

#include <cstdio>
#include <cstdlib>
#include <vector>

#include "cl/settings.h"

namespace dlb::cl {
namespace {

std::string& prefix_storage() {
  static auto* prefix = new std::string;
  return *prefix;
}

std::string& package_storage() {
  static auto* folder = new std::string;
  return *folder;
}

// PoCL and LLVM end the process where they cannot write a file.
constexpr uint64_t kRoomBytes = 64ull << 20, kRoomFiles = 256;

// A folder for this user inside one that all users can write to, or "". Code is loaded from it, so it must be
// this user's own and nobody else may be able to change it.
std::string private_folder(const std::string& base, const char* stem) {
  const std::string dir = base + "/" + stem + std::to_string(::geteuid());
  make_folders(dir);
  struct stat info {};
  const bool ours = ::lstat(dir.c_str(), &info) == 0 && S_ISDIR(info.st_mode) && info.st_uid == ::geteuid() &&
                    (info.st_mode & 0777) == 0700;
  return ours ? dir : "";
}

bool writable_folder(const std::string& dir) {
  return make_folders(dir) && ::access(dir.c_str(), W_OK) == 0;
}

bool has_room(const std::string& dir, uint64_t bytes = kRoomBytes, uint64_t files = kRoomFiles) {
  struct statvfs disk {};
  if (::statvfs(dir.c_str(), &disk) != 0) return false;
  return uint64_t{disk.f_bavail} * disk.f_frsize >= bytes && (disk.f_files == 0 || disk.f_favail >= files);
}

// A folder for temporary files with room, or "".
std::string temporary_driver_cache() {
  for (const std::string& base : {settings::temporary_folder(), std::string("/dev/shm")}) {
    std::string dir = private_folder(base, "dlbackend-pocl-");
    if (dir.empty()) {
      dir = base + "/dlbackend-pocl-XXXXXX";
      if (!::mkdtemp(dir.data())) continue;
    }
    if (has_room(dir)) return dir;
  }
  return "";
}

// POCL_CACHE_DIR as the user has set it. It is first read before prepare_driver_caches() changes it.
const std::string& users_driver_cache() {
  static const auto* set = new std::string(settings::pocl_cache_dir());
  return *set;
}

std::string resolve_cache_dir() {
  if (const auto chosen = settings::cache_dir()) {
    // A folder chosen by the user is used even when it is read-only: it may be a shared, prefilled one.
    if (!chosen->empty()) make_folders(*chosen);
    return *chosen;
  }
  std::string home = settings::xdg_cache_home();
  if (home.empty() && !settings::home().empty()) home = settings::home() + "/.cache";
  if (!home.empty() && writable_folder(home + "/dlbackend")) return home + "/dlbackend";
  return private_folder(settings::temporary_folder(), "dlbackend-");
}

}  // namespace

std::string python_prefix() {
  return prefix_storage();
}
void set_python_prefix(const std::string& prefix) {
  prefix_storage() = prefix;
}

const std::string& package_dir() {
  return package_storage();
}
void set_package_dir(const std::string& folder) {
  package_storage() = folder;
}

bool make_folders(const std::string& path) {
  for (size_t at = path.find('/', 1);; at = path.find('/', at + 1)) {
    ::mkdir(path.substr(0, at).c_str(), 0700);
    if (at == std::string::npos) break;
  }
  struct stat info {};
  return ::stat(path.c_str(), &info) == 0 && S_ISDIR(info.st_mode);
}

const std::string& cache_dir() {
  static const auto* dir = new std::string(resolve_cache_dir());
  return *dir;
}

std::string own_driver_cache() {
  const std::string dir = cache_dir().empty() ? "" : cache_dir() + "/pocl";
  return users_driver_cache().empty() || users_driver_cache() == dir ? dir : "";
}

void prepare_driver_caches() {
  std::string dir = users_driver_cache();
  if (dir.empty() || !writable_folder(dir)) dir = cache_dir().empty() ? "" : cache_dir() + "/pocl";
  const bool writable = !dir.empty() && writable_folder(dir);
  if (!writable || !has_room(dir)) {
    const std::string other = temporary_driver_cache();
    if (writable || other.empty())
      std::fprintf(stderr, "dlbackend: disk cache: no room in %s for the driver's cache%s\n",
                   dir.empty() ? settings::temporary_folder().c_str() : dir.c_str(),
                   other.empty() ? "; compiling may fail" : ("; going on in " + other).c_str());
    if (!other.empty()) dir = other;
  }
  if (!dir.empty()) settings::set_pocl_cache_dir(dir);
}

std::string driver_cache_without_room() {
  constexpr uint64_t kBytes = 8ull << 20, kFiles = 64;  // several times what one program takes
  const std::string dir = settings::pocl_cache_dir();
  return dir.empty() || has_room(dir, kBytes, kFiles) ? "" : dir;
}

std::string pocl_cache_identity() {
  struct stat info {};
  const std::string dir = settings::pocl_cache_dir();
  if (settings::pocl_kernel_cache() == "0" || ::stat(dir.c_str(), &info) != 0) return "";
  return std::to_string(info.st_dev) + ":" + std::to_string(info.st_ino);
}

}  // namespace dlb::cl
