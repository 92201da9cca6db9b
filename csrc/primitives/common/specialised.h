// Kernels that are compiled for one problem, with its sizes as constants.
#pragma once
#include <cstdint>
#include <memory>
#include <string>

#include "cl/kernel.h"

namespace dlb::solver {

// A kernel that lives as long as the process, as one that may not.
std::shared_ptr<cl::Kernel> shared_kernel(cl::Kernel& kernel);

// The definition of CONSTANTS(p), with which a kernel's source sets fields of its argument p to what they are
// in one problem; to stand before the source.
class Constants {
 public:
  void set(const std::string& field, int64_t value) {
    text_ += " p." + field + " = " + std::to_string(value) + ";";
  }
  template <class T, size_t n>
  void set(const std::string& field, const T (&values)[n]) {
    for (size_t i = 0; i < n; i++) set(field + "[" + std::to_string(i) + "]", values[i]);
  }
  std::string text() const { return text_ + "\n"; }

 private:
  std::string text_ = "#define CONSTANTS(p)";
};

// A kernel for one problem, counted as specialised.
std::shared_ptr<cl::Kernel> specialised_kernel(cl::Device& device, const std::string& source,
                                               const std::string& options, const char* name);

}  // namespace dlb::solver
