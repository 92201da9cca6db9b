// The device's math functions by name: which of csrc/kernels/common/math a text calls, and their source. An
// op names no file; it pays for the functions that its body calls and for no others.
#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "codegen/dtype.h"

namespace dlb::codegen {

// The functions of csrc/kernels/common/math that the OpenCL C `text` calls, sorted, without those that they
// call themselves: "dlb_exp".
std::vector<std::string> functions_used(std::string_view text);

// Whether the text calls any of these functions. Allocates nothing.
bool uses_functions(std::string_view text);

// The groups that define those functions, and the groups that these need, in an order that compiles. Stands
// behind prelude() and device_macro(). Empty where the text calls none.
std::string functions_source(std::string_view text);

// The text with everything that those groups, or the arithmetic of complex numbers, define under a name of
// the compute type's own: "dlb_exp_f32". Programs that compute in several types hold the groups once for
// each.
std::string named_for(DType compute, std::string_view text);

}  // namespace dlb::codegen
