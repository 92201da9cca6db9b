// Reads environment variables, and says on stderr which of them are ignored.
#include "cl/settings.h"

#include <charconv>
#include <cstdio>
#include <cstdlib>
#include <limits>
#include <string_view>

namespace dlb::cl::settings {
namespace {

std::optional<std::string> read(const char* name) {
  const char* value = std::getenv(name);
  return value ? std::optional<std::string>(value) : std::nullopt;
}

std::string text(const char* name) {
  return read(name).value_or("");
}

void report_ignored(const char* name, const std::string& value, const std::string& expected) {
  std::fprintf(stderr, "dlbackend: %s=%s is ignored; it is %s\n", name, value.c_str(), expected.c_str());
}

std::string one_of(const char* name, std::string_view first, std::string_view second) {
  std::string value = text(name);
  if (value.empty() || value == first || value == second) return value;
  report_ignored(name, value, std::string(first) + " or " + std::string(second));
  return "";
}

std::optional<int64_t> number(const char* name, int64_t least, int64_t most, const std::string& expected) {
  const std::string value = text(name);
  if (value.empty()) return {};
  int64_t found = 0;
  const char* const end = value.data() + value.size();
  const auto [stop, error] = std::from_chars(value.data(), end, found);
  if (error == std::errc() && stop == end && found >= least && found <= most) return found;
  report_ignored(name, value, expected);
  return {};
}

uint64_t positive(const char* name, const std::string& things) {
  constexpr int64_t kMost = std::numeric_limits<int64_t>::max();
  return static_cast<uint64_t>(number(name, 1, kMost, "a number of " + things).value_or(0));
}

}  // namespace

std::optional<std::string> devices() {
  return read("DLBACKEND_DEVICES");
}
std::optional<std::string> cache_dir() {
  return read("DLBACKEND_CACHE_DIR");
}
std::optional<std::string> packs() {
  return read("DLBACKEND_PACKS");
}

std::string device_class() {
  return one_of("DLBACKEND_DEVICE_CLASS", "cpu", "gpu");
}
std::string cpu_bf16() {
  return one_of("DLBACKEND_CPU_BF16", "vectors", "none");
}
std::string tensor_cores() {
  return one_of("DLBACKEND_TENSOR_CORES", "none", "emulated");
}
std::string rates() {
  return one_of("DLBACKEND_RATES", "measured", "derived");
}
std::string enqueue_thread() {
  return one_of("DLBACKEND_ENQUEUE_THREAD", "0", "1");
}
std::string groups_advance() {
  return one_of("DLBACKEND_GROUPS_ADVANCE", "0", "1");
}

uint64_t device_cache() {
  return positive("DLBACKEND_DEVICE_CACHE", "bytes");
}
uint64_t vector_floats() {
  return positive("DLBACKEND_VECTOR_FLOATS", "floats");
}
uint64_t max_programs() {
  return positive("DLBACKEND_MAX_PROGRAMS", "programs");
}

unsigned local_ranks() {
  return static_cast<unsigned>(number("LOCAL_WORLD_SIZE", 1, 1 << 16, "a number of processes").value_or(1));
}
std::optional<unsigned> compile_processes() {
  return number("DLBACKEND_COMPILE_PROCESSES", 0, 64, "a number up to 64");
}
int verbose() {
  return static_cast<int>(number("DLBACKEND_VERBOSE", 0, 2, "0, 1 or 2").value_or(0));
}

std::string opencl_library() {
  return text("DLBACKEND_OPENCL_LIBRARY");
}
std::string find_mode() {
  return text("DLBACKEND_FIND_MODE");
}
std::string find_share() {
  return text("DLBACKEND_FIND_SHARE");
}
std::string solver() {
  return text("DLBACKEND_SOLVER");
}
std::string fallback() {
  return text("DLBACKEND_FALLBACK");
}

std::string home() {
  return text("HOME");
}
std::string xdg_cache_home() {
  return text("XDG_CACHE_HOME");
}
std::string temporary_folder() {
  const std::string folder = text("TMPDIR");
  return folder.empty() ? "/tmp" : folder;
}
std::string pocl_cache_dir() {
  return text("POCL_CACHE_DIR");
}
std::string pocl_kernel_cache() {
  return text("POCL_KERNEL_CACHE");
}

void set_pocl_cache_dir(const std::string& folder) {
  ::setenv("POCL_CACHE_DIR", folder.c_str(), 1);
}
void set_default_cuda_connections(int connections) {
  ::setenv("CUDA_DEVICE_MAX_CONNECTIONS", std::to_string(connections).c_str(), 0);
}
void set_default_pocl_threads(int threads) {
  for (const char* name : {"POCL_MAX_PTHREAD_COUNT", "POCL_CPU_MAX_CU_COUNT"})  // before PoCL 4, and since
    ::setenv(name, std::to_string(threads).c_str(), 0);
}

}  // namespace dlb::cl::settings
