// Arguments of common/split_reduce.cl.
#pragma once
#include "kernels/common/params.h"

PARAMS_BEGIN

// c[b,m,n] = alpha * sum_s partial[s,b,m,n] + beta * d[b,m,n], within bounds. Offsets and strides are in
// elements.
typedef struct {
  dlb_long partial_offset, c_offset, d_offset;
  dlb_long c_batch, c_m, c_n;
  dlb_long d_batch, d_m, d_n;
  dlb_long batch, m, n;
  dlb_long splits;
  float low, high;
} SplitReduce;
ASSERT_SIZE(SplitReduce, 112);

PARAMS_END
