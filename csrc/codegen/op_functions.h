// The functions of ops in a program, each named by the op's id and the type that it computes in, so that a
// program may hold several ops and several types.
#pragma once
#include <map>
#include <set>
#include <string>

#include "codegen/pointwise.h"

namespace dlb::codegen {

// The op's body for that type as statements that assign y0, y1 ..
std::string statements_of(const PointwiseOp& op, DType compute);

// Collects the functions that a program calls: dlb_op_add_f32 and so on.
//   void dlb_op_ID_TYPE(const T x0 .., const T s0 .., result* p_y0 .. [, int* p_bad])
// with T of the compute type and results of result_type().
class OpFunctions {
 public:
  // `inputs` and `results` are the op's numbers of x0.. and y0... Returns the function's name.
  std::string add(const PointwiseOp& op, DType compute, size_t inputs, size_t results);

  // The functions, the math functions that their bodies call, and the definition of DLB_INLINE. Stands behind
  // conversions_source() and device_macro(), and leaves no macro of a compute type behind.
  std::string source() const;

 private:
  struct Section {
    std::string bodies;  // all of them, to look for what they call
    std::string functions;
    std::set<std::string> names;
  };
  std::map<DType, Section> sections_;
};

}  // namespace dlb::codegen
