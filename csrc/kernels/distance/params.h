// Arguments of the kernels of distances between rows.
#pragma once
#include "kernels/common/params.h"

PARAMS_BEGIN

// The norm: by the power of its sum, or one that needs no power.
enum { DISTANCE_COUNT, DISTANCE_SUM, DISTANCE_LOW, DISTANCE_EUCLID, DISTANCE_HIGH, DISTANCE_MAX };

typedef struct {
  dlb_long x, y, out, grad, dist;  // offsets
  dlb_long items;
  dlb_int rows, others, width;  // rows of x and y of each batch, numbers of a row
  dlb_int norm;
  dlb_int pairs;  // 1: rows of one matrix, each pair once
  dlb_int per_item;
} DistanceParams;
ASSERT_SIZE(DistanceParams, 72);

PARAMS_END
