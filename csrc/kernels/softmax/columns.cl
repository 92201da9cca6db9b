// Softmax over a strided dimension, and its gradient: a "row" is a block of p.block (GPU: one) neighbours along the inner
// dimensions, each of which has its own maximum and sum.
#include "softmax/softmax.clh"

#ifdef DLB_CPU
#define COLUMN_BLOCK SOFTMAX_MOST_COLUMNS
#else
#define COLUMN_BLOCK 1
#endif

// Where the block of a row begins, and how many columns it has.
typedef struct {
  long base;
  int n;
} column_block;
inline column_block block_of(uint row, SoftmaxParams p) {
  const int blocks = (p.inner + p.block - 1) / p.block, outer = row / blocks, first = (row - outer * blocks) * p.block;
  column_block at;
  at.base = (long)outer * p.dim * p.inner + first;
  at.n = min(min(p.block, COLUMN_BLOCK), p.inner - first);
  return at;
}

kernel void softmax_columns(global const A_T* x, global B_T* y, const SoftmaxParams p, const Team team) {
  const long end = (long)p.dim * p.inner;
  FOR_ROWS(row, team) {
    if (!row_active) continue;
    const column_block at = block_of(row, p);
    global const A_T* in = x + p.x + at.base;
    global B_T* out = y + p.y + at.base;
    T top[COLUMN_BLOCK], sum[COLUMN_BLOCK];
    for (int j = 0; j < at.n; ++j) top[j] = -INFINITY, sum[j] = 0;
    for (long d = 0; d < end; d += p.inner) DLB_SIMD for (int j = 0; j < at.n; ++j) {
        const T v = LOAD_A(in, d + j);
        top[j] = top[j] < v ? v : top[j];
      }
    for (long d = 0; d < end; d += p.inner)
      DLB_SIMD for (int j = 0; j < at.n; ++j) sum[j] += softmax_exp(LOAD_A(in, d + j) - top[j]);
    for (int j = 0; j < at.n; ++j) sum[j] = p.log_form ? log(sum[j]) : C(1.0) / sum[j];
    for (long d = 0; d < end; d += p.inner)
      if (p.log_form) {
        DLB_SIMD for (int j = 0; j < at.n; ++j) STORE_B(out, d + j, LOAD_A(in, d + j) - top[j] - sum[j]);
      } else {
        DLB_SIMD for (int j = 0; j < at.n; ++j) STORE_B(out, d + j, softmax_exp(LOAD_A(in, d + j) - top[j]) * sum[j]);
      }
  }
}

kernel void softmax_columns_backward(global const A_T* grad, global const A_T* result, global B_T* y,
                                     const SoftmaxParams p, const Team team) {
  const long end = (long)p.dim * p.inner;
  FOR_ROWS(row, team) {
    if (!row_active) continue;
    const column_block at = block_of(row, p);
    global const A_T* g = grad + p.x + at.base;
    global const A_T* r = result + p.z + at.base;
    global B_T* out = y + p.y + at.base;
    T sum[COLUMN_BLOCK];
    for (int j = 0; j < at.n; ++j) sum[j] = 0;
    for (long d = 0; d < end; d += p.inner) DLB_SIMD for (int j = 0; j < at.n; ++j) {
        const T v = LOAD_A(g, d + j);
        sum[j] += p.log_form ? v : v * LOAD_A(r, d + j);
      }
    for (long d = 0; d < end; d += p.inner)
      if (p.log_form) {
        DLB_SIMD for (int j = 0; j < at.n; ++j)
            STORE_B(out, d + j, LOAD_A(g, d + j) - softmax_exp(LOAD_A(r, d + j)) * sum[j]);
      } else {
        DLB_SIMD for (int j = 0; j < at.n; ++j) STORE_B(out, d + j, LOAD_A(r, d + j) * (LOAD_A(g, d + j) - sum[j]));
      }
  }
}
