// Arguments of the resizing kernels.
#pragma once
#include "kernels/common/lines.h"

PARAMS_BEGIN

enum { RESIZE_NEAREST, RESIZE_NEAREST_EXACT, RESIZE_LINEAR, RESIZE_CUBIC };

typedef struct {
  dlb_int in, out;
  dlb_int mode;  // one of the above
  dlb_int align_corners;
  float scale[3];  // input positions per output position, a double as a sum of floats
} ResizeAxis;
ASSERT_SIZE(ResizeAxis, 28);

typedef struct {
  dlb_long x, y;  // offsets
  Lines lines;
  ResizeAxis axis[3];  // D, H, W
  dlb_int unused;
} ResizeParams;
ASSERT_SIZE(ResizeParams, 256);

PARAMS_END
