// Launches of pointwise kernels, from tensors' iterators and from primitives' buffers alike.
#pragma once
#include <c10/core/Scalar.h>
#include <c10/core/ScalarType.h>
#include <c10/util/ArrayRef.h>

#include <array>

#include "codegen/pointwise.h"
#include "runtime/stream.h"
#include "runtime/tensor.h"

namespace dlb::pointwise {

// The code generator's name for an operand's dtype. Raises NotImplementedError for those that the op does not
// take.
inline codegen::DType dtype_in(const codegen::PointwiseOp& op, c10::ScalarType type) {
  return op.takes_float8 ? storage_dtype_of(type, op.name) : dtype_of(type, op.name);
}

// One kernel's launch. After prepare() the caller fills in what the op is applied to: of each operand,
// outputs first, its type (key.types), how it moves (key.inner: Inner::Value, or Unit for all buffers) and
// either its value or its buffer, offset and strides; sizes, the innermost first; rank, and count, their
// product, which is below 2^31.
struct Launch {
  codegen::PointwiseKey key;
  codegen::PointwiseParams params;
  cl_mem mem[codegen::kMaxOperands];
  ScalarArg values[codegen::kMaxOperands];
  ScalarArg scalars[codegen::kMaxScalars];
};

// Sets what does not depend on operands. Raises NotImplementedError for dtypes that the op has no body for or
// the device does not compute.
void prepare(Launch& launch, const codegen::PointwiseOp& op, size_t outputs, size_t inputs,
             c10::ScalarType compute_dtype, c10::ArrayRef<c10::Scalar> scalars, cl::Device& device);

// Chooses the kernel's form and enqueues it; changes sizes and form of the launch.
void enqueue(Launch& launch, Stream& stream);

// A buffer with element strides along up to three dimensions, the innermost first.
struct PlacedBuffer {
  cl_mem mem;
  int64_t offset;
  codegen::DType type;
  std::array<int32_t, 3> strides;
};

// Computes the op over buffers, outputs first. Sizes of 1 are fine; the product is below 2^31.
void run(const codegen::PointwiseOp& op, Stream& stream, c10::ArrayRef<PlacedBuffer> operands, size_t outputs,
         const std::array<uint32_t, 3>& sizes, c10::ScalarType compute_dtype);

}  // namespace dlb::pointwise
