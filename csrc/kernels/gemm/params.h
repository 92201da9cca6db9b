// Arguments of the GEMM kernels that take a struct.
#pragma once
#include "kernels/common/params.h"

PARAMS_BEGIN

// An operand as a matrix of rows x k; b's rows are the columns of the product. Offsets and strides are in
// elements; the part of one tile must span less than 2^31 elements.
typedef struct {
  dlb_long offset, batch, row, k;
  dlb_int k_fast;  // work-items read neighbours along k, else along the rows
  dlb_int vector;  // those neighbours are contiguous, aligned to four, and a multiple of four many
} GemmOperand;
ASSERT_SIZE(GemmOperand, 40);

// gemm/gpu_tiled.cl: c[b,m,n] = alpha * sum_k a[b,m,k] * b[b,k,n] + beta * d[b,m,n], within bounds.
typedef struct {
  GemmOperand a, b;
  dlb_long c_offset, c_batch, c_m, c_n;
  dlb_long d_offset, d_batch, d_m, d_n;
  dlb_long partial_offset;
  dlb_int batch, m, n, k;
  dlb_int splits, k_part;  // parts of k and the size of each, a multiple of TK
  dlb_int c_vector;        // c has unit stride along n, and four neighbours are aligned
  float low, high;         // the bounds that results are brought to
  dlb_int unused;
} GemmTiled;
ASSERT_SIZE(GemmTiled, 192);

PARAMS_END
