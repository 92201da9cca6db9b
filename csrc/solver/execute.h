// The way in: solves a problem now.
#pragma once
#include <c10/util/FunctionRef.h>

#include "runtime/stream.h"
#include "solver/op.h"

namespace dlb::solver {

// Solves the problem on the stream, with workspace from the allocator: by what is remembered or on disk, else
// as the find mode says (settings.h). A problem with an output of no elements must not get here; a sum over
// no elements is fine. Throws c10::Error with every solver's reason where none is applicable or the forced
// one is not, and c10::OutOfMemoryError where no solver's workspace can be had.
void run(const Problem& problem, const Operands& operands, Stream& stream);

// As run(), for a problem with rows behind it. Where this returns false, callers run `plain`, the problem
// without the rows, and a launch of these that moves bytes(): as long as only the reference solver is ready
// for the problem or applicable, and where measurements say that this takes less time. Counts as a run.
bool run_with_rows(const Problem& problem, const Problem& plain, c10::function_ref<uint64_t()> bytes,
                   const Operands& operands, Stream& stream);

// For callers who can do without a part of what run() does: calls enqueue(solution) with what run() would
// run. False, and nothing is called, while something is left to choose or to measure, and where run() does
// more than enqueue. Else what enqueue() returns, which may be false when it enqueued nothing.
bool run_settled(const Problem& problem, Stream& stream, c10::function_ref<bool(const Solution&)> enqueue);

// Whether a problem of so many elements goes through run(). Smaller ones run as a primitive's first choice
// says, since choosing would cost more than it gains; all do where a solver of the op is forced or forbidden.
bool is_worth_choosing(const Op& op, int64_t elements);

// Lets a problem of float32 take the device's TF32 where the settings allow it.
void allow_tf32(Problem& problem, const cl::Device& device);

}  // namespace dlb::solver
