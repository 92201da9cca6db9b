// How one reduction is launched: what run_reduce and the solvers of large reductions share.
#pragma once
#include <c10/util/SmallVector.h>

#include <array>

#include "primitives/reduce/reduce.h"
#include "runtime/stream.h"

namespace dlb::reduction {

struct Dim {
  int64_t size;
  std::array<int64_t, codegen::kMaxReduceOperands> stride;
};
using Dims = c10::SmallVector<Dim, 8>;

// The dimensions of a reduction after collapsing, innermost first.
struct Dimensions {
  Dims kept, reduced;
  int64_t outputs = 1, count = 1;  // results, and elements reduced into each
};
// The dimensions of these tensors; `operands`: how many.
Dimensions collapsed_dimensions(const ReduceArguments& arguments, size_t operands);

struct Launch {
  codegen::ReduceKey key;
  codegen::ReduceParams params;
  codegen::ReduceForm form;
  cl::Range range;
  cl_mem mem[codegen::kMaxReduceOperands];
  ScalarArg scalars[codegen::kMaxScalars];
};

// The dimensions along which neighbours of a vector, or of a work-group, walk.
enum class Walk : uint8_t { kBySizes, kAlongReduced, kAlongKept };

// The parameters that solvers vary; zeros leave them to the sizes.
struct Tuning {
  Walk walk = Walk::kBySizes;
  int32_t parts_per_unit = 0;  // work-items (GPU: groups) of a compute unit
  int32_t width = 0;           // CPU: columns of a block; GPU: work-items of a result, a power of two
  bool plain = false;          // one part, any strides: the reference
};

// The walk that the sizes suggest.
Walk suggested_walk(const codegen::ReduceKey& key, const Dimensions& dims, const cl::Device& device);

// Sets sizes, dividers and strides. The key must be there.
void set_sizes(Launch& launch, const Dimensions& dims);
// Sets form, splits and range. Key, sizes and offsets must be there.
void divide_work(Launch& launch, const Dimensions& dims, const cl::Device& device, const Tuning& tuning = {});
// The same for a class of devices.
void divide_work_cpu(Launch& launch, const Dimensions& dims, const cl::Device& device, const Tuning& tuning);
void divide_work_gpu(Launch& launch, const Dimensions& dims, const cl::Device& device, const Tuning& tuning);
bool suggests_along_kept_cpu(const codegen::ReduceKey& key, const Dimensions& dims);
bool suggests_along_reduced_gpu(const codegen::ReduceKey& key, const Dimensions& dims);

// Turns the launch of a reduction that is split into that of its second pass.
void make_combining(Launch& launch, const cl::Device& device);
uint64_t workspace_bytes(const Launch& launch);
void enqueue(const Launch& launch, Stream& stream, cl_mem workspace);

// Elements that are worth a CPU's work-item of their own.
constexpr int64_t kCpuGrain = 16384;
// Sizes from here on need 64-bit positions.
constexpr int64_t kNarrow = int64_t{1} << 31;

// Whether every moving operand advances by one or not at all along `dim`, and one of them by one.
bool is_unit(const Dim& dim, const codegen::ReduceKey& key);
// Notes in the key which operands do not move along `dim`.
void note_constants(const Dim& dim, codegen::ReduceKey& key);
// Splits the reduction so that about `parts` work-items share it, none with less than `least` elements.
void split(codegen::ReduceParams& p, int64_t parts, int64_t least, int64_t multiple);

}  // namespace dlb::reduction
