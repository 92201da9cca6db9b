// Layer norm, and its gradient, of rows of at most NORM_HELD elements per work-item of a GPU: memory is read once.
#include "norm/layer_norm.clh"

kernel void layer_norm_rows_held(global const A_T* x, global const B_T* weight, global const B_T* bias, global A_T* y,
                                 global T* mean, global T* rstd, const LayerNorm p, const Team team) {
  TEAM_SCRATCH
  weight += p.weight;
  bias += p.bias;
  FOR_ROWS(row, team) {
    global const A_T* in = x + p.x + (long)row * p.length;
    global A_T* out = y + p.y + (long)row * p.length;
    T held[NORM_HELD], m = 0, part = 0;
#pragma unroll
    for (int k = 0; k < NORM_HELD; ++k) {
      const int i = k * LANES + LANE;
      held[k] = i < p.length ? LOAD_A(in, i) : 0;
      part += held[k];
    }
    m = team_sum(part) / (T)p.length;
    part = 0;
#pragma unroll
    for (int k = 0; k < NORM_HELD; ++k) {
      held[k] -= m;
      if (k * LANES + LANE < p.length) part += held[k] * held[k];
    }
    const T r = C(1.0) / sqrt(team_sum(part) / (T)p.length + REAL_OF(p.eps));
    if (!row_active) continue;
    if (LANE == 0) {
      mean[p.mean + row] = m;
      rstd[p.rstd + row] = r;
    }
#pragma unroll
    for (int k = 0; k < NORM_HELD; ++k) {
      const int i = k * LANES + LANE;
      if (i >= p.length) continue;
      const T scale = p.weight >= 0 ? r * LOAD_B(weight, i) : r;
      STORE_A(out, i, held[k] * scale + (p.bias >= 0 ? LOAD_B(bias, i) : 0));
    }
  }
}

kernel void layer_norm_rows_held_backward(global const A_T* x, global const A_T* dy, global const B_T* weight,
                                          global const T* mean, global const T* rstd, global A_T* dx, const LayerNorm p,
                                          const Team team) {
  TEAM_SCRATCH
  weight += p.weight;
  FOR_ROWS(row, team) {
    GRADIENT_ROW
    T centred[NORM_HELD], g[NORM_HELD], s1 = 0, s2 = 0;
#pragma unroll
    for (int k = 0; k < NORM_HELD; ++k) {
      const int i = k * LANES + LANE;
      centred[k] = i < p.length ? LOAD_A(in, i) - m : 0;
      g[k] = i < p.length ? LOAD_A(grad, i) * (p.weight >= 0 ? LOAD_B(weight, i) : 1) : 0;
      s1 += g[k];
      s2 += g[k] * centred[k];
    }
    const T k1 = team_sum(s1) / (T)p.length;
    const T k2 = team_sum(s2) / (T)p.length * r * r;
    if (!row_active) continue;
#pragma unroll
    for (int k = 0; k < NORM_HELD; ++k) {
      const int i = k * LANES + LANE;
      if (i < p.length) STORE_A(out, i, (g[k] - k1 - centred[k] * k2) * r);
    }
  }
}
