// Arguments of the padding kernels.
#pragma once
#include "kernels/common/lines.h"

PARAMS_BEGIN

typedef struct {
  dlb_int in, out, before;  // before: padding ahead of the first element; negative crops
} PadAxis;
ASSERT_SIZE(PadAxis, 12);

typedef struct {
  dlb_long x, y;  // offsets
  Lines lines;
  PadAxis axis[3];  // D, H, W
  dlb_int reflect;  // 0: replicate
} PadParams;
ASSERT_SIZE(PadParams, 208);

PARAMS_END
