// The tiles of common/cpu_bf16.clh.
#pragma once
#include "kernels/common/params.h"

PARAMS_BEGIN

enum {
  BF16_TILE = 16,          // rows and columns of a tile of sums
  BF16_DEPTH = 32,         // elements of the reduction in a tile of operands
  BF16_TILE_BYTES = 1024,  // of either
  BF16_CONFIG_BYTES = 64   // at the start of a work-item's scratch
};

PARAMS_END
