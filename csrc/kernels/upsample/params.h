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

// resize_planes: a work-item has one position of `per_item` planes.
typedef struct {
  dlb_long x, y, xs[5], ys[5];             // offsets; strides of N, C, D, H, W
  ResizeAxis axis[3];                      // D, H, W
  Divider width, height, depth, channels;  // of the output
  dlb_uint planes, per_item, items;
} ResizePlanes;
ASSERT_SIZE(ResizePlanes, 240);

PARAMS_END
