// Where a CPU's pointwise kernel expects its operands to be: values of PointwiseParams::streamed.
#pragma once
#include "kernels/common/params.h"

PARAMS_BEGIN

enum {
  POINTWISE_CACHED = 0,    // in the last cache, results too: one place after the other
  POINTWISE_STREAMED = 1,  // in memory; results are written past the cache
  POINTWISE_IN_PLACE = 2   // in memory, results over an operand that is read: several places in turns
};

PARAMS_END
