// Arguments of gemm/gpu_wgmma.cl.
#pragma once
#include "kernels/common/wgmma.h"

PARAMS_BEGIN

// An operand in memory as lines of contiguous elements: along k, or along the rows where its macro says so.
typedef struct {
  dlb_long offset;  // of its first element, which lies at a multiple of 16 bytes
  dlb_long pitch;   // bytes from a line to the next, a multiple of 16
  dlb_long batch;   // bytes from a matrix to the next, a multiple of 16; 0: all products read the same
} WgmmaOperand;
ASSERT_SIZE(WgmmaOperand, 24);

// c[b,m,n] = alpha * sum_k a[b,m,k] * b[b,k,n] + beta * d[b,m,n], within bounds.
typedef struct {
  WgmmaOperand a, b;
  dlb_long c_offset, c_batch, c_m, c_n;
  dlb_long d_offset, d_batch, d_m, d_n;
  dlb_long partial_offset;  // of sums that another kernel adds, in floats
  dlb_long maps_offset;     // of the tensor maps, two for each work-group, in floats
  dlb_int batch, m, n, k;
  dlb_int splits, k_part;  // parts of k, none empty, and the size of each, a multiple of a line's elements
  dlb_int c_vector;        // neighbours along n are contiguous, and pairs (of 16 bits: eights) of them aligned
  float low, high;         // the bounds that results are brought to
  dlb_int unused;
} GemmWgmma;
ASSERT_SIZE(GemmWgmma, 168);

PARAMS_END
