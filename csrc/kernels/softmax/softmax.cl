// softmax, log_softmax and their gradients over one dimension. A_T is the input's type (gradients: that of
// grad_output and output), B_T the result's.
#include "common/team.clh"

typedef struct {
  long x, y, z;  // offsets: input (backward: grad_output), result, output of the forward pass
  int dim, inner;
  int log_form;
  int block;  // columns: neighbours taken together, at most COLUMN_BLOCK
} softmax_params;

// exp(x) for x <= 0, which libraries do not vectorise everywhere: 2^n * e^r with |r| <= ln(2) / 2 and the minimax
// polynomial of Cephes' expf; below 1.5 ulp, results under 2^-126 are 0.
inline T softmax_exp(T x) {
#ifdef DLB_CPU
#pragma clang fp contract(fast)
  if (sizeof(T) == 4) {
    const float t = x * 1.44269504f + 12582912.0f, n = t - 12582912.0f;
    const float high = x - n * 0.693359375f, r = high + n * 2.12194440e-4f;
    float p = 1.9875691500e-4f;
    p = p * r + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * r * r + r + 1.0f;
    const float scaled = as_float(as_uint(p) + (as_uint(t) << 23));
    return x >= -87.0f ? scaled : x < -87.0f ? 0.0f : (float)x;
  }
#endif
  return exp(x);
}

#define MAX_BLOCK 64

#ifdef DLB_CPU
// Lanes side by side, as a single running maximum does not vectorise. NaN may get lost: the sum finds it.
inline T row_max(global const A_T* x, int n, dlb_team team) {
  T lanes[MAX_BLOCK];
  for (int j = 0; j < MAX_BLOCK; ++j) lanes[j] = -INFINITY;
  int i = 0;
  for (; i + MAX_BLOCK <= n; i += MAX_BLOCK)
    DLB_SIMD for (int j = 0; j < MAX_BLOCK; ++j) {
      const T v = LOAD_A(x, i + j);
      lanes[j] = lanes[j] < v ? v : lanes[j];
    }
  T best = -INFINITY;
  for (; i < n; ++i) best = fmax(best, LOAD_A(x, i));
  for (int j = 0; j < MAX_BLOCK; ++j) best = fmax(best, lanes[j]);
  return best;
}
#define team_max(x, n) row_max(x, n, team)
#else
inline T dlb_team_max(T v, local T* scratch, uint lanes) {
  const uint i = get_local_id(0), lane = i & (lanes - 1);
  barrier(CLK_LOCAL_MEM_FENCE);
  scratch[i] = v;
  barrier(CLK_LOCAL_MEM_FENCE);
  for (uint half_size = lanes / 2; half_size; half_size /= 2) {
    if (lane < half_size) scratch[i] = fmax(scratch[i], scratch[i + half_size]);
    barrier(CLK_LOCAL_MEM_FENCE);
  }
  return scratch[i - lane];
}
inline T row_max(global const A_T* x, int n, local T* scratch, dlb_team team) {
  T best = -INFINITY;
  for (int i = LANE; i < n; i += LANES) best = fmax(best, LOAD_A(x, i));
  return dlb_team_max(best, scratch, team.lanes);
}
#define team_max(x, n) row_max(x, n, team_scratch, team)
#endif

// The dimension is contiguous: one row per team.
kernel void softmax_rows(global const A_T* x, global B_T* y, const softmax_params p, const dlb_team team) {
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
      DLB_SIMD for (int i = LANE; i < p.dim; i += LANES)
          STORE_B(out, i, softmax_exp(LOAD_A(in, i) - top) * scale);
    }
  }
}

