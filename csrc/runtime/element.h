// Element types of the kernels that know them by a build option (kernels/common/storage.clh).
#pragma once
#include <c10/core/ScalarType.h>

#include <string>

namespace dlb {

// "-DT_FLOAT" and so on. Throws c10::Error for bool and other dtypes that have no arithmetic.
std::string element_option(c10::ScalarType type);

bool has_arithmetic(c10::ScalarType type);

// Whether kernels compute that type in float.
inline bool is_float_storage(c10::ScalarType type) {
  return type == c10::ScalarType::Float || type == c10::ScalarType::Half || type == c10::ScalarType::BFloat16;
}

}  // namespace dlb
