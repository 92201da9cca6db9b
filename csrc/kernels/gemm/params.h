// Arguments of the GEMM kernels that take a struct.
#pragma once
#include "kernels/common/divider.h"
#include "kernels/common/params.h"

PARAMS_BEGIN

// gemm/cpu_blocked.cl: rows of a register tile, and the numbers in a row of a panel of B at most: columns
// times the planes of complex numbers.
enum { BLOCKED_ROWS = 6, BLOCKED_COLUMNS = 64 };
enum {
  GEMV_ITEMS = 128,   // gemm/gpu_gemv.cl: work-items of a work-group
  GEMV_WIDE = 2,      // rows of a that a work-item of gemm_gpu_gemv_along_k takes at once, so that x is read half
                      // as often
  CPU_GEMV_ROWS = 4,  // gemm/cpu_packed.cl: rows of gemm_cpu_gemv, at most
  LEAST_GROUP = 32    // elements of B that share a scale, at least; others are multiples
};

// Groups of B's elements along k, with their scales and zeros: primitives/gemm/problem.h.
typedef struct {
  dlb_long offset, pitch;  // of the first scale; from one group's scales to the next one's
  Divider size;            // elements of a group
  dlb_uint unused;
} GemmGroups;
ASSERT_SIZE(GemmGroups, 32);

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

// gemm/gpu_gemv.cl: c[b,r,n] = alpha * sum_k x[b,r,k] * a[b,n,k] + beta * d[b,r,n], within bounds.
typedef struct {
  dlb_long x_offset, x_batch, x_row, x_k;
  dlb_long a_offset, a_batch, a_n, a_k;
  dlb_long c_offset, c_batch, c_row, c_n;
  dlb_long d_offset, d_batch, d_row, d_n;
  dlb_long partial_offset;
  dlb_int batch, rows, n, k;
  dlb_int splits, k_part;  // parts of k and the size of each, a multiple of four
  dlb_int lanes;           // work-items along the fast direction, a power of two, at most GEMV_ITEMS
  dlb_int a_vector,
      x_vector;     // four neighbours of a in the fast direction, of x along k, are contiguous and aligned
  float low, high;  // what results are brought to
  dlb_int unused;
} GemmGemv;
ASSERT_SIZE(GemmGemv, 184);

PARAMS_END
