// Arguments of reductions and scans.
#pragma once
#include "kernels/common/divider.h"

// The last operands that a kernel does not have are not passed: it defines how many it has.
#ifndef REDUCE_OPERANDS
#define REDUCE_OPERANDS MOST_REDUCE_OPERANDS
#endif

PARAMS_BEGIN

enum {
  MOST_REDUCE_OPERANDS = 16,
  REDUCE_RANK = 8,     // kept and reduced dimensions together, after collapsing
  REDUCE_GROUP = 256,  // work-items of a GPU's work-group
  SCAN_CHUNKS = 4      // CPU: chunks of a row that a work-item scans side by side
};

typedef struct {
  dlb_long offset;               // elements from the start of the buffer
  dlb_long stride[REDUCE_RANK];  // elements
} ReduceOperand;
ASSERT_SIZE(ReduceOperand, 72);

typedef struct {
  dlb_long size[REDUCE_RANK];    // kept dimensions first, each innermost first, then the reduced ones
  dlb_long outputs, count;       // results, and elements reduced into each
  dlb_long per_split, per_item;  // elements of one split; CPU: results (or blocks of columns) of a work-item
  Divider divider[REDUCE_RANK];
  dlb_uint kept, rank;
  dlb_uint splits;  // above 1: accumulators go to the workspace, [split][output]
  dlb_uint block;   // CPU: columns of a block
  dlb_uint lanes;   // GPU: work-items per result, or per row of a scan, a power of two
  // GPU: neighbouring work-items walk the reduction, not the results. Scans: only accumulate chunks.
  dlb_uint along;
  dlb_uint unused[2];
  dlb_long workspace;  // bytes from the start of the workspace's buffer
  ReduceOperand operand[REDUCE_OPERANDS];
} ReduceParams;
ASSERT_SIZE(ReduceParams, 232 + 72 * REDUCE_OPERANDS);

PARAMS_END
