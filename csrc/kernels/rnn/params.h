// Arguments of the LSTM and GRU kernels.
#pragma once
#include "kernels/common/params.h"

PARAMS_BEGIN

enum { RNN_BUFFERS = 8 };  // of one kernel, at most

typedef struct {
  dlb_long offset[RNN_BUFFERS];  // in the order of the buffers; -1: not there
  dlb_int size, unused;          // hidden size
} RnnParams;
ASSERT_SIZE(RnnParams, 72);

PARAMS_END
