// Runs a pointwise op over a TensorIterator: picks the kernel form, splits at 32 bits, launches.
#pragma once
#include <ATen/TensorIterator.h>
#include <c10/core/Scalar.h>
#include <c10/util/ArrayRef.h>

#include "codegen/registry.h"
#include "runtime/tensor.h"

namespace dlb {

// Computes all outputs of a built iterator (outputs first, inputs in the op's order; inputs may be CPU
// tensors of one element) in the compute type of `compute_dtype`. Nothing is copied, cast or made contiguous
// on the way. Raises NotImplementedError for dtypes that the op has no body for. `common`: compute_dtype is
// the dtype that operands were promoted to, so that numbers, and results in wider outputs, are rounded to it
// as if they had been tensors of it.
void run_pointwise(const codegen::PointwiseOp& op, at::TensorIteratorBase& iter,
                   c10::ScalarType compute_dtype, c10::ArrayRef<c10::Scalar> scalars = {},
                   bool common = false);

// The same in the iterator's common dtype.
inline void run_pointwise(const codegen::PointwiseOp& op, at::TensorIteratorBase& iter,
                          c10::ArrayRef<c10::Scalar> scalars = {}) {
  run_pointwise(op, iter, iter.common_dtype(), scalars, /*common=*/true);
}

// Contiguous fast form without an iterator: all tensors have the same sizes and dense layout, operands
// outputs first. Inputs may be CPU tensors of one element, but not all of them; these are rounded to
// compute_dtype.
void run_pointwise_flat(const codegen::PointwiseOp& op, c10::ArrayRef<const at::TensorBase*> operands,
                        size_t outputs, c10::ScalarType compute_dtype,
                        c10::ArrayRef<c10::Scalar> scalars = {});

}  // namespace dlb
