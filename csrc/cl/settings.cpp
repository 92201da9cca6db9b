// Reads environment variables, and says on stderr which of them are ignored.
#include "cl/settings.h"

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <cstdlib>
#include <iterator>
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

void report_ignored(const std::string& name, const std::string& value, const std::string& expected) {
  std::fprintf(stderr, "dlbackend: %s=%s is ignored; it is %s\n", name.c_str(), value.c_str(),
               expected.c_str());
}

// What the list DLBACKEND_EMULATE gives as `part`. Entries that are no part of it are reported with the first
// part.
std::string emulated(std::string_view part) {
  constexpr std::string_view kParts[] = {"class", "bf16",  "int8",          "tensor_cores", "groups_advance",
                                         "tiers", "cache", "vector_floats", "host"};
  const std::string list = text("DLBACKEND_EMULATE");
  std::string found;
  for (std::string_view rest = list; !rest.empty();) {
    const size_t end = std::min(rest.find(','), rest.size());
    const std::string_view entry = rest.substr(0, end);
    const std::string_view name = entry.substr(0, entry.find('='));
    const bool is_known = std::find(std::begin(kParts), std::end(kParts), name) != std::end(kParts);
    if (!is_known && part == kParts[0])
      report_ignored(
          "DLBACKEND_EMULATE", std::string(entry),
          "PART=VALUE, of class, bf16, int8, tensor_cores, groups_advance, tiers, cache, vector_floats and "
          "host");
    if (name == part) found = entry.substr(std::min(entry.find('=') + 1, entry.size()));
    rest.remove_prefix(std::min(end + 1, rest.size()));
  }
  return found;
}

std::string one_of(const std::string& name, const std::string& value, std::string_view first,
                   std::string_view second) {
  if (value.empty() || value == first || value == second) return value;
  report_ignored(name, value, std::string(first) + " or " + std::string(second));
  return "";
}
std::string one_of(const char* name, std::string_view first, std::string_view second) {
  return one_of(name, text(name), first, second);
}

std::optional<int64_t> number(const std::string& name, const std::string& value, int64_t least, int64_t most,
                              const std::string& expected) {
  if (value.empty()) return {};
  int64_t found = 0;
  const char* const end = value.data() + value.size();
  const auto [stop, error] = std::from_chars(value.data(), end, found);
  if (error == std::errc() && stop == end && found >= least && found <= most) return found;
  report_ignored(name, value, expected);
  return {};
}

uint64_t positive(const std::string& name, const std::string& value, const std::string& things) {
  constexpr int64_t kMost = std::numeric_limits<int64_t>::max();
  return static_cast<uint64_t>(number(name, value, 1, kMost, "a number of " + things).value_or(0));
}

std::string emulated_word(const std::string& part, std::string_view first, std::string_view second) {
  return one_of("DLBACKEND_EMULATE: " + part, emulated(part), first, second);
}
uint64_t emulated_number(const std::string& part, const std::string& things) {
  return positive("DLBACKEND_EMULATE: " + part, emulated(part), things);
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

std::string emulated_class() {
  return emulated_word("class", "cpu", "gpu");
}
std::string emulated_bf16() {
  return emulated_word("bf16", "vectors", "none");
}
std::string emulated_int8() {
  return emulated_word("int8", "vectors", "pairs");
}
std::string emulated_tensor_cores() {
  return emulated_word("tensor_cores", "none", "emulated");
}
std::string emulated_groups_advance() {
  return emulated_word("groups_advance", "0", "1");
}
std::string emulated_tiers() {
  return emulated_word("tiers", "0", "1");
}
std::string emulated_host() {
  return emulated("host");
}
uint64_t emulated_cache() {
  return emulated_number("cache", "bytes");
}
uint64_t emulated_vector_floats() {
  return emulated_number("vector_floats", "floats");
}

std::string rates() {
  return one_of("DLBACKEND_RATES", "measured", "derived");
}
std::string enqueue_thread() {
  return one_of("DLBACKEND_ENQUEUE_THREAD", "0", "1");
}
uint64_t max_programs() {
  return positive("DLBACKEND_MAX_PROGRAMS", text("DLBACKEND_MAX_PROGRAMS"), "programs");
}

unsigned local_ranks() {
  return static_cast<unsigned>(
      number("LOCAL_WORLD_SIZE", text("LOCAL_WORLD_SIZE"), 1, 1 << 16, "a number of processes").value_or(1));
}
std::optional<unsigned> compile_processes() {
  return number("DLBACKEND_COMPILE_PROCESSES", text("DLBACKEND_COMPILE_PROCESSES"), 0, 64,
                "a number up to 64");
}
int verbose() {
  return static_cast<int>(
      number("DLBACKEND_VERBOSE", text("DLBACKEND_VERBOSE"), 0, 2, "0, 1 or 2").value_or(0));
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
