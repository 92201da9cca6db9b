// Enumerates OpenCL devices over all platforms and reads their capabilities.
#include "cl/device.h"

#include <algorithm>
#include <cctype>
#include <cstdio>
#include <cstdlib>
#include <limits>
#include <memory>
#include <optional>
#include <sstream>
#include <vector>

#if defined(__x86_64__) && defined(__linux__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

#include "cl/log.h"
#include "cl/settings.h"

namespace dlb::cl {
namespace {

#if defined(__x86_64__) && defined(__linux__)
// Whether the CPU has AMX tiles with these instructions, a bit of EDX, and the process may use them.
bool get_amx(unsigned instructions) {
  constexpr unsigned kSaveByOs = 1u << 27, kTile = 1u << 24;
  constexpr long kRequestPermission = 0x1023, kTileData = 18;  // ARCH_REQ_XCOMP_PERM of asm/prctl.h
  unsigned a = 0, b = 0, c = 0, d = 0;
  if (!__get_cpuid(1, &a, &b, &c, &d) || !(c & kSaveByOs)) return false;
  if (!__get_cpuid_count(7, 0, &a, &b, &c, &d) || !(d & kTile) || !(d & instructions)) return false;
  return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
}
// The instructions for bfloat16 that the CPU has, or fewer where DLBACKEND_EMULATE asks for fewer.
Bf16 get_bf16() {
  constexpr unsigned kTileBf16 = 1u << 22;
  const std::string chosen = settings::emulated_bf16();
  const bool vectors = __builtin_cpu_supports("avx512bf16") && __builtin_cpu_supports("avx512bw") &&
                       __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("bmi2");
  if (!vectors || chosen == "none") return Bf16::kNone;
  return chosen != "vectors" && get_amx(kTileBf16) ? Bf16::kTiles : Bf16::kVectors;
}
Int8 get_int8() {
  constexpr unsigned kTileInt8 = 1u << 25;
  const std::string chosen = settings::emulated_int8();
  const bool vectors = __builtin_cpu_supports("avx512vnni") && __builtin_cpu_supports("avx512bw") &&
                       __builtin_cpu_supports("avx512vl");
  if (!vectors || chosen == "pairs") return Int8::kPairs;
  return chosen != "vectors" && get_amx(kTileInt8) ? Int8::kTiles : Int8::kVectors;
}
#else
Bf16 get_bf16() {
  return Bf16::kNone;
}
Int8 get_int8() {
  return Int8::kPairs;
}
#endif

template <class T>
T info(cl_device_id id, cl_device_info what) {
  T value{};
  DLB_CL(clGetDeviceInfo, id, what, sizeof(T), &value, nullptr);
  return value;
}

// The text that `get(bytes, memory, &size)` reads, without the characters of `ending` that it ends with.
template <class Get>
std::string read_text(std::string_view ending, Get&& get) {
  size_t size = 0;
  get(0, nullptr, &size);
  std::string text(size, '\0');
  get(size, text.data(), nullptr);
  text.resize(text.find_last_not_of(ending) + 1);
  return text;
}

std::string info_string(cl_device_id id, cl_device_info what) {
  return read_text(std::string_view("\0 ", 2), [&](size_t bytes, void* memory, size_t* size) {
    DLB_CL(clGetDeviceInfo, id, what, bytes, memory, size);
  });
}

std::string platform_string(cl_platform_id id, cl_platform_info what) {
  return read_text(std::string_view("\0", 1), [&](size_t bytes, void* memory, size_t* size) {
    DLB_CL(clGetPlatformInfo, id, what, bytes, memory, size);
  });
}

// The kernels of GPUs take work-groups of 256 and the 32 KiB of local memory that OpenCL's full profile
// promises. What has less runs those of CPUs, which need neither.
DeviceClass class_of(const Device& device) {
  constexpr size_t kLeastWorkGroup = 256;
  constexpr uint64_t kLeastLocalMemory = 32 << 10;
  const std::string forced = settings::emulated_class();
  if (forced == "cpu") return DeviceClass::kCpu;
  if (forced == "gpu") return DeviceClass::kGpu;
  const bool is_small = device.max_work_group < kLeastWorkGroup || device.local_mem < kLeastLocalMemory;
  return (device.type & CL_DEVICE_TYPE_CPU) || is_small ? DeviceClass::kCpu : DeviceClass::kGpu;
}

// The width that the driver reports, unless DLBACKEND_EMULATE overrides it.
uint32_t vector_floats_of(cl_device_id id) {
  if (const uint64_t chosen = settings::emulated_vector_floats()) return static_cast<uint32_t>(chosen);
  return std::max<cl_uint>(1, info<cl_uint>(id, CL_DEVICE_NATIVE_VECTOR_WIDTH_FLOAT));
}

// The size that the driver reports, unless DLBACKEND_EMULATE overrides it. Where neither gives a size,
// nothing counts as too large for the cache.
uint64_t cache_of(cl_device_id id) {
  if (const uint64_t chosen = settings::emulated_cache()) return chosen;
  const auto bytes = info<cl_ulong>(id, CL_DEVICE_GLOBAL_MEM_CACHE_SIZE);
  return bytes ? bytes : std::numeric_limits<uint64_t>::max();
}

// Ten times the major number and the minor one, as in sm_90; 0 on devices that are not NVIDIA's.
cl_uint compute_capability(const Device& device) {
  constexpr cl_device_info kMajor = 0x4000, kMinor = 0x4001;  // of cl_nv_device_attribute_query
  cl_uint major = 0, minor = 0;
  const auto ask = [&](cl_device_info what, cl_uint& number) {
    return api().clGetDeviceInfo(device.id, what, sizeof number, &number, nullptr) == CL_SUCCESS;
  };
  const bool nvidia = device.platform_name == "NVIDIA CUDA" && ask(kMajor, major) && ask(kMinor, minor);
  return nvidia ? 10 * major + minor : 0;
}

TensorCores tensor_cores_of(const Device& device) {
  constexpr cl_uint kAmpere = 80;  // the first with mma of bfloat16, of TF32 and of 16 half along k
  const std::string chosen = settings::emulated_tensor_cores();
  if (chosen == "none" || device.cls != DeviceClass::kGpu) return TensorCores::kNone;
  if (chosen == "emulated") return TensorCores::kEmulated;
  return compute_capability(device) >= kAmpere ? TensorCores::kMma : TensorCores::kNone;
}

bool groups_advance(const Device& device) {
  constexpr cl_uint kVolta = 70;  // the first whose work-items NVIDIA promises to go on independently
  if (const std::string chosen = settings::emulated_groups_advance(); !chosen.empty()) return chosen == "1";
  return device.host_memory || compute_capability(device) >= kVolta;
}

std::unique_ptr<Device> describe(cl_platform_id platform, cl_device_id id) {
  auto device = std::make_unique<Device>();
  device->platform = platform;
  device->id = id;
  device->type = info<cl_device_type>(id, CL_DEVICE_TYPE);
  device->name = info_string(id, CL_DEVICE_NAME);
  device->vendor = info_string(id, CL_DEVICE_VENDOR);
  device->driver_version = info_string(id, CL_DRIVER_VERSION);
  device->version = info_string(id, CL_DEVICE_VERSION);
  device->platform_name = platform_string(platform, CL_PLATFORM_NAME);
  device->global_mem = info<cl_ulong>(id, CL_DEVICE_GLOBAL_MEM_SIZE);
  device->max_alloc = info<cl_ulong>(id, CL_DEVICE_MAX_MEM_ALLOC_SIZE);
  device->local_mem = info<cl_ulong>(id, CL_DEVICE_LOCAL_MEM_SIZE);
  device->cache = cache_of(id);
  device->compute_units = std::max<cl_uint>(1, info<cl_uint>(id, CL_DEVICE_MAX_COMPUTE_UNITS));
  device->max_work_group = info<size_t>(id, CL_DEVICE_MAX_WORK_GROUP_SIZE);
  device->cls = class_of(*device);
  device->vector_floats = vector_floats_of(id);
  device->base_align = std::max<cl_uint>(64, info<cl_uint>(id, CL_DEVICE_MEM_BASE_ADDR_ALIGN) / 8);
  const std::string extensions = info_string(id, CL_DEVICE_EXTENSIONS);
  for (Feature* feature : {&device->fp64, &device->fp16, &device->int64_atomics, &device->ptx_atomics})
    feature->find_in(extensions);
  device->host_memory = (device->type & CL_DEVICE_TYPE_CPU) != 0;
  const bool pocl = device->platform_name == "Portable Computing Language";
  device->flush_needed = !pocl;
  device->late_code = pocl;
  device->builds_all = pocl || device->platform_name == "NVIDIA CUDA";
  device->clang_on_host = pocl && device->host_memory;
  // 3.1 keeps what a function asks of its target, 7.1 does not; those between have not been tried.
  device->keeps_targets = !pocl || std::atoi(device->driver_version.c_str()) <= 3;
  // PoCL's device without threads: "basic", from PoCL 4 on "cpu-minimal".
  if (pocl && (device->name.starts_with("basic") || device->name.starts_with("cpu-minimal")))
    serialize_commands();
  device->groups_advance = groups_advance(*device);
  device->tensor_cores = tensor_cores_of(*device);
  constexpr cl_uint kHopper = 90;
  if (device->tensor_cores == TensorCores::kMma && compute_capability(*device) == kHopper)
    device->wgmma.find_in(extensions);
  // The language version is named because its default differs between drivers and their releases. Warnings
  // are turned off because some drivers print them (a loop that was not vectorised) to the user's terminal.
  device->build_options = "-cl-std=CL1.2 -w";
  if (device->tensor_cores == TensorCores::kMma) device->build_options += " -DDLB_PTX_BF16";  // types.clh
  const auto fp = info<cl_device_fp_config>(id, CL_DEVICE_SINGLE_FP_CONFIG);
  if (fp & CL_FP_CORRECTLY_ROUNDED_DIVIDE_SQRT)
    device->build_options += " -cl-fp32-correctly-rounded-divide-sqrt";
  device->cache_tag = device->platform_name + "|" + platform_string(platform, CL_PLATFORM_VERSION) + "|" +
                      device->name + "|" + device->version + "|" + device->driver_version;
  return device;
}

using Devices = std::vector<std::unique_ptr<Device>>;

std::string name_of(cl_platform_id platform) {
  try {
    return platform_string(platform, CL_PLATFORM_NAME);
  } catch (const Error&) {
    return "without a name";
  }
}

std::vector<cl_device_id> devices_of(cl_platform_id platform) {
  cl_uint count = 0;
  const cl_int status = api().clGetDeviceIDs(platform, CL_DEVICE_TYPE_ALL, 0, nullptr, &count);
  if (status == CL_DEVICE_NOT_FOUND) return {};
  check(status, "clGetDeviceIDs");
  std::vector<cl_device_id> devices(count);
  DLB_CL(clGetDeviceIDs, platform, CL_DEVICE_TYPE_ALL, count, devices.data(), nullptr);
  return devices;
}

// Runs look(), and reports what it throws: one broken device or driver must not hide the others.
template <class F>
void unless_it_fails(const std::string& what, F&& look) {
  try {
    look();
  } catch (const std::exception& error) {
    std::fprintf(stderr, "dlbackend: %s is left out: %s\n", what.c_str(), error.what());
  }
}

Devices enumerate() {
  Devices found;
  cl_uint platforms = 0;
  if (api().clGetPlatformIDs(0, nullptr, &platforms) != CL_SUCCESS) return found;
  std::vector<cl_platform_id> ids(platforms);
  DLB_CL(clGetPlatformIDs, platforms, ids.data(), nullptr);
  for (cl_platform_id platform : ids) {
    std::vector<cl_device_id> devices;
    unless_it_fails("OpenCL platform " + name_of(platform), [&] { devices = devices_of(platform); });
    for (size_t i = 0; i < devices.size(); ++i)
      unless_it_fails("device " + std::to_string(i) + " of OpenCL platform " + name_of(platform), [&] {
        const cl_device_id id = devices[i];
        if (info<cl_bool>(id, CL_DEVICE_AVAILABLE) && info<cl_bool>(id, CL_DEVICE_COMPILER_AVAILABLE))
          found.push_back(describe(platform, id));
      });
  }
  auto rank = [](const std::unique_ptr<Device>& d) {
    return (d->type & CL_DEVICE_TYPE_GPU) ? 0 : (d->type & CL_DEVICE_TYPE_ACCELERATOR) ? 1 : 2;
  };
  std::stable_sort(found.begin(), found.end(), [&](auto& a, auto& b) { return rank(a) < rank(b); });
  return found;
}

std::string lower(std::string text) {
  for (char& c : text) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return text;
}

std::string stripped(const std::string& text) {
  constexpr const char* kBlank = " \t\r\n";
  const size_t begin = text.find_first_not_of(kBlank);
  return begin == std::string::npos ? "" : text.substr(begin, text.find_last_not_of(kBlank) + 1 - begin);
}

bool matches(const Device& device, size_t position, const std::string& wanted) {
  if (wanted.find_first_not_of("0123456789") == std::string::npos) return std::to_string(position) == wanted;
  if (wanted == "cpu") return device.type & CL_DEVICE_TYPE_CPU;
  if (wanted == "gpu") return device.type & CL_DEVICE_TYPE_GPU;
  return lower(device.name + "|" + device.platform_name + "|" + device.vendor).find(wanted) !=
         std::string::npos;
}

Devices select(Devices all) {
  const std::optional<std::string> chosen = settings::devices();
  if (!chosen) return all;
  std::vector<size_t> order;
  std::istringstream words(lower(*chosen));
  for (std::string word; std::getline(words, word, ',');) {
    const std::string wanted = stripped(word);
    if (wanted.empty()) continue;
    bool known = false;
    for (size_t i = 0; i < all.size(); ++i) {
      if (!matches(*all[i], i, wanted)) continue;
      known = true;
      if (std::find(order.begin(), order.end(), i) == order.end()) order.push_back(i);
    }
    if (!known)
      std::fprintf(stderr, "dlbackend: DLBACKEND_DEVICES=%s: no OpenCL device is \"%s\"\n", chosen->c_str(),
                   wanted.c_str());
  }
  Devices selected;
  for (const size_t i : order) selected.push_back(std::move(all[i]));
  return selected;
}

Devices& devices() {
  static auto* all = [] {
    auto* result = new Devices(select(enumerate()));
    if (result->size() > kMostDevices) result->resize(kMostDevices);
    for (size_t i = 0; i < result->size(); ++i) (*result)[i]->index = static_cast<int>(i);
    return result;
  }();
  return *all;
}

}  // namespace

Bf16 Device::bf16() const {
  if (!clang_on_host || !keeps_targets) return Bf16::kNone;
  static const Bf16 found = get_bf16();
  return found;
}

Int8 Device::int8() const {
  if (!clang_on_host || !keeps_targets) return Int8::kPairs;
  static const Int8 found = get_int8();
  return found;
}

cl_context Device::context() {
  std::call_once(context_once_, [this] {
    cl_int status = CL_SUCCESS;
    const cl_context_properties properties[] = {CL_CONTEXT_PLATFORM,
                                                reinterpret_cast<cl_context_properties>(platform), 0};
    context_ = api().clCreateContext(properties, 1, &id, nullptr, nullptr, &status);
    if (status != CL_SUCCESS) throw_error(status, "clCreateContext", name);
  });
  return context_;
}

int device_count() noexcept {
  if (in_bad_fork() || !library_available()) return 0;
  try {
    return static_cast<int>(devices().size());
  } catch (...) {
    log_dropped("looking for devices");
    return 0;
  }
}

Device& device(int index) {
  api();  // throws with the reason when there is no library, or after a fork
  const int count = device_count();
  if (index < 0 || index >= count) throw Error(CL_INVALID_DEVICE, no_device(index));
  return *devices()[static_cast<size_t>(index)];
}

std::string no_device(int index) {
  const int count = device_count();
  if (count > 0)
    return "ocl:" + std::to_string(index) + " does not exist: this process sees " + std::to_string(count) +
           " OpenCL device(s). `python -m dlbackend info` lists them; DLBACKEND_DEVICES selects and orders "
           "them.";
  const std::optional<std::string> chosen = settings::devices();
  return "No OpenCL device found" +
         (chosen ? ": DLBACKEND_DEVICES=" + *chosen + " selects none" : std::string()) +
         ". `python -m dlbackend doctor` says what is missing.";
}

}  // namespace dlb::cl
