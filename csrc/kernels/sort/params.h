// What the host must know of the sorting kernels.
#pragma once
#include "kernels/common/params.h"

PARAMS_BEGIN

enum {
  SORT_BITONIC = 1024,      // GPU: elements of a row that one work-group sorts, at most
  SORT_CPU_DIGIT_BITS = 8,  // of a digit of the radix sort
  SORT_GPU_DIGIT_BITS = 4
};

PARAMS_END
