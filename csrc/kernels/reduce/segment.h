// Arguments of the kernels of segment_reduce.
#pragma once
#include "kernels/common/params.h"

PARAMS_BEGIN

enum { SEGMENT_SUM, SEGMENT_MEAN, SEGMENT_PROD, SEGMENT_MAX, SEGMENT_MIN };

typedef struct {
  dlb_long data, bounds, out, grad, result;  // offsets in elements
  dlb_uint outer, n, inner, segments, per_item;
  dlb_int reduction;  // SEGMENT_...
  dlb_int has_initial, unused;
} SegmentParams;
ASSERT_SIZE(SegmentParams, 72);

PARAMS_END
