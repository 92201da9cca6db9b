// Runs a reduction over tensors: collapses dimensions, picks the kernel form, splits where results are few.
#pragma once
#include <ATen/core/Tensor.h>
#include <c10/core/Scalar.h>
#include <c10/util/ArrayRef.h>

#include <bitset>

#include "cl/kernel.h"
#include "codegen/registry.h"
#include "runtime/tensor.h"

namespace dlb {

// Dimensions that are reduced, by bit.
using DimMask = std::bitset<64>;

struct ReduceArguments {
  const codegen::ReduceOp& op;
  c10::ArrayRef<const at::Tensor*> outputs;  // one value per kept position; of the full rank, or squeezed
  c10::ArrayRef<const at::Tensor*> mapped;   // one value per element, of the inputs' shape
  c10::ArrayRef<const at::Tensor*> inputs;   // all of one shape
  DimMask reduced;
  c10::ScalarType compute;
  c10::ArrayRef<c10::Scalar> scalars = {};
};

// Whether the op is defined for that compute dtype.
bool has_body(const codegen::ReduceOp& op, c10::ScalarType compute);

// Enqueues the reduction. Elements are converted to the compute dtype as they are loaded; nothing is copied
// to cast or to make contiguous. Reductions of nothing give what `finish` makes of the initial accumulator.
// Raises NotImplementedError for dtypes that the op has no body for. There are no atomics; splits depend on
// shapes alone, and for large reductions of registered ops on the solver that was found (solver/settings.h
// says how to have the same one always).
void run_reduce(const ReduceArguments& arguments);

// The kernel of a key's program; built on first use, found without a lock after that.
cl::Kernel& reduce_kernel(const codegen::ReduceKey& key, codegen::ReduceForm form, cl::Device& device);

}  // namespace dlb
