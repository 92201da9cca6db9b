// Softmax of contiguous rows, and its gradient: a row per team, which reads it three times (backward: twice).
#include "softmax/softmax.clh"

kernel void softmax_rows(global const A_T* x, global B_T* y, const SoftmaxParams p, const Team team) {
  DLB_REASSOCIATE
  TEAM_SCRATCH
  x += p.x;
  y += p.y;
  FOR_ROWS(row, team) {
    global const A_T* in = x + (long)row * p.dim;
    global B_T* out = y + (long)row * p.dim;
    const T top = team_max(in, p.dim);
    T part = 0;
    DLB_SIMD for (int i = LANE; i < p.dim; i += LANES) part += softmax_exp(LOAD_A(in, i) - top);
    const T sum = team_sum(part);
    if (!row_active) continue;
    if (p.log_form) {
      const T shift = log(sum);
      DLB_SIMD for (int i = LANE; i < p.dim; i += LANES) STORE_B(out, i, LOAD_A(in, i) - top - shift);
    } else {
      const T scale = C(1.0) / sum;
      DLB_SIMD for (int i = LANE; i < p.dim; i += LANES) STORE_B(out, i, softmax_exp(LOAD_A(in, i) - top) * scale);
    }
  }
}

kernel void softmax_rows_backward(global const A_T* grad, global const A_T* result, global B_T* y,
                                  const SoftmaxParams p, const Team team) {
  DLB_REASSOCIATE
  TEAM_SCRATCH
  FOR_ROWS(row, team) {
    global const A_T* g = grad + p.x + (long)row * p.dim;
    global const A_T* r = result + p.z + (long)row * p.dim;
    global B_T* out = y + p.y + (long)row * p.dim;
    T part = 0;
    if (p.log_form) {
      DLB_SIMD for (int i = LANE; i < p.dim; i += LANES) part += LOAD_A(g, i);
    } else {
      DLB_SIMD for (int i = LANE; i < p.dim; i += LANES) part += LOAD_A(g, i) * LOAD_A(r, i);
    }
    const T sum = team_sum(part);
    if (!row_active) continue;
    if (p.log_form) {
      DLB_SIMD for (int i = LANE; i < p.dim; i += LANES)
          STORE_B(out, i, LOAD_A(g, i) - softmax_exp(LOAD_A(r, i)) * sum);
    } else {
      DLB_SIMD for (int i = LANE; i < p.dim; i += LANES) STORE_B(out, i, LOAD_A(r, i) * (LOAD_A(g, i) - sum));
    }
  }
}
