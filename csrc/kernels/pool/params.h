// Arguments of the pooling kernels.
#pragma once
#include "kernels/common/lines.h"

PARAMS_BEGIN

// One spatial axis: sizes of the input's and the output's side, and the windows along it.
typedef struct {
  dlb_int in, out, extent, stride, pad, dilation;  // extent 0: adaptive
} PoolAxisParams;
ASSERT_SIZE(PoolAxisParams, 24);

typedef struct {
  dlb_long x, y, index;                // offsets
  Lines lines;                         // indices are laid out as the output
  PoolAxisParams axis[3];              // D, H, W
  dlb_int count_include_pad, divisor;  // averages; divisor 0: the window's size
} PoolParams;
ASSERT_SIZE(PoolParams, 256);

// pool/fractional.cl. Axes are D, H, W; two of them have a D of size 1.
typedef struct {
  dlb_long x, samples, y, index;  // offsets
  dlb_int in[3], size[3];         // of the input and of a window
  dlb_int sample[3], axes;        // which of a plane's random numbers is an axis's, -1: none
  Divider out[3];
  dlb_uint count, per_item, unused;
} FractionalParams;
ASSERT_SIZE(FractionalParams, 120);

PARAMS_END
