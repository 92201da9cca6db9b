// Arguments of common/cpu_int8.cl.
#pragma once
#include "kernels/common/params.h"

PARAMS_BEGIN

enum {
  INT8_TILE = 16,          // rows and columns of a tile of sums
  INT8_DEPTH = 64,         // elements of the reduction in a tile of operands
  INT8_TILE_BYTES = 1024,  // of either
  INT8_ROWS = 32,          // that are summed at once
  INT8_CONFIG_BYTES = 64   // at the start of a work-item's scratch
};

// What a gather (conv/params.h) does not say of a product of integers of 8 bits.
typedef struct {
  dlb_long in_group, out_group;  // elements from one group to the next
  dlb_long readable;             // elements of the input's buffer that may be read
  dlb_int column_group;          // columns of the epilogue from one group to the next
  dlb_int across;                // 1: positions are rows, and channels columns; 0: the other way round
  dlb_int depth;                 // of the reduction in scratch: taps times padded channels, a multiple of INT8_DEPTH
  dlb_int red;                   // channels that are summed, padded to four
  dlb_int tiles;                 // of columns that are summed at once
  dlb_int alpha;
} Int8Product;
ASSERT_SIZE(Int8Product, 48);

PARAMS_END
