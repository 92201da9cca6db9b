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
