// Arguments of pointwise kernels.
#pragma once
#include "kernels/common/divider.h"

// The last operands that a kernel does not have are not passed: it defines how many it has.
#ifndef POINTWISE_OPERANDS
#define POINTWISE_OPERANDS MOST_POINTWISE_OPERANDS
#endif

PARAMS_BEGIN

enum {
  MOST_POINTWISE_OPERANDS = 16,
  POINTWISE_RANK = 10  // of the collapsed iteration; more is iterated by the host
};

typedef struct {
  dlb_long offset;                 // elements from the start of the buffer
  dlb_int stride[POINTWISE_RANK];  // elements; 0 for operands that are values
} PointwiseOperand;
ASSERT_SIZE(PointwiseOperand, 48);

// Stands behind the buffers and before the scalars.
typedef struct {
  Divider size[POINTWISE_RANK];  // innermost first
  dlb_uint rank;
  dlb_uint count;     // elements in all; GPU, vectorised: vectors
  dlb_uint per_item;  // CPU: consecutive elements of one work-item
  dlb_uint streamed;  // CPU: of traffic.h
  PointwiseOperand operand[POINTWISE_OPERANDS];
} PointwiseParams;
ASSERT_SIZE(PointwiseParams, 136 + 48 * POINTWISE_OPERANDS);

PARAMS_END
