// The rows of all pointwise tables by name, for families that reuse their expressions (foreach).
#pragma once
#include "codegen/pointwise.h"

namespace dlb {

// Makes a row findable; it must live as long as the process.
void remember_op(const codegen::PointwiseOp& op);

// The row of that PointwiseOp::name, or null. Complete once the library is loaded.
const codegen::PointwiseOp* find_op(const char* name);

}  // namespace dlb
