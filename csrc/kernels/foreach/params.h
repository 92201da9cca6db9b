// Arguments of kernels over lists of tensors.
#pragma once
#include "kernels/common/params.h"

PARAMS_BEGIN

enum {
  MULTI_TENSOR_SEGMENTS = 16,  // buffers that the tensors of one launch lie in
  MULTI_TENSOR_GROUP = 256,    // GPU: work-items of a work-group
  MULTI_TENSOR_CHUNK = 4096    // GPU: elements of a work-group
};

typedef struct {
  dlb_ulong total;     // work in all: elements (CPU) or chunks (GPU)
  dlb_ulong per_item;  // CPU: elements of one work-item
  dlb_ulong table;     // where the table begins in the ring, in 8-byte words
  dlb_ulong lists;     // where the values that differ per tensor begin, in 8-byte words
  dlb_uint tensors, unused;
} MultiTensorParams;
ASSERT_SIZE(MultiTensorParams, 40);

PARAMS_END
