// Arguments of gemm/pack_lines.cl.
#pragma once
#include "kernels/common/params.h"

PARAMS_BEGIN

enum {
  PACK_TILE = 32,   // rows and k of a work-group's tile
  PACK_ITEMS = 256  // its work-items
};

// From any strides [batch, rows, k] to lines along k that are `pitch` apart; everything in elements. What are
// rows and k here may be the operand's k and rows.
typedef struct {
  dlb_long from_offset, from_batch, from_row, from_k;
  dlb_long to_offset, pitch;
  dlb_int rows, k, k_fast;  // work-items read neighbours along k, else along the rows
  dlb_int unused;
} PackLines;
ASSERT_SIZE(PackLines, 64);

PARAMS_END
