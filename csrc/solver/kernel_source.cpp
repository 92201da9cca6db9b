// Element types of hand-written kernels as build options and kernel arguments.
#include "solver/kernel_source.h"

#include <c10/util/Exception.h>

#include <mutex>
#include <unordered_map>

#include "cl/embedded.h"
#include "solver/find.h"

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
  static auto* known = new std::unordered_map<std::string, cl::Kernel*>;
  std::string key = std::to_string(device.index);
  for (const char* file : files) key += ' ', key += file;
  key += '\n', key += name, key += '\n', key += options;
  {
    std::lock_guard<std::mutex> lock(mutex);
    const auto it = known->find(key);
    if (it != known->end()) {
      cl::Recording* recording = cl::Recording::current();
      const bool only_whether = recording && recording->wanted() == cl::Recording::kWhether;
      if (only_whether && !it->second->is_made()) recording->note_unbuilt();
      if (only_whether || it->second->is_made()) return *it->second;
    }
  }
  cl::Kernel& kernel = cl::get_kernel(device, sources(files), options, name);
  std::lock_guard<std::mutex> lock(mutex);
  return *(known->insert_or_assign(std::move(key), &kernel).first->second);
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
