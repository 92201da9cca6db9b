// Keys and payloads of programs in PTX. A payload is a line with the version of the driver that made it, then
// the driver's binary as it is.
#include "cl/stores/portable_program.h"

#include <algorithm>
#include <charconv>

#include "cl/compile.h"
#include "cl/hash.h"
#include "cl/log.h"
#include "cl/stores/pack.h"

namespace dlb::cl {

namespace {

constexpr std::string_view kPayload = "dlbackend-ptx 1 ";  // followed by the driver's version
// The targets that PTX was or will be compiled for, as the driver names them: ten times the compute
// capability.
constexpr int kTargets[] = {121, 120, 110, 103, 101, 100, 90, 89, 87, 86,
                            80,  75,  72,  70,  62,  61,  60, 53, 52, 50};

// The device's own target; 0 where the driver does not compile to PTX.
int target_of(const Device& device) {
  constexpr cl_device_info kMajor = 0x4000, kMinor = 0x4001;  // of cl_nv_device_attribute_query
  cl_uint major = 0, minor = 0;
  if (device.platform_name != "NVIDIA CUDA" ||
      api().clGetDeviceInfo(device.id, kMajor, sizeof major, &major, nullptr) != CL_SUCCESS ||
      api().clGetDeviceInfo(device.id, kMinor, sizeof minor, &minor, nullptr) != CL_SUCCESS)
    return 0;
  return static_cast<int>(10 * major + minor);
}

// The target that a text of PTX names; 0 where it is none. One with a letter behind the number (sm_90a) holds
// for that GPU alone, and counts as none.
int target_in(std::string_view binary) {
  constexpr std::string_view kVersion = "\n.version ", kTarget = "\n.target sm_";
  const size_t at = binary.find(kTarget);
  if (binary.find(kVersion) > at || at == std::string_view::npos) return 0;
  int target = 0;
  const char* const end = binary.data() + binary.size();
  const auto [next, error] = std::from_chars(binary.data() + at + kTarget.size(), end, target);
  const bool plain = next < end && (*next == '\n' || *next == ',' || *next == ' ' || *next == '\r');
  return error == std::errc{} && plain ? target : 0;
}

std::string key_of(int target, const std::string& options, const std::string& source) {
  return "NVIDIA CUDA|ptx|sm_" + std::to_string(target) + "\n" + hash128(options + "\n" + source).hex();
}

// Whether version `a`, as 580.159.04, is `b` or later. A part that is no number counts as 0.
bool at_least(std::string_view a, std::string_view b) {
  while (!a.empty() || !b.empty()) {
    const auto take = [](std::string_view& version) {
      const std::string_view word = version.substr(0, version.find('.'));
      version.remove_prefix(std::min(version.size(), word.size() + 1));
      int number = 0;
      std::from_chars(word.data(), word.data() + word.size(), number);
      return number;
    };
    const int left = take(a), right = take(b);
    if (left != right) return left > right;
  }
  return true;
}

}  // namespace

bool compiles_to_ptx(const Device& device) {
  return target_of(device) != 0;
}

std::vector<std::string> portable_keys(const Device& device, const std::string& options,
                                       const std::string& source) {
  std::vector<std::string> keys;
  const int own = target_of(device);
  if (own == 0) return keys;
  if (std::find(std::begin(kTargets), std::end(kTargets), own) == std::end(kTargets))
    keys.push_back(key_of(own, options, source));
  for (const int target : kTargets)
    if (target <= own) keys.push_back(key_of(target, options, source));
  return keys;
}

std::optional<PortableProgram> portable_program(const Device& device, const std::string& key,
                                                const std::string& binary) {
  const std::string tag = device.cache_tag + "\n";
  const size_t source = key.find('\n', tag.size()) + 1;
  const int target = target_of(device);
  if (target == 0 || target_in(binary) == 0 || target_in(binary) > target || !key.starts_with(tag) ||
      source == 0)
    return std::nullopt;
  const std::string options = key.substr(tag.size(), source - 1 - tag.size());
  return PortableProgram{key_of(target_in(binary), options, key.substr(source)),
                         std::string(kPayload) + device.driver_version + "\n" + binary};
}

std::optional<std::string> portable_binary(const Device& device, const std::string& payload) {
  const size_t end = payload.find('\n');
  if (!payload.starts_with(kPayload) || end == std::string::npos) return std::nullopt;
  const std::string_view maker = std::string_view(payload).substr(kPayload.size(), end - kPayload.size());
  if (!at_least(device.driver_version, maker)) {
    log(1, "program of a pack left out,made by driver " + std::string(maker) + "," + device.driver_version);
    return std::nullopt;
  }
  std::string binary = payload.substr(end + 1);
  const int target = target_in(binary);
  if (target == 0 || target > target_of(device)) return std::nullopt;
  return binary;
}

namespace {

// Calls `take` with the binaries that packs have for the program, and their pack, until it returns true.
template <class Take>
void find_portable(const Device& device, const std::string& source, const std::string& options, Take&& take) {
  for (const std::string& key : portable_keys(device, options, source))
    for (const auto& pack : system_packs()) {
      const auto payload = pack->load(StoreKind::kProgram, key);
      const auto binary = payload ? portable_binary(device, *payload) : std::nullopt;
      if (binary && take(*binary, *pack)) return;
    }
}

}  // namespace

cl_program load_portable(Device& device, const std::string& source, const std::string& options) {
  cl_program program = nullptr;
  find_portable(device, source, options, [&](const std::string& binary, const Pack& pack) {
    program = load_binary(device, binary, options);
    if (!program) log(1, "program of a pack left out,the driver does not take it," + pack.path());
    return program != nullptr;
  });
  return program;
}

bool has_portable(const Device& device, const std::string& source, const std::string& options) {
  bool found = false;
  find_portable(device, source, options, [&](const std::string&, const Pack&) { return found = true; });
  return found;
}

}  // namespace dlb::cl
