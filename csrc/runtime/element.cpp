// The build options that name element types.
#include "runtime/element.h"

#include <c10/util/Exception.h>

namespace dlb {
namespace {

const char* option_of(c10::ScalarType type) {
  switch (type) {
    case c10::ScalarType::Float:
      return "-DT_FLOAT";
    case c10::ScalarType::Half:
      return "-DT_HALF";
    case c10::ScalarType::BFloat16:
      return "-DT_BFLOAT16";
    case c10::ScalarType::Double:
      return "-DT_DOUBLE";
    case c10::ScalarType::ComplexFloat:
      return "-DT_COMPLEX_FLOAT";
    case c10::ScalarType::ComplexDouble:
      return "-DT_COMPLEX_DOUBLE";
    case c10::ScalarType::Byte:
      return "-DT_UCHAR";
    case c10::ScalarType::Char:
      return "-DT_CHAR";
    case c10::ScalarType::Short:
      return "-DT_SHORT";
    case c10::ScalarType::Int:
      return "-DT_INT";
    case c10::ScalarType::Long:
      return "-DT_LONG";
    default:
      return nullptr;
  }
}

}  // namespace

bool has_arithmetic(c10::ScalarType type) {
  return option_of(type) != nullptr;
}

std::string element_option(c10::ScalarType type) {
  const char* option = option_of(type);
  TORCH_CHECK_NOT_IMPLEMENTED(option, "no matrix multiplication or convolution for ", type, " on ocl");
  return option;
}

}  // namespace dlb
