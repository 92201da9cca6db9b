// Expressions as OpenCL C.
#pragma once
#include <string>

#include "codegen/expression.h"
#include "codegen/op_functions.h"

namespace dlb::codegen {

// The function  void NAME(x0 .., s0 .., p_y0 ..)  that computes the expression of inputs of these dtypes.
// Inputs and results are in the compute types of their dtypes, scalars in scalar_type(). Adds the rows'
// functions, which stand in front, to `functions`.
std::string expression_function(const Expression& expression, const DType* inputs, const std::string& name,
                                OpFunctions& functions);

// Whether a value of `from` may have digits that `to`, a float of 16 or 8 bits, has not.
bool loses_digits(DType from, DType to);

// The value `expression` of the compute type `compute` without digits that the float type `to` has not.
std::string rounded(DType compute, DType to, const std::string& expression);

// The number as a value of that compute type.
std::string literal(double number, DType compute);

}  // namespace dlb::codegen
