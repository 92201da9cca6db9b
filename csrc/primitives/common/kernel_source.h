// What solvers need to build and launch the kernels of csrc/kernels.
#pragma once
#include <c10/core/ScalarType.h>

#include <initializer_list>
#include <memory>
#include <string>

#include "cl/kernel.h"
#include "cl/program_table.h"
#include "cl/queue.h"
#include "cl/rounding.h"
#include "primitives/common/factor.h"

namespace dlb::solver {

// "-DT_FLOAT" and so on, as common/element.clh and common/cpu_tile.clh want it. Throws c10::Error for bool
// and other dtypes that have no arithmetic.
std::string element_option(c10::ScalarType type);
bool has_arithmetic(c10::ScalarType type);
inline bool is_float_storage(c10::ScalarType type) {  // computed in float
  return type == c10::ScalarType::Float || type == c10::ScalarType::Half || type == c10::ScalarType::BFloat16;
}

// The texts of these files of csrc/kernels, one after the other.
std::string sources(std::initializer_list<const char*> files);

// The kernel of a program made of these files, as cl::get_kernel(); what was asked for before is found
// without looking at the program's text. `files` and `name` are literals.
cl::Kernel& embedded_kernel(cl::Device& device, std::initializer_list<const char*> files,
                            const std::string& options, const char* name);

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

// Adds alpha or beta in the form that common/element.clh calls S.
void add_factor(cl::Kernel::Arguments& arguments, c10::ScalarType type, const Factor& factor);

// A range of work-groups of one work-item, in three dimensions.
inline cl::Range range3(int64_t x, int64_t y, int64_t z) {
  cl::Range range;
  range.dims = 3;
  range.global[0] = x, range.global[1] = y, range.global[2] = z;
  return range;
}

// The size of the parts of `extent` when they are as few and as alike as possible: of at most `most`, rounded
// up to a multiple of `multiple`.
inline int balanced(int64_t extent, int64_t most, int64_t multiple) {
  return static_cast<int>(round_up(ceil_div(extent, ceil_div(extent, most)), multiple));
}

}  // namespace dlb::solver
