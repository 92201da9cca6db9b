// Runs a pointwise op over a TensorIterator: picks the kernel form, splits at 32 bits, launches.
#pragma once
#include <ATen/TensorIterator.h>
#include <c10/core/Scalar.h>
#include <c10/util/ArrayRef.h>

#include <array>

#include "codegen/registry.h"
#include "runtime/tensor.h"

namespace dlb {

// Computes all outputs of a built iterator (outputs first, inputs in the op's order; inputs may be CPU
// tensors of one element) in the compute type of `compute_dtype`. Nothing is copied, cast or made contiguous
// on the way. Raises NotImplementedError for dtypes that the op has no body for.
void run_pointwise(const codegen::PointwiseOp& op, at::TensorIteratorBase& iter,
                   c10::ScalarType compute_dtype, c10::ArrayRef<c10::Scalar> scalars = {});

// The same in the iterator's common dtype.
inline void run_pointwise(const codegen::PointwiseOp& op, at::TensorIteratorBase& iter,
                          c10::ArrayRef<c10::Scalar> scalars = {}) {
  run_pointwise(op, iter, iter.common_dtype(), scalars);
}

// Contiguous fast form without an iterator: all tensors have the same sizes and dense layout, operands
// outputs first. Inputs may be CPU tensors of one element, but not all of them.
void run_pointwise_flat(const codegen::PointwiseOp& op, c10::ArrayRef<const at::TensorBase*> operands,
                        size_t outputs, c10::ScalarType compute_dtype,
                        c10::ArrayRef<c10::Scalar> scalars = {});

// A buffer in place of a tensor, with element strides along up to three dimensions, the innermost first.
struct PointwiseBuffer {
  cl_mem mem;
  int64_t offset;
  codegen::DType type;
  std::array<int32_t, 3> strides;
};

// The same on a stream over buffers, outputs first, without tensors. Sizes of 1 are fine; the product is
// below 2^31.
void run_pointwise_buffers(const codegen::PointwiseOp& op, Stream& stream,
                           c10::ArrayRef<PointwiseBuffer> operands, size_t outputs,
                           const std::array<uint32_t, 3>& sizes, c10::ScalarType compute_dtype);

}  // namespace dlb
