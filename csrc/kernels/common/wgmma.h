// Sizes that kernels for Hopper GPUs (common/wgmma.clh) and their solvers agree on.
#pragma once
#include "kernels/common/params.h"

PARAMS_BEGIN

enum {
  WGMMA_LINE = 128,  // bytes of an operand's line in local memory
  WGMMA_MAP = 128    // bytes of a tensor map
};

PARAMS_END
