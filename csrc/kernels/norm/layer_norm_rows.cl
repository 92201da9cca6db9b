// Layer norm of rows that are read three times, and its gradient.
#include "norm/layer_norm_rows.clh"

kernel void layer_norm_rows(global const A_T* x, global const B_T* weight, global const B_T* bias, global A_T* y,
                            global T* mean, global T* rstd, const LayerNorm p, const Team team) {
  TEAM_SCRATCH
  layer_rows(x, weight, bias, y, mean, rstd, p, team, 0 PASS_SCRATCH);
}

kernel void layer_norm_rows_backward(global const A_T* x, global const A_T* dy, global const B_T* weight,
                                     global const T* mean, global const T* rstd, global A_T* dx, const LayerNorm p,
                                     const Team team) {
  DLB_REASSOCIATE
  TEAM_SCRATCH
  weight += p.weight;
  FOR_ROWS(row, team) {
    GRADIENT_ROW
    T s1 = 0, s2 = 0;
    T lost1 = 0, lost2 = 0;
    FOR_BLOCKS(begin, end, p.length) {
      T part1 = 0, part2 = 0;
      if (p.weight >= 0) {
        DLB_SIMD for (int i = begin + LANE; i < end; i += LANES) {
          const T g = LOAD_A(grad, i) * LOAD_B(weight, i);
          part1 += g;
          part2 += g * (LOAD_A(in, i) - m);
        }
      } else {
        DLB_SIMD for (int i = begin + LANE; i < end; i += LANES) {
          const T g = LOAD_A(grad, i);
          part1 += g;
          part2 += g * (LOAD_A(in, i) - m);
        }
      }
      add_up(&s1, &lost1, part1);
      add_up(&s2, &lost2, part2);
    }
    const T k1 = team_sum(s1) / (T)p.length;
    const T k2 = team_sum(s2) / (T)p.length * r * r;
    if (!row_active) continue;
    if (p.weight >= 0) {
      DLB_SIMD for (int i = LANE; i < p.length; i += LANES)
          STORE_A(out, i, (LOAD_A(grad, i) * LOAD_B(weight, i) - k1 - (LOAD_A(in, i) - m) * k2) * r);
    } else {
      DLB_SIMD for (int i = LANE; i < p.length; i += LANES)
          STORE_A(out, i, (LOAD_A(grad, i) - k1 - (LOAD_A(in, i) - m) * k2) * r);
    }
  }
}
