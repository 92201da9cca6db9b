// Applying coefficients where rows are interleaved: inner is 1. A work-item takes runs of `rows` neighbours. CPUs.
#include "norm/apply.clh"

inline void apply_columns(global const A_T* x, global const A_T* dy, global A_T* y, global const T* k, NormApply p,
                          Team team, const int backward) {
  k += p.coefficients;
  global const T *k0 = k + p.rows, *k1 = k + 2 * p.rows, *k2 = k + (backward ? 3 : 2) * p.rows;
  FOR_ROWS(at, team) {
    if (!at_active) continue;
    const long start = (long)at * p.rows;
    global const A_T* in = x + p.x + start;
    global const A_T* grad = dy + p.dy + start;
    global A_T* out = y + p.y + start;
    const int rows = p.rows;
    DLB_SIMD for (int i = 0; i < rows; ++i) APPLY(i, k[i], k0[i], k1[i], k2[i]);
  }
}

kernel void norm_apply_columns(APPLY_ARGUMENTS) { apply_columns(x, dy, y, k, p, team, 0); }
kernel void norm_apply_columns_backward(APPLY_ARGUMENTS) { apply_columns(x, dy, y, k, p, team, 1); }
