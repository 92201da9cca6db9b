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

// sparse/validate.cl. Offsets are in elements.
typedef struct {
  dlb_long compressed, plain, found;  // offsets
  dlb_long batches, lines, size, nnz;
} SparseValidate;
ASSERT_SIZE(SparseValidate, 56);

// The rules that compressed indices may break, in the order in which errors name them.
enum {
  SPARSE_PLAIN_BOUNDS = 1,  // a plain index is outside of the dimension
  SPARSE_FIRST = 2,         // the first line does not begin at 0
  SPARSE_LAST = 4,          // the last line does not end at nnz
  SPARSE_STEPS = 8,         // a line has fewer elements than none, or more than there are places
  SPARSE_ORDER = 16         // the plain indices of a line do not ascend
};

// sparse/solve.cl. Offsets and strides are in elements.
typedef struct {
  dlb_long row_begin, column, a, x;  // offsets
  dlb_long rows, columns;            // of x
  dlb_long x_row, x_column;
  dlb_int upper, unit;
} SparseSolve;
ASSERT_SIZE(SparseSolve, 72);

PARAMS_END
