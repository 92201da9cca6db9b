// Applying coefficients to runs of `inner` elements, of which a team takes one.
#include "norm/apply.clh"

inline void apply_rows(global const A_T* x, global const A_T* dy, global A_T* y, global const T* k, NormApply p,
                       Team team, const int backward) {
  k += p.coefficients;
  FOR_ROWS(at, team) {
    if (!at_active) continue;
    const uint row = at % p.rows;
    const T m = k[row], k0 = k[p.rows + row], k1 = k[2 * p.rows + row], k2 = backward ? k[3 * p.rows + row] : 0;
    global const A_T* in = x + p.x + (long)at * p.inner;
    global const A_T* grad = dy + p.dy + (long)at * p.inner;
    global A_T* out = y + p.y + (long)at * p.inner;
    const int length = p.inner;
    DLB_SIMD for (int i = LANE; i < length; i += LANES) APPLY(i, m, k0, k1, k2);
  }
}

kernel void norm_apply_rows(APPLY_ARGUMENTS) { apply_rows(x, dy, y, k, p, team, 0); }
kernel void norm_apply_rows_backward(APPLY_ARGUMENTS) { apply_rows(x, dy, y, k, p, team, 1); }
