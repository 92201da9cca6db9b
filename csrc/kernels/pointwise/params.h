// Arguments of pointwise kernels.
#pragma once
#include "kernels/common/divider.h"

PARAMS_BEGIN

enum {
  POINTWISE_OPERANDS = 12,  // at most
  POINTWISE_RANK = 10       // of the collapsed iteration; more is iterated by the host
};

// Stands behind the buffers and before the scalars.
typedef struct {
  dlb_long offset[POINTWISE_OPERANDS];                 // elements from the start of the buffer
  dlb_int stride[POINTWISE_OPERANDS][POINTWISE_RANK];  // elements; 0 for operands that are values
  Divider size[POINTWISE_RANK];                        // innermost first
  dlb_uint rank;
  dlb_uint count;     // elements in all; GPU, vectorised: vectors
  dlb_uint per_item;  // CPU: consecutive elements of one work-item
  dlb_uint streamed;  // CPU: of traffic.h
} PointwiseParams;
ASSERT_SIZE(PointwiseParams, 712);

PARAMS_END
