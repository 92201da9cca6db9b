// The launch of the solver gpu_wgmma for a convolution: sizes of boxes, arguments, copies; no device is
// needed for it.
#pragma once
#include <vector>

#include "kernels/common/split_reduce.h"
#include "kernels/conv/gpu_wgmma.h"
#include "primitives/common/pack_lines.h"
#include "primitives/conv/problem.h"

namespace dlb::solver {

struct ConvWgmmaConfig {
  int32_t columns = 0, splits = 0,
          form = 0;  // of a tile; parts of the reduction; what a tile's rows and columns are
  static constexpr const char* kNames[] = {"columns", "splits", "form"};
};

// A copy of an operand in which channels lie together, for one that the copy engine cannot read as it is.
struct ConvWgmmaCopy : LinesCopy {
  int64_t strides[4];  // of the copy, as ConvWgmma has them
};

struct ConvWgmmaPlan {
  params::ConvWgmma arguments{};  // but for the offsets
  params::SplitReduce reduce{};   // likewise, where there are parts
  Epilogue reduce_epilogue;       // the problem's, by the rows and columns of `reduce`
  ConvWgmmaCopy image, lines;
  double tiles = 0, stages = 0;  // stages of all tiles together
  double outputs = 0;            // elements of a part
  bool keeps_lines = false;      // constant weights are copied once, not in every run
  bool neighbours = false;       // results that lie together are stored together
};

// True for float32 at its own precision: three products of TF32.
bool conv_wgmma_is_split(const ConvProblem& p);

// Why the kernel cannot compute the problem, whatever the device; nullptr where it can.
const char* conv_wgmma_refuses(const ConvProblem& p);

// The forms that a problem can be computed in, the natural one first.
std::vector<int> conv_wgmma_forms(const ConvProblem& p);

// As many parts of so many stages as are wanted, or fewer: none is empty.
int64_t conv_wgmma_filled_parts(int64_t depth, int64_t splits);

// Whether parts can be added: results are evenly spaced in memory.
bool conv_wgmma_can_split(const ConvProblem& p);

// For a problem that is not refused. With one part, the arguments' part is the depth of the whole reduction.
ConvWgmmaPlan conv_wgmma_plan(const ConvProblem& p, const ConvWgmmaConfig& config);

}  // namespace dlb::solver
