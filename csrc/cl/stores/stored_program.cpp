// Writes and reads the notes, and finds programs in the driver's own cache.
#include "cl/stores/stored_program.h"

#include <cstdio>
#include <mutex>
#include <random>

#include "cl/builtins.h"
#include "cl/stores/driver_cache.h"
#include "cl/stores/paths.h"

namespace dlb::cl {

namespace {

constexpr std::string_view kNote = "kept by the driver: ", kMarker = "dlb_build_";
constexpr size_t kMarkerDigits = 16;

// The note has the hash of the declarations in front of the source: another version of this library may build
// the source behind other ones, which PoCL would not find again.
std::string note(const Device& device, const std::string& source, const std::string& cache,
                 const std::string& folder, const std::string& marker) {
  return std::string(kNote) + cache + " " + folder + " " + marker + " " +
         hash128(builtin_declarations(device, source)).hex();
}

}  // namespace

bool is_note(std::string_view stored) {
  return stored.substr(0, kNote.size()) == kNote;
}

std::string new_marker() {
  static std::mutex mutex;
  static std::random_device random;
  std::lock_guard<std::mutex> lock(mutex);
  char digits[kMarkerDigits + 1];
  std::snprintf(digits, sizeof digits, "%08x%08x", random(), random());
  return std::string(kMarker) + digits;
}

std::string marker_of(std::string_view stored) {
  const size_t at = stored.find(kMarker);
  if (at == std::string_view::npos) return "";
  const std::string_view marker = stored.substr(at, kMarker.size() + kMarkerDigits);
  const bool whole = marker.size() == kMarker.size() + kMarkerDigits &&
                     marker.find_first_not_of("0123456789abcdef", kMarker.size()) == std::string_view::npos;
  return whole ? std::string(marker) : "";
}

std::string marked(const std::string& source, const std::string& marker) {
  return marker.empty() ? source : source + "\nconstant int " + marker + " = 0;\n";
}

std::string driver_cache_of(const Device& device) {
  return device.late_code ? pocl_cache_identity() : "";
}

std::string stored_folder(std::string_view stored) {
  if (!is_note(stored)) return driver_folder_of_binary(stored);
  const size_t space = stored.find(' ', kNote.size());
  const size_t end = stored.find(' ', space == std::string_view::npos ? space : space + 1);
  return end == std::string_view::npos ? "" : std::string(stored.substr(space + 1, end - space - 1));
}

std::string what_to_store(const Device& device, const std::string& source, const Compiled& compiled,
                          const std::string& marker) {
  const std::string cache = driver_cache_of(device);
  if (cache.empty()) return binary_of(compiled.program);
  const std::string folder = marker.empty() ? "" : find_driver_folder(marker, compiled.seconds);
  if (folder.empty()) return "";
  record_driver_folder(folder);
  return note(device, source, cache, folder, marker);
}

cl_program load_stored(Device& device, const std::string& stored, const std::string& source,
                       const std::string& options, const Hash128& key) {
  const std::string cache = driver_cache_of(device);
  if (!is_note(stored)) {
    const std::string folder = cache.empty() ? "" : stored_folder(stored);
    if (!folder.empty()) check_driver_folder(folder, stored);
    return load_binary(device, stored, options);
  }
  const std::string folder = stored_folder(stored), marker = marker_of(stored);
  if (cache.empty() || folder.empty() || marker.empty() ||
      stored != note(device, source, cache, folder, marker) || !check_driver_folder(folder))
    return nullptr;
  return build_source(device, marked(source, marker), options, key);
}

}  // namespace dlb::cl
