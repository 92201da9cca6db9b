// Layer norm, a row being one contiguous run: statistics and result in one kernel. A_T: the input's type (also
// grad_output's and the results'), B_T: that of weight and bias; statistics are T.
#include "common/team.clh"

#define EPS ((T)p.eps_high + (T)p.eps_low)

typedef struct {
  long x, y, dy, mean, rstd, weight, bias;  // offsets; -1: not there
  int length, padding;
  float eps_high, eps_low;
} layer_params;

// Mean and variance of a row from its deviations from a first estimate of the mean, all read once.
#define ESTIMATE 16  // elements
inline T deviations(global const A_T* in, layer_params p, T* m, dlb_team team SCRATCH_PARAMETER) {
  DLB_REASSOCIATE
  T shift = 0, sum = 0, squares = 0;
  const int few = min(p.length, ESTIMATE);
  for (int i = 0; i < few; ++i) shift += LOAD_A(in, i);
  shift /= (T)few;
  DLB_SIMD for (int i = LANE; i < p.length; i += LANES) {
    const T d = LOAD_A(in, i) - shift;
    sum += d;
    squares += d * d;
  }
  const T off = team_sum(sum) / (T)p.length;
  *m = shift + off;
  const T variance = team_sum(squares) / (T)p.length - off * off;
  return variance < 0 ? 0 : variance;
}

// A row is read three times from the cache, or twice.
inline void layer_rows(global const A_T* x, global const B_T* weight, global const B_T* bias, global A_T* y,
                       global T* mean, global T* rstd, layer_params p, dlb_team team,
                       const int once SCRATCH_PARAMETER) {
  DLB_REASSOCIATE
  weight += p.weight;
  bias += p.bias;
  FOR_ROWS(row, team) {
    global const A_T* in = x + p.x + (long)row * p.length;
    global A_T* out = y + p.y + (long)row * p.length;
    T m = 0, part = 0, variance;
    if (once) {
      variance = deviations(in, p, &m, team PASS_SCRATCH);
    } else {
      DLB_SIMD for (int i = LANE; i < p.length; i += LANES) part += LOAD_A(in, i);
      m = team_sum(part) / (T)p.length;
      part = 0;
      DLB_SIMD for (int i = LANE; i < p.length; i += LANES) {
        const T d = LOAD_A(in, i) - m;
        part += d * d;
      }
      variance = team_sum(part) / (T)p.length;
    }
    const T r = C(1.0) / sqrt(variance + EPS);
    if (!row_active) continue;
    if (LANE == 0) {
      mean[p.mean + row] = m;
      rstd[p.rstd + row] = r;
    }
    if (p.weight >= 0 && p.bias >= 0) {
      DLB_SIMD for (int i = LANE; i < p.length; i += LANES)
          STORE_A(out, i, (LOAD_A(in, i) - m) * r * LOAD_B(weight, i) + LOAD_B(bias, i));
    } else if (p.weight >= 0) {
      DLB_SIMD for (int i = LANE; i < p.length; i += LANES)
          STORE_A(out, i, (LOAD_A(in, i) - m) * r * LOAD_B(weight, i));
    } else if (p.bias >= 0) {
      DLB_SIMD for (int i = LANE; i < p.length; i += LANES)
          STORE_A(out, i, (LOAD_A(in, i) - m) * r + LOAD_B(bias, i));
    } else {
      DLB_SIMD for (int i = LANE; i < p.length; i += LANES) STORE_A(out, i, (LOAD_A(in, i) - m) * r);
    }
  }
}

kernel void layer_norm_rows(global const A_T* x, global const B_T* weight, global const B_T* bias, global A_T* y,
                            global T* mean, global T* rstd, const layer_params p, const dlb_team team) {
  TEAM_SCRATCH
  layer_rows(x, weight, bias, y, mean, rstd, p, team, 0 PASS_SCRATCH);
}
kernel void layer_norm_rows_once(global const A_T* x, global const B_T* weight, global const B_T* bias, global A_T* y,
                                 global T* mean, global T* rstd, const layer_params p, const dlb_team team) {
  TEAM_SCRATCH
  layer_rows(x, weight, bias, y, mean, rstd, p, team, 1 PASS_SCRATCH);
}

