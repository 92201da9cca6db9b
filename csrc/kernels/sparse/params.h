// Arguments of the sparse kernels.
#pragma once
#include "kernels/common/params.h"

PARAMS_BEGIN

enum { SPARSE_COLUMNS_CPU = 16 };  // columns of the result that a work-item of a CPU computes

// sparse/product.cl. Offsets and strides are in elements.
typedef struct {
  dlb_long row_begin, column, a, b, c;  // offsets
  dlb_long columns;                     // of the result
  dlb_long b_row, b_column, c_row, c_column;
  dlb_int adds;  // to what is in c
  dlb_int unused;
} SparseProduct;
ASSERT_SIZE(SparseProduct, 88);

PARAMS_END
