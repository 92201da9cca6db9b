// How one reduction is launched: what run_reduce and the solvers of large reductions share.
#pragma once
#include <c10/util/SmallVector.h>

#include <array>
#include <optional>

#include "primitives/reduce/reduce.h"
#include "primitives/common/launch_problem.h"

namespace dlb::reduction {

struct Launch {
  codegen::ReduceKey key;
  codegen::ReduceParams params;
  codegen::ReduceForm form;
  cl_mem mem[codegen::kMaxReduceOperands];
  ScalarArg scalars[codegen::kMaxScalars];
};

struct Dim {
  int64_t size;
  std::array<int64_t, codegen::kMaxReduceOperands> stride;
};
using Dims = c10::SmallVector<Dim, 8>;

// The dimensions of a reduction after collapsing, innermost first.
struct Shape {
  Dims kept, reduced;
  int64_t outputs = 1, count = 1;
};

// What solvers vary; zeros leave it to the sizes.
struct Tuning {
  enum Walk : int32_t { kBySizes, kAlong, kAcross };  // neighbours of a vector or group along the reduction?
  int32_t walk = kBySizes;
  int32_t parts = 0;   // work-items (GPU: groups) per compute unit
  int32_t width = 0;   // CPU: columns of a block; GPU: work-items of a result, a power of two up to the group
  bool plain = false;  // one part, any strides: the reference
};

// Whether the walk that the sizes suggest is along the reduction.
bool walks_along(const codegen::ReduceKey& key, const Shape& shape, const cl::Device& device);

// Sets form, splits and the like; key, sizes and offsets must be there.
void fill_sizes(Launch& launch, const Shape& shape);
cl::Range plan(Launch& launch, const Shape& shape, const cl::Device& device, const Tuning& tuning = {});
// Of the second pass, where the first is split; changes the launch to it.
cl::Range plan_combine(Launch& launch, const cl::Device& device);
uint64_t workspace_bytes(const Launch& launch);
void enqueue(const Launch& launch, const cl::Range& range, Stream& stream, cl_mem workspace);

// The reduction as a problem with solvers, where it is one: large, of a registered op, few dimensions.
std::optional<solver::LaunchProblem> problem_of(const Launch& launch, const Shape& shape,
                                                const ReduceArguments& arguments);

}  // namespace dlb::reduction
