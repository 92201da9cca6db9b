// Softmax of contiguous rows for a result of the compute type, which holds the exponentials between the passes: fewer
// exponentials, and more memory traffic. Not for the logarithm.
#include "softmax/softmax.clh"

kernel void softmax_rows_once(global const A_T* x, global B_T* y, const SoftmaxParams p, const Team team) {
  DLB_REASSOCIATE
  TEAM_SCRATCH
  FOR_ROWS(row, team) {
    global const A_T* in = x + p.x + (long)row * p.dim;
    global B_T* out = y + p.y + (long)row * p.dim;
    const T top = team_max(in, p.dim);
    T part = 0;
    DLB_SIMD for (int i = LANE; i < p.dim; i += LANES) {
      const T e = softmax_exp(LOAD_A(in, i) - top);
      if (row_active) STORE_B(out, i, e);
      part += e;
    }
    const T scale = C(1.0) / team_sum(part);
    if (!row_active) continue;
    DLB_SIMD for (int i = LANE; i < p.dim; i += LANES) STORE_B(out, i, LOAD_B(out, i) * scale);
  }
}
