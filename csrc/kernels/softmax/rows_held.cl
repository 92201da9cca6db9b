// Softmax of contiguous rows of at most SOFTMAX_HELD elements per work-item of a GPU: memory is read once.
#include "softmax/softmax.clh"

kernel void softmax_rows_held(global const A_T* x, global B_T* y, const SoftmaxParams p, const Team team) {
  TEAM_SCRATCH
  FOR_ROWS(row, team) {
    global const A_T* in = x + p.x + (long)row * p.dim;
    global B_T* out = y + p.y + (long)row * p.dim;
    T held[SOFTMAX_HELD];
#pragma unroll
    for (int k = 0; k < SOFTMAX_HELD; ++k) {
      const int i = k * LANES + LANE;
      held[k] = i < p.dim ? LOAD_A(in, i) : -INFINITY;
    }
    T top = held[0];
#pragma unroll
    for (int k = 1; k < SOFTMAX_HELD; ++k) top = fmax(top, held[k]);
    top = dlb_team_max(top, team_scratch, team.lanes);
    T part = 0;
#pragma unroll
    for (int k = 0; k < SOFTMAX_HELD; ++k) {
      const T e = softmax_exp(held[k] - top);
      // Beyond the row this is exp(-infinity), or NaN where the whole row is -infinity and the sum NaN anyway.
      part += e;
      held[k] = p.log_form ? held[k] - top : e;
    }
    const T sum = team_sum(part), shift = p.log_form ? log(sum) : 0, scale = p.log_form ? 1 : C(1.0) / sum;
    if (!row_active) continue;
#pragma unroll
    for (int k = 0; k < SOFTMAX_HELD; ++k) {
      const int i = k * LANES + LANE;
      if (i < p.dim) STORE_B(out, i, held[k] * scale - shift);
    }
  }
}
