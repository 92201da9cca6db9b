// Assembles the sources of hand-written kernels, and remembers the kernels.
#include "runtime/fetch_kernel.h"

#include <algorithm>
#include <array>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "cl/build_mode.h"
#include "cl/embedded.h"
#include "cl/program_table.h"
#include "codegen/pointwise.h"
#include "runtime/device_error.h"

namespace dlb {
namespace {

using codegen::DType;

constexpr size_t kMostTypes = 4, kMostFiles = 6;

// A request for a kernel, without its options.
struct Request {
  cl::Device* device = nullptr;
  const char* kernel = nullptr;
  std::array<const char*, kMostFiles> files{};
  bool typed = false;  // the element types' macros stand before the files
  DType compute = DType::F32;
  uint8_t count = 0;
  std::array<DType, kMostTypes> types{};
  bool operator==(const Request&) const = default;
};

std::string type_macros(const char* letter, DType storage, DType compute) {
  const std::string x(letter);
  return "#define " + x + "_T " + codegen::storage_name(storage) + "\n#define LOAD_" + x + "(p, i) " +
         codegen::load_at(storage, compute, "(p)", "(i)") + "\n#define STORE_" + x +
         "(p, i, v) ((p)[i] = " + codegen::store(compute, storage, "(v)") + ")\n";
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

// The text in front of a file that is compiled for element types.
std::string typed_prelude(const Request& request) {
  static constexpr const char* kLetters[kMostTypes] = {"A", "B", "C_", "D"};
  std::string text = codegen::prelude(request.compute, request.types.data(), request.count);
  text += codegen::limit_macros(request.compute) + codegen::device_macro(request.device->cls);
  for (size_t i = 0; i < request.count; ++i)
    text += type_macros(kLetters[i], request.types[i], request.compute);
  return text + codegen::divider_source() + kDeviceErrorSource;
}

std::string source_of(const Request& request) {
  std::string text;
  for (const char* file : request.files)
    if (file) text += cl::embedded_source(file);
  if (!request.device->late_code || request.device->cls == cl::DeviceClass::kGpu)
    keep_only(text, request.kernel);
  return request.typed ? typed_prelude(request) + text : text;
}

uint64_t hash_of(const Request& request, std::string_view options) {
  uint64_t h = reinterpret_cast<uint64_t>(request.kernel) ^ std::hash<std::string_view>{}(options) ^
               reinterpret_cast<uint64_t>(request.files[0]) << 13 ^
               static_cast<uint64_t>(request.compute) << 3;
  for (DType type : request.types) h = h * 31 + static_cast<uint64_t>(type);
  return h * 0x9E3779B97F4A7C15ull;
}

// A kernel that was given out unmade, by a recording or because its build was deferred, is asked for again:
// it is now to be built, or to be noted by this thread's recording.
bool is_current(cl::Kernel& kernel) {
  if (kernel.is_made()) return true;
  cl::Recording* recording = cl::Recording::current();
  if (!recording) return cl::build_mode().deferred && kernel.will_be_made();
  if (recording->wanted() != cl::Recording::kWhether) return false;
  recording->note_unbuilt();
  return true;
}

cl::Kernel& fetch(const Request& request, std::string_view options) {
  struct Slot {
    Request request;
    std::string options;
    cl::Kernel* kernel = nullptr;
  };
  constexpr size_t kSlots = 256, kProbes = 8;
  thread_local auto slots = std::make_unique<std::array<Slot, kSlots>>();
  // Two kernels that a loop alternates must not evict each other: a miss puts the source together.
  const size_t first = hash_of(request, options) >> 56;
  size_t free = first;
  for (size_t i = 0; i < kProbes; ++i) {
    const size_t probe = (first + i) % kSlots;
    const Slot& slot = (*slots)[probe];
    if (slot.kernel && slot.request == request && slot.options == options) [[likely]] {
      if (is_current(*slot.kernel)) [[likely]]
        return *slot.kernel;
      free = probe;
      break;
    }
    if (!slot.kernel && (*slots)[free].kernel) free = probe;
  }
  const std::string text(options);
  cl::Kernel& found = cl::get_kernel(*request.device, source_of(request), text, request.kernel);
  (*slots)[free] = {request, text, &found};
  return found;
}

}  // namespace

cl::Kernel& fetch_kernel(cl::Device& device, const char* file, const char* kernel, DType compute,
                         std::initializer_list<DType> types, std::string_view options) {
  Request request{&device, kernel, {file}, true, compute, static_cast<uint8_t>(types.size()), {}};
  std::copy(types.begin(), types.end(), request.types.begin());
  return fetch(request, options);
}

cl::Kernel& fetch_kernel(cl::Device& device, std::initializer_list<const char*> files, const char* kernel,
                         std::string_view options) {
  Request request{&device, kernel};
  std::copy(files.begin(), files.end(), request.files.begin());
  return fetch(request, options);
}

std::string kernel_text(std::initializer_list<const char*> files) {
  std::string text;
  for (const char* file : files) text += cl::embedded_source(file);
  return text;
}

}  // namespace dlb
