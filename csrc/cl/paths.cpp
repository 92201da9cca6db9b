// Resolves the cache folder once per process and gives drivers a writable one.
#include "cl/paths.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <vector>

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

std::string env(const char* name) {
  const char* value = std::getenv(name);
  return value ? value : "";
}

std::string temp_folder(const char* stem) {
  return (env("TMPDIR").empty() ? "/tmp" : env("TMPDIR")) + "/" + stem + std::to_string(::getuid());
}

bool writable_folder(const std::string& dir) {
  return make_folders(dir) && ::access(dir.c_str(), W_OK) == 0;
}

std::string resolve_cache_dir() {
  if (const char* chosen = std::getenv("DLBACKEND_CACHE_DIR")) {
    // A folder chosen by the user is used even when it is read-only: it may be a shared, prefilled one.
    if (*chosen) make_folders(chosen);
    return chosen;
  }
  std::string home = env("XDG_CACHE_HOME");
  if (home.empty() && !env("HOME").empty()) home = env("HOME") + "/.cache";
  if (!home.empty() && writable_folder(home + "/dlbackend")) return home + "/dlbackend";
  const std::string temporary = temp_folder("dlbackend-");
  return writable_folder(temporary) ? temporary : "";
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

void prepare_driver_caches() {
  const std::string set = env("POCL_CACHE_DIR");
  if (!set.empty() && writable_folder(set)) return;
  std::string dir = cache_dir().empty() ? "" : cache_dir() + "/pocl";
  if (dir.empty() || !writable_folder(dir)) {
    dir = temp_folder("dlbackend-pocl-");
    make_folders(dir);
  }
  ::setenv("POCL_CACHE_DIR", dir.c_str(), 1);
}

std::string pocl_cache_identity() {
  struct stat info {};
  if (env("POCL_KERNEL_CACHE") == "0" || ::stat(env("POCL_CACHE_DIR").c_str(), &info) != 0) return "";
  return std::to_string(info.st_dev) + ":" + std::to_string(info.st_ino);
}

}  // namespace dlb::cl
