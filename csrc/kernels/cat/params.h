// Arguments of cat/cat.cl.
#pragma once
#include "kernels/common/divider.h"

PARAMS_BEGIN

// OpenCL promises 1,024 bytes of arguments.
enum { CAT_INPUTS = 16 };

typedef struct {
  dlb_long offset[CAT_INPUTS];     // elements
  dlb_long pitch[CAT_INPUTS];      // elements from one row to the next
  dlb_long start[CAT_INPUTS];      // where in an output row the input's row goes
  dlb_uint first[CAT_INPUTS + 1];  // elements of all inputs before this one
  Divider length[CAT_INPUTS];      // elements of a row
  dlb_uint inputs, unused[2];
  dlb_long out_offset, out_pitch;
} CatParams;
ASSERT_SIZE(CatParams, 672);

PARAMS_END
