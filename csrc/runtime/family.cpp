// Source assembly and lookup for hand-written kernels.
#include "runtime/family.h"

#include <memory>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "cl/embedded.h"
#include "cl/program_table.h"
#include "codegen/pointwise.h"
#include "runtime/device_error.h"

namespace dlb {
namespace {

using codegen::DType;

struct Key {
  const char* file = nullptr;
  const char* kernel = nullptr;
  const char* options = nullptr;
  cl::Device* device = nullptr;
  DType compute = DType::F32;
  uint8_t count = 0;
  std::array<DType, kMaxFamilyTypes> types{};
  bool operator==(const Key&) const = default;
};

std::string type_macros(const char* letter, DType storage, DType compute) {
  const std::string x(letter);
  return "#define " + x + "_T " + codegen::storage_name(storage) + "\n#define LOAD_" + x + "(p, i) " +
         codegen::load_at(storage, compute, "(p)", "(i)") + "\n#define STORE_" + x +
         "(p, i, v) ((p)[i] = " + codegen::store(compute, storage, "(v)") + ")\n";
}

// The text of an embedded file with its `#include "file"` lines replaced by those files' text.
std::string with_includes(const char* file) {
  std::string text = cl::embedded_source(file);
  constexpr std::string_view kInclude = "#include \"";
  for (size_t at; (at = text.find(kInclude)) != std::string::npos;) {
    const size_t begin = at + kInclude.size(), end = text.find('"', begin);
    text.replace(at, end + 1 - at, cl::embedded_source(text.substr(begin, end - begin)));
  }
  return text;
}

// Where the kernel's body ends, behind its last brace.
size_t end_of_body(const std::string& text, size_t at) {
  int open = 0;
  for (at = text.find('{', at); at < text.size(); at++) {
    open += (text[at] == '{') - (text[at] == '}');
    if (open == 0) return at + 1;
  }
  throw std::logic_error("a kernel does not end");
}

// Drivers that compile a program whole take a tenth of a second and more for each kernel, the others' too. A
// file of many, of which a process uses few, becomes a program for each.
constexpr size_t kManyKernels = 6;

void keep_only(std::string& text, std::string_view name) {
  constexpr std::string_view kKernel = "\nkernel void ";
  std::vector<std::pair<size_t, size_t>> others;
  size_t kernels = 0;
  for (size_t at = 0; (at = text.find(kKernel, at)) != std::string::npos;) {
    const size_t begin = at + kKernel.size(), end = end_of_body(text, begin);
    kernels++;
    if (std::string_view(text).substr(begin, text.find('(', begin) - begin) != name)
      others.emplace_back(at + 1, end);
    at = end;
  }
  if (kernels < kManyKernels) return;
  for (auto it = others.rbegin(); it != others.rend(); ++it) text.erase(it->first, it->second - it->first);
}

std::string source_of(const Key& key) {
  static constexpr const char* kLetters[kMaxFamilyTypes] = {"A", "B", "C_", "D"};
  std::string text = codegen::prelude(key.compute, key.types.data(), key.count);
  text += codegen::limit_macros(key.compute);
  text += key.device->cls == cl::DeviceClass::kCpu ? "#define DLB_CPU 1\n" : "#define DLB_GPU 1\n";
  for (size_t i = 0; i < key.count; ++i) text += type_macros(kLetters[i], key.types[i], key.compute);
  std::string kernels = with_includes(key.file);
  if (!key.device->late_code || key.device->cls == cl::DeviceClass::kGpu) keep_only(kernels, key.kernel);
  return text + codegen::divider_source() + kDeviceErrorSource + kernels;
}

}  // namespace

cl::Kernel& family_kernel(cl::Device& device, const char* file, const char* kernel, DType compute,
                          std::initializer_list<DType> types, const char* options) {
  Key key{file, kernel, options, &device, compute, static_cast<uint8_t>(types.size()), {}};
  size_t at = 0;
  for (DType type : types) key.types[at++] = type;

  struct Slot {
    Key key;
    cl::Kernel* kernel = nullptr;
  };
  constexpr size_t kSlots = 256, kProbes = 8;
  thread_local auto slots = std::make_unique<std::array<Slot, kSlots>>();
  uint64_t h = reinterpret_cast<uint64_t>(kernel) ^ reinterpret_cast<uint64_t>(options) << 7 ^
               reinterpret_cast<uint64_t>(file) << 13 ^ static_cast<uint64_t>(compute) << 3;
  for (DType type : key.types) h = h * 31 + static_cast<uint64_t>(type);
  // Two kernels that a loop alternates must not evict each other: a miss puts the source together.
  const size_t first = (h * 0x9E3779B97F4A7C15ull) >> 56;
  size_t free = first;
  for (size_t i = 0; i < kProbes; ++i) {
    const size_t probe = (first + i) % kSlots;
    const Slot& slot = (*slots)[probe];
    if (slot.kernel && slot.key == key) [[likely]]
      return *slot.kernel;
    if (!slot.kernel && (*slots)[free].kernel) free = probe;
  }
  cl::Kernel& found = cl::get_kernel(device, source_of(key), options, kernel);
  (*slots)[free] = {key, &found};
  return found;
}

}  // namespace dlb
