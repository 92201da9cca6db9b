// Applying coefficients where rows are interleaved: inner is 1. A CPU work-item takes runs of `rows` neighbours, a GPU
// work-item per_item elements of one row.
#include "norm/apply.clh"

inline void apply_columns(global const A_T* x, global const A_T* dy, global A_T* y, global const T* k, NormApply p,
                          Team team, const int backward) {
  k += p.coefficients;
  global const T *k0 = k + p.rows, *k1 = k + 2 * p.rows, *k2 = k + (backward ? 3 : 2) * p.rows;
  FOR_ROWS(at, team) {
    if (!at_active) continue;
#ifdef DLB_CPU
    const long start = (long)at * p.rows;
    global const A_T* in = x + p.x + start;
    global const A_T* grad = dy + p.dy + start;
    global A_T* out = y + p.y + start;
    const int rows = p.rows;
    DLB_SIMD for (int i = 0; i < rows; ++i) APPLY(i, k[i], k0[i], k1[i], k2[i]);
#else
    const uint chunk = at / p.rows, row = at - chunk * p.rows;
    const uint first = chunk * p.per_item, last = min(first + p.per_item, p.outer);
    const T m = k[row], c0 = k0[row], c1 = k1[row], c2 = k2[row];
    for (uint o = first; o < last; ++o) {
      const long start = (long)o * p.rows + row;
      global const A_T* in = x + p.x + start;
      global const A_T* grad = dy + p.dy + start;
      global A_T* out = y + p.y + start;
      APPLY(0, m, c0, c1, c2);
    }
#endif
  }
}

kernel void norm_apply_columns(APPLY_ARGUMENTS) {
  apply_columns(x, dy, y, k, p, team, 0);
}
kernel void norm_apply_columns_backward(APPLY_ARGUMENTS) {
  apply_columns(x, dy, y, k, p, team, 1);
}
