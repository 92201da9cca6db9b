// Arguments of the resampling kernels.
#pragma once
#include "kernels/common/divider.h"

PARAMS_BEGIN

enum { RESAMPLE_LINEAR, RESAMPLE_CUBIC, RESAMPLE_LANCZOS };
enum { BYTES_OF_PIXEL = 4 };  // CPU: what lies beside an axis of bytes, at most, where whole lines are taken

// One axis and its table: the first input and the number of inputs that each output is made of, at
// bounds[2 * output], and their weights, at weights[tap * out + output].
typedef struct {
  dlb_long bounds, weights;  // offsets
  float scale[3];            // input positions per output position, a double as a sum of floats
  dlb_int in, out, taps;     // taps: of an output, at most
} ResampleAxis;
ASSERT_SIZE(ResampleAxis, 40);

typedef struct {
  ResampleAxis axis[2];
  dlb_int filter, antialias, align;
  dlb_int per_item;  // outputs of a work-item
} ResampleTable;
ASSERT_SIZE(ResampleTable, 96);

// A pass along one axis of [outer, axis, inner].
typedef struct {
  dlb_long x, y;  // offsets of the shorter side of the table's transpose and of the other: see the kernels
  ResampleAxis axis;
  Divider blocks, length;  // blocks of what lies together; of the axis that is written
  dlb_int inner;
  dlb_uint rows, per_item;
  dlb_int precision;  // where the table of integers says their precision
} ResamplePass;
ASSERT_SIZE(ResamplePass, 96);

PARAMS_END
