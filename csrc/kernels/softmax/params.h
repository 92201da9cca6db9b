// Arguments of the softmax kernels, and what their solvers must know of them.
#pragma once
#include "kernels/common/params.h"

PARAMS_BEGIN

enum {
  SOFTMAX_HELD = 32,          // softmax/rows_held.cl: elements of a row in the registers of a work-item
  SOFTMAX_MOST_COLUMNS = 256  // softmax/columns.cl: neighbours that a CPU's work-item takes together, at most
};

typedef struct {
  dlb_long x, y, z;  // offsets: input (backward: grad_output), result, output of the forward pass
  dlb_int dim, inner;
  dlb_int log_form;
  dlb_int block;  // columns: neighbours taken together
} SoftmaxParams;
ASSERT_SIZE(SoftmaxParams, 40);

PARAMS_END
