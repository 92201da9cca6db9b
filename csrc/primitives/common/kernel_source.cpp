// Element types of hand-written kernels as build options and kernel arguments.
#include "primitives/common/kernel_source.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <mutex>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "cl/embedded.h"
#include "solver/stats.h"

namespace dlb::solver {
namespace {

enum class FactorForm { kInteger, kFloat, kDouble, kFloat2, kDouble2 };
struct Element {
  c10::ScalarType type;
  const char* option;
  FactorForm factor;
};
constexpr Element kElements[] = {
    {c10::ScalarType::Float, "-DT_FLOAT", FactorForm::kFloat},
    {c10::ScalarType::Half, "-DT_HALF", FactorForm::kFloat},
    {c10::ScalarType::BFloat16, "-DT_BFLOAT16", FactorForm::kFloat},
    {c10::ScalarType::Double, "-DT_DOUBLE", FactorForm::kDouble},
    {c10::ScalarType::ComplexFloat, "-DT_COMPLEX_FLOAT", FactorForm::kFloat2},
    {c10::ScalarType::ComplexDouble, "-DT_COMPLEX_DOUBLE", FactorForm::kDouble2},
    {c10::ScalarType::Byte, "-DT_UCHAR", FactorForm::kInteger},
    {c10::ScalarType::Char, "-DT_CHAR", FactorForm::kInteger},
    {c10::ScalarType::Short, "-DT_SHORT", FactorForm::kInteger},
    {c10::ScalarType::Int, "-DT_INT", FactorForm::kInteger},
    {c10::ScalarType::Long, "-DT_LONG", FactorForm::kInteger},
};

const Element* find(c10::ScalarType type) {
  for (const Element& element : kElements)
    if (element.type == type) return &element;
  return nullptr;
}

// What embedded_kernel() is asked for, and the same kept. No text is put together to look it up.
struct KernelLookup {
  int device;
  const char* const* files;
  size_t count;
  std::string_view options;
  const char* name;
};
struct KernelId {
  int device;
  std::vector<const char*> files;
  std::string options;
  const char* name;
  explicit KernelId(const KernelLookup& l)
      : device(l.device), files(l.files, l.files + l.count), options(l.options), name(l.name) {}
  KernelLookup lookup() const { return {device, files.data(), files.size(), options, name}; }
};
bool operator==(const KernelLookup& a, const KernelLookup& b) {
  return a.device == b.device && a.options == b.options && std::strcmp(a.name, b.name) == 0 &&
         std::equal(a.files, a.files + a.count, b.files, b.files + b.count,
                    [](const char* x, const char* y) { return x == y || std::strcmp(x, y) == 0; });
}
bool operator==(const KernelId& a, const KernelId& b) {
  return a.lookup() == b.lookup();
}
bool operator==(const KernelId& a, const KernelLookup& b) {
  return a.lookup() == b;
}
struct KernelHash {
  using is_transparent = void;
  size_t operator()(const KernelLookup& l) const {
    const std::hash<std::string_view> text;
    return text(l.options) * 31 + text(l.name) + static_cast<size_t>(l.device);
  }
  size_t operator()(const KernelId& id) const { return (*this)(id.lookup()); }
};

}  // namespace

bool has_arithmetic(c10::ScalarType type) {
  return find(type) != nullptr;
}

std::string element_option(c10::ScalarType type) {
  const Element* element = find(type);
  TORCH_CHECK_NOT_IMPLEMENTED(element, "no matrix multiplication or convolution for ", type, " on ocl");
  return element->option;
}

std::string sources(std::initializer_list<const char*> files) {
  std::string text;
  for (const char* file : files) text += cl::embedded_source(file);
  return text;
}

cl::Kernel& embedded_kernel(cl::Device& device, std::initializer_list<const char*> files,
                            const std::string& options, const char* name) {
  static std::mutex mutex;
  static auto* known = new std::unordered_map<KernelId, cl::Kernel*, KernelHash, std::equal_to<>>;
  const KernelLookup lookup{device.index, std::data(files), files.size(), options, name};
  {
    std::lock_guard<std::mutex> lock(mutex);
    const auto it = known->find(lookup);
    if (it != known->end()) {
      cl::Recording* recording = cl::Recording::current();
      const bool only_whether = recording && recording->wanted() == cl::Recording::kWhether;
      if (only_whether && !it->second->is_made()) recording->note_unbuilt();
      if (only_whether || it->second->is_made()) return *it->second;
    }
  }
  cl::Kernel& kernel = cl::get_kernel(device, sources(files), options, name);
  std::lock_guard<std::mutex> lock(mutex);
  return *(known->insert_or_assign(KernelId(lookup), &kernel).first->second);
}

std::shared_ptr<cl::Kernel> shared_kernel(cl::Kernel& kernel) {
  return {&kernel, [](cl::Kernel*) {}};
}

std::shared_ptr<cl::Kernel> specialised_kernel(cl::Device& device, const std::string& source,
                                               const std::string& options, const char* name) {
  auto kernel = cl::get_own_kernel(device, source, options, name);
  find_stats().specialised++;
  return kernel;
}

void add_factor(cl::Kernel::Arguments& arguments, c10::ScalarType type, const Factor& factor) {
  switch (find(type)->factor) {
    case FactorForm::kInteger:
      return arguments.add(factor.integer);
    case FactorForm::kFloat:
      return arguments.add(static_cast<float>(factor.re));
    case FactorForm::kDouble:
      return arguments.add(factor.re);
    case FactorForm::kFloat2: {
      const float pair[2] = {static_cast<float>(factor.re), static_cast<float>(factor.im)};
      return arguments.add_bytes(pair, sizeof pair);
    }
    case FactorForm::kDouble2: {
      const double pair[2] = {factor.re, factor.im};
      return arguments.add_bytes(pair, sizeof pair);
    }
  }
}

}  // namespace dlb::solver