kernel void layer_norm_rows_backward(global const A_T* x, global const A_T* dy, global const B_T* weight,
                                     global const T* mean, global const T* rstd, global A_T* dx,
                                     const layer_params p, const dlb_team team) {
  DLB_REASSOCIATE
  TEAM_SCRATCH
  weight += p.weight;
  FOR_ROWS(row, team) {
    global const A_T* in = x + p.x + (long)row * p.length;
    global const A_T* grad = dy + p.dy + (long)row * p.length;
    global A_T* out = dx + p.y + (long)row * p.length;
    const T m = mean[p.mean + row], r = rstd[p.rstd + row];
    T s1 = 0, s2 = 0;
    if (p.weight >= 0) {
      DLB_SIMD for (int i = LANE; i < p.length; i += LANES) {
        const T g = LOAD_A(grad, i) * LOAD_B(weight, i);
        s1 += g;
        s2 += g * (LOAD_A(in, i) - m);
      }
    } else {
      DLB_SIMD for (int i = LANE; i < p.length; i += LANES) {
        const T g = LOAD_A(grad, i);
        s1 += g;
        s2 += g * (LOAD_A(in, i) - m);
      }
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

#ifdef DLB_GPU
// As the two above, for rows of at most HELD elements per work-item: memory is read once.
#define HELD 16
kernel void layer_norm_held(global const A_T* x, global const B_T* weight, global const B_T* bias, global A_T* y,
                            global T* mean, global T* rstd, const layer_params p, const dlb_team team) {
  TEAM_SCRATCH
  weight += p.weight;
  bias += p.bias;
  FOR_ROWS(row, team) {
    global const A_T* in = x + p.x + (long)row * p.length;
    global A_T* out = y + p.y + (long)row * p.length;
    T held[HELD], m = 0, part = 0;
#pragma unroll
    for (int k = 0; k < HELD; ++k) {
      const int i = k * LANES + LANE;
      held[k] = i < p.length ? LOAD_A(in, i) : 0;
      part += held[k];
    }
    m = team_sum(part) / (T)p.length;
    part = 0;
#pragma unroll
    for (int k = 0; k < HELD; ++k) {
      held[k] -= m;
      if (k * LANES + LANE < p.length) part += held[k] * held[k];
    }
    const T r = C(1.0) / sqrt(team_sum(part) / (T)p.length + EPS);
    if (!row_active) continue;
    if (LANE == 0) {
      mean[p.mean + row] = m;
      rstd[p.rstd + row] = r;
    }
#pragma unroll
    for (int k = 0; k < HELD; ++k) {
      const int i = k * LANES + LANE;
      if (i >= p.length) continue;
      const T scale = p.weight >= 0 ? r * LOAD_B(weight, i) : r;
      STORE_A(out, i, held[k] * scale + (p.bias >= 0 ? LOAD_B(bias, i) : 0));
    }
  }
}

kernel void layer_norm_held_backward(global const A_T* x, global const A_T* dy, global const B_T* weight,
                                     global const T* mean, global const T* rstd, global A_T* dx,
                                     const layer_params p, const dlb_team team) {
  TEAM_SCRATCH
  weight += p.weight;
  FOR_ROWS(row, team) {
    global const A_T* in = x + p.x + (long)row * p.length;
    global const A_T* grad = dy + p.dy + (long)row * p.length;
    global A_T* out = dx + p.y + (long)row * p.length;
    const T m = mean[p.mean + row], r = rstd[p.rstd + row];
    T centred[HELD], g[HELD], s1 = 0, s2 = 0;
#pragma unroll
    for (int k = 0; k < HELD; ++k) {
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
    for (int k = 0; k < HELD; ++k) {
      const int i = k * LANES + LANE;
      if (i < p.length) STORE_A(out, i, (g[k] - k1 - centred[k] * k2) * r);
    }
  }
}
#endif

// What the others are checked against: one work-item per row, sums in parts of some hundred.
#define ADD_UP(total, i, count, value)                                                   \
  for (int i##_begin = 0; i##_begin < count; i##_begin += 256) {                        \
    T part = 0;                                                                         \
    for (int i = i##_begin; i < min(i##_begin + 256, count); ++i) part += (value);      \
    total += part;                                                                      \
  }
kernel void layer_norm_reference(global const A_T* x, global const B_T* weight, global const B_T* bias,
                                 global A_T* y, global T* mean, global T* rstd, const layer_params p,
                                 const dlb_team team) {
  FOR_ROWS(row, team) {
    if (!row_active) continue;
    global const A_T* in = x + p.x + (long)row * p.length;
    T m = 0, squares = 0;
    ADD_UP(m, i, p.length, LOAD_A(in, i))
    m /= (T)p.length;
    ADD_UP(squares, i, p.length, (LOAD_A(in, i) - m) * (LOAD_A(in, i) - m))
    const T r = C(1.0) / sqrt(squares / (T)p.length + EPS);
    mean[p.mean + row] = m;
    rstd[p.rstd + row] = r;
    for (int i = 0; i < p.length; ++i) {
      const T w = p.weight >= 0 ? LOAD_B(weight, p.weight + i) : 1, b = p.bias >= 0 ? LOAD_B(bias, p.bias + i) : 0;
      STORE_A(y, p.y + (long)row * p.length + i, (LOAD_A(in, i) - m) * r * w + b);
    }
  }
}
kernel void layer_norm_reference_backward(global const A_T* x, global const A_T* dy, global const B_T* weight,
                                          global const T* mean, global const T* rstd, global A_T* dx,
                                          const layer_params p, const dlb_team team) {
#define GRAD(i) (LOAD_A(grad, i) * (p.weight >= 0 ? LOAD_B(weight, p.weight + (i)) : 1))
  FOR_ROWS(row, team) {
    if (!row_active) continue;
    global const A_T* in = x + p.x + (long)row * p.length;
    global const A_T* grad = dy + p.dy + (long)row * p.length;
    const T m = mean[p.mean + row], r = rstd[p.rstd + row], n = (T)p.length;
    T s1 = 0, s2 = 0;
    ADD_UP(s1, i, p.length, GRAD(i))
    ADD_UP(s2, i, p.length, GRAD(i) * (LOAD_A(in, i) - m) * r)
    for (int i = 0; i < p.length; ++i)
      STORE_A(dx, p.y + (long)row * p.length + i, (GRAD(i) - s1 / n - (LOAD_A(in, i) - m) * r * s2 / n) * r);
  }
}
