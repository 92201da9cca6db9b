// Expressions as OpenCL C.
#pragma once
#include <string>
#include <vector>

#include "codegen/expression.h"
#include "codegen/op_functions.h"

namespace dlb::codegen {

// The function  void NAME(x0 .., s0 .., p_y0 ..)  that computes the expression of inputs of these dtypes.
// Inputs and results are in the compute types of their dtypes, scalars in those of Expression::scalars. Adds
// the rows' functions, which stand in front, to `functions`.
std::string expression_function(const Expression& expression, const DType* inputs, const std::string& name,
                                OpFunctions& functions);

// Adds the types that the expression computes in and takes scalars in.
void add_types(const Expression& expression, std::vector<DType>& types);

// The text around the row of a reduction that is part of an expression.
class ReductionText {
 public:
  // `inputs`: dtypes of the kernel's inputs. The row computes in `compute`.
  ReductionText(const ReduceExpression& expression, const DType* inputs, DType compute);

  void add_types(std::vector<DType>& types) const;
  // The functions of what stands before and after the row.
  std::string functions() const;
  // Declares x0 .., the row's inputs, from u0 .., the kernel's in the compute types of their dtypes.
  std::string row_inputs() const;
  // Mapped result m as an element of that type, behind row_inputs().
  std::string stored_mapped(size_t m, DType type) const;
  // Scalar i of the row.
  std::string row_scalar(size_t i) const;
  // Declares w0 .., the kernel's reduced results, from y0 .., the row's.
  std::string results() const;
  // The type of w<output>.
  DType result_type(size_t output) const;

 private:
  DType before_dtype(size_t r) const { return e_.before.dtype_of(e_.before.results[r], inputs_); }

  const ReduceExpression& e_;
  const DType* inputs_;
  DType compute_;
  std::vector<DType> row_types_;  // of the row's results
};

// The number as a value of that compute type.
std::string literal(double number, DType compute);

}  // namespace dlb::codegen
