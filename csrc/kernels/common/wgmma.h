// Sizes that kernels for Hopper GPUs (common/wgmma.clh) and their solvers agree on.
#pragma once
#include "kernels/common/params.h"

PARAMS_BEGIN

enum {
  WGMMA_LINE = 128,              // bytes of an operand's line in local memory
  WGMMA_MAP = 128,               // bytes of a tensor map
  WGMMA_ROWS = 128,              // of a tile: 64 for each of two warpgroups that multiply
  WGMMA_ITEMS = 288,             // of a work-group: those two warpgroups, and the warp that copies
  WGMMA_STAGE_BYTES = 192 << 10  // of local memory for stages
};

PARAMS_END

// Where a warpgroup's results lie (PTX ISA, "Register Fragments for wgmma.mma_async.m64nNk16"): of a
// work-item's sums of a product of 64 rows, i / 4 counts columns by eights; of these it has two neighbours in
// each of two rows, eight apart. The next warpgroup has the next 64 rows.
static inline int wgmma_row(int item, int i) {
  return item / 128 * 64 + item % 128 / 32 * 16 + item % 32 / 4 + i / 2 % 2 * 8;
}
static inline int wgmma_column(int item, int i) { return i / 4 * 8 + item % 4 * 2 + i % 2; }
// The first of the two neighbouring sums that word `word` of left operands in registers holds in 16 bits,
// where a product's columns are the k of the next: words 4 k to 4 k + 3 are those of instruction k.
static inline int wgmma_sum_of_word(int word) { return 2 * word; }