// As softmax_rows for a result of the compute type, which holds the exponentials between the passes: fewer of them,
// and more memory traffic. Not for the logarithm.
kernel void softmax_rows_once(global const A_T* x, global B_T* y, const softmax_params p, const dlb_team team) {
  DLB_REASSOCIATE
  TEAM_SCRATCH
  x += p.x;
  y += p.y;
  FOR_ROWS(row, team) {
    global const A_T* in = x + (long)row * p.dim;
    global B_T* out = y + (long)row * p.dim;
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

#ifndef DLB_CPU
// As softmax_rows, for rows of at most HELD elements per work-item: memory is read once.
#define HELD 32
kernel void softmax_rows_held(global const A_T* x, global B_T* y, const softmax_params p, const dlb_team team) {
  TEAM_SCRATCH
  FOR_ROWS(row, team) {
    global const A_T* in = x + p.x + (long)row * p.dim;
    global B_T* out = y + p.y + (long)row * p.dim;
    T held[HELD];
#pragma unroll
    for (int k = 0; k < HELD; ++k) {
      const int i = k * LANES + LANE;
      held[k] = i < p.dim ? LOAD_A(in, i) : -INFINITY;
    }
    T top = held[0];
#pragma unroll
    for (int k = 1; k < HELD; ++k) top = fmax(top, held[k]);
    top = dlb_team_max(top, team_scratch, team.lanes);
    T part = 0;
#pragma unroll
    for (int k = 0; k < HELD; ++k) {
      const T e = softmax_exp(held[k] - top);
      // Beyond the row this is exp(-infinity), or NaN where the whole row is -infinity and the sum NaN anyway.
      part += e;
      held[k] = p.log_form ? held[k] - top : e;
    }
    const T sum = team_sum(part), shift = p.log_form ? log(sum) : 0, scale = p.log_form ? 1 : C(1.0) / sum;
    if (!row_active) continue;
#pragma unroll
    for (int k = 0; k < HELD; ++k) {
      const int i = k * LANES + LANE;
      if (i < p.dim) STORE_B(out, i, held[k] * scale - shift);
    }
  }
}
#endif

kernel void softmax_rows_backward(global const A_T* grad, global const A_T* result, global B_T* y,
                                  const softmax_params p, const dlb_team team) {
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

// The dimension is strided: a "row" is a block of p.block (GPU: one) neighbours along the inner dimensions, each of
// which has its own maximum and sum.
#ifdef DLB_CPU
#define COLUMN_BLOCK 256
#else
#define COLUMN_BLOCK 1
#endif

kernel void softmax_columns(global const A_T* x, global B_T* y, const softmax_params p, const dlb_team team) {
  const int blocks = (p.inner + p.block - 1) / p.block;
  FOR_ROWS(row, team) {
    if (!row_active) continue;
    const int outer = row / blocks, first = (row - outer * blocks) * p.block,
              n = min(min(p.block, COLUMN_BLOCK), p.inner - first);
    const long base = (long)outer * p.dim * p.inner + first;
    global const A_T* in = x + p.x + base;
    global B_T* out = y + p.y + base;
    T top[COLUMN_BLOCK], sum[COLUMN_BLOCK];
    for (int j = 0; j < n; ++j) top[j] = -INFINITY, sum[j] = 0;
    for (long d = 0; d < (long)p.dim * p.inner; d += p.inner)
      DLB_SIMD for (int j = 0; j < n; ++j) {
        const T v = LOAD_A(in, d + j);
        top[j] = top[j] < v ? v : top[j];
      }
    for (long d = 0; d < (long)p.dim * p.inner; d += p.inner)
      DLB_SIMD for (int j = 0; j < n; ++j) sum[j] += softmax_exp(LOAD_A(in, d + j) - top[j]);
    for (int j = 0; j < n; ++j) sum[j] = p.log_form ? log(sum[j]) : C(1.0) / sum[j];
    for (long d = 0; d < (long)p.dim * p.inner; d += p.inner)
      if (p.log_form) {
        DLB_SIMD for (int j = 0; j < n; ++j) STORE_B(out, d + j, LOAD_A(in, d + j) - top[j] - sum[j]);
      } else {
        DLB_SIMD for (int j = 0; j < n; ++j)
            STORE_B(out, d + j, softmax_exp(LOAD_A(in, d + j) - top[j]) * sum[j]);
      }
  }
}

kernel void softmax_columns_backward(global const A_T* grad, global const A_T* result, global B_T* y,
                                     const softmax_params p, const dlb_team team) {
  const int blocks = (p.inner + p.block - 1) / p.block;
  FOR_ROWS(row, team) {
    if (!row_active) continue;
    const int outer = row / blocks, first = (row - outer * blocks) * p.block,
              n = min(min(p.block, COLUMN_BLOCK), p.inner - first);
    const long base = (long)outer * p.dim * p.inner + first, end = (long)p.dim * p.inner;
    global const A_T* g = grad + p.x + base;
    global const A_T* r = result + p.z + base;
    global B_T* out = y + p.y + base;
    T sum[COLUMN_BLOCK];
    for (int j = 0; j < n; ++j) sum[j] = 0;
    for (long d = 0; d < end; d += p.inner)
      DLB_SIMD for (int j = 0; j < n; ++j) {
        const T v = LOAD_A(g, d + j);
        sum[j] += p.log_form ? v : v * LOAD_A(r, d + j);
      }
    for (long d = 0; d < end; d += p.inner)
      if (p.log_form) {
        DLB_SIMD for (int j = 0; j < n; ++j)
            STORE_B(out, d + j, LOAD_A(g, d + j) - softmax_exp(LOAD_A(r, d + j)) * sum[j]);
      } else {
        DLB_SIMD for (int j = 0; j < n; ++j)
            STORE_B(out, d + j, LOAD_A(r, d + j) * (LOAD_A(g, d + j) - sum[j]));
      }
  }
}

#ifndef DLB_CPU
// The same with team.lanes work-items along the dimension and 256 / team.lanes along the inner ones, a group for each
// such block: where there are too few columns to fill the device.
#define COLUMN_OF_GROUP                                                                                     \
  const int lanes = team.lanes, width = 256 / lanes, lane = get_local_id(0) / width;                      \
  const int blocks = (p.inner + width - 1) / width, outer = get_group_id(0) / blocks;                    \
  const int column = ((int)get_group_id(0) - outer * blocks) * width + (int)get_local_id(0) % width;     \
  const int end = column < p.inner ? p.dim : 0; /* columns past the last have no elements */             \
  const long base = (long)outer * p.dim * p.inner + column;

// Over the work-items of one column; in all of them.
inline T column_sum(T v, local T* scratch, uint width) {
  const uint i = get_local_id(0), column = i % width;
  barrier(CLK_LOCAL_MEM_FENCE);
  scratch[i] = v;
  barrier(CLK_LOCAL_MEM_FENCE);
  for (uint apart = 128; apart >= width; apart /= 2) {
    if (i < apart) scratch[i] += scratch[i + apart];
    barrier(CLK_LOCAL_MEM_FENCE);
  }
  return scratch[column];
}
inline T column_max(T v, local T* scratch, uint width) {
  const uint i = get_local_id(0), column = i % width;
  barrier(CLK_LOCAL_MEM_FENCE);
  scratch[i] = v;
  barrier(CLK_LOCAL_MEM_FENCE);
  for (uint apart = 128; apart >= width; apart /= 2) {
    if (i < apart) scratch[i] = fmax(scratch[i], scratch[i + apart]);
    barrier(CLK_LOCAL_MEM_FENCE);
  }
  return scratch[column];
}

kernel void softmax_columns_shared(global const A_T* x, global B_T* y, const softmax_params p, const dlb_team team) {
  local T scratch[256];
  COLUMN_OF_GROUP
  global const A_T* in = x + p.x + base;
  global B_T* out = y + p.y + base;
  T top = -INFINITY, sum = 0;
  for (int d = lane; d < end; d += lanes) top = fmax(top, LOAD_A(in, (long)d * p.inner));
  top = column_max(top, scratch, width);
  for (int d = lane; d < end; d += lanes) sum += softmax_exp(LOAD_A(in, (long)d * p.inner) - top);
  sum = column_sum(sum, scratch, width);
  const T shift = p.log_form ? log(sum) : 0, scale = p.log_form ? 1 : C(1.0) / sum;
  for (int d = lane; d < end; d += lanes) {
    const T v = LOAD_A(in, (long)d * p.inner) - top;
    STORE_B(out, (long)d * p.inner, p.log_form ? v - shift : softmax_exp(v) * scale);
  }
}

kernel void softmax_columns_shared_backward(global const A_T* grad, global const A_T* result, global B_T* y,
                                            const softmax_params p, const dlb_team team) {
  local T scratch[256];
  COLUMN_OF_GROUP
  global const A_T* g = grad + p.x + base;
  global const A_T* r = result + p.z + base;
  global B_T* out = y + p.y + base;
  T sum = 0;
  for (int d = lane; d < end; d += lanes) {
    const T v = LOAD_A(g, (long)d * p.inner);
    sum += p.log_form ? v : v * LOAD_A(r, (long)d * p.inner);
  }
  sum = column_sum(sum, scratch, width);
  for (int d = lane; d < end; d += lanes) {
    const T v = LOAD_A(g, (long)d * p.inner), before = LOAD_A(r, (long)d * p.inner);
    STORE_B(out, (long)d * p.inner, p.log_form ? v - softmax_exp(before) * sum : before * (v - sum));
  }
}
#endif

// What the others are checked against: a work-item for each position outside the dimension, nothing clever.
kernel void softmax_reference(global const A_T* x, global B_T* y, const softmax_params p, const dlb_team team) {
  const uint row = get_global_id(0);
  if (row >= team.rows) return;
  const long base = (long)(row / p.inner) * p.dim * p.inner + row % p.inner;
  T top = -INFINITY, sum = 0;
  for (int d = 0; d < p.dim; ++d) top = fmax(top, LOAD_A(x, p.x + base + (long)d * p.inner));
  for (int d = 0; d < p.dim; ++d) sum += exp(LOAD_A(x, p.x + base + (long)d * p.inner) - top);
  for (int d = 0; d < p.dim; ++d) {
    const T v = LOAD_A(x, p.x + base + (long)d * p.inner) - top;
    STORE_B(y, p.y + base + (long)d * p.inner, p.log_form ? v - log(sum) : exp(v) / sum);
  }
}

kernel void softmax_reference_backward(global const A_T* grad, global const A_T* result, global B_T* y,
                                       const softmax_params p, const dlb_team team) {
  const uint row = get_global_id(0);
  if (row >= team.rows) return;
  const long base = (long)(row / p.inner) * p.dim * p.inner + row % p.inner;
  T sum = 0;
  for (int d = 0; d < p.dim; ++d) {
    const long at = base + (long)d * p.inner;
    sum += p.log_form ? LOAD_A(grad, p.x + at) : LOAD_A(grad, p.x + at) * LOAD_A(result, p.z + at);
  }
  for (int d = 0; d < p.dim; ++d) {
    const long at = base + (long)d * p.inner;
    const T g = LOAD_A(grad, p.x + at), r = LOAD_A(result, p.z + at);
    STORE_B(y, p.y + at, p.log_form ? g - exp(r) * sum : r * (g - sum));
  }
}
