// Attention on tensor cores, in one pass over the keys as in attention/cpu_flash.cl.
#include "attention/gpu_mma.clh"

// The largest, or the sum, of what the four work-items of a row have. All work-items take part.
INLINE float of_four(float v, local float* quads, int row, int t, int take_sum) {
  quads[row * 4 + t] = v;
  barrier(CLK_LOCAL_MEM_FENCE);
  const float4 all = *(local const float4*)(quads + row * 4);
  return take_sum ? (all.x + all.y) + (all.z + all.w) : fmax(fmax(all.x, all.y), fmax(all.z, all.w));
}

kernel __attribute__((reqd_work_group_size(ITEMS, 1, 1))) void attention_mma(
    global const T* Q, global const T* K, global const T* V, global const T* bias, global T* out, global float* lse,
    AttentionParams p) {
  local __attribute__((aligned(16))) uint keys[ROW_TILE], values[PAIR_TILE], scratch[SCRATCH];
  local __attribute__((aligned(16))) float quads[2][KEPT * 4];
  const int item = get_local_id(0), lane = item % 32, g = lane / 4, t = lane % 4, first = item / 32 * 16;
  const QueryBlock at = query_block(&p, K, V, KEPT);
  const int q0 = at.q0, qn = at.qn;
  uint queries[DEPTH][4];
  load_kept(queries, Q + HEAD_AT(p.q, at.b, at.h) + (q0 + first) * p.q.row, p.q.row, qn - first, &p, lane);
  float acc[DIM / 8][4], most[2] = {-INFINITY, -INFINITY}, sum[2] = {0.f, 0.f};
  clear_rows(acc);

  const int end = p.causal ? min(p.keys, q0 + qn) : p.keys;
  for (int k0 = 0; k0 < end; k0 += STEP) {
    const int kn = min(STEP, end - k0);
    load_rows(at.k + k0 * p.k.row, p.k.row, kn, &p, keys, item);
    load_pairs(at.v + k0 * p.v.row, p.v.row, kn, &p, values, item);
    barrier(CLK_LOCAL_MEM_FENCE);
    float s[COLUMNS][4], base[2], old[2];
    multiply_scores(s, queries, keys, scratch, item);
#pragma unroll
    for (int i = 0; i < 2; i++) {
      const int query = q0 + first + g + 8 * i;
      float best = -INFINITY;
#pragma unroll
      for (int n = 0; n < COLUMNS; n++)
#pragma unroll
        for (int c = 0; c < 2; c++) {
          const int key = k0 + n * 8 + 2 * t + c;
          float x = s[n][2 * i + c] * p.scale;
          if (key >= end || query >= p.queries || (p.causal && key > query)) x = -INFINITY;
          else if (p.bias_kind) x += bias_of(bias, &p, at.bias, query, key);
          s[n][2 * i + c] = x, best = fmax(best, x);
        }
      const float next = fmax(most[i], of_four(best, quads[i], first + g + 8 * i, t, 0));
      base[i] = next == -INFINITY ? 0.f : next;
      old[i] = exp(most[i] - base[i]);
      most[i] = next, sum[i] *= old[i];
#pragma unroll
      for (int n = 0; n < DIM / 8; n++) acc[n][2 * i] *= old[i], acc[n][2 * i + 1] *= old[i];
#pragma unroll
      for (int n = 0; n < COLUMNS; n++) {
        const float x = exp(s[n][2 * i] - base[i]), y = exp(s[n][2 * i + 1] - base[i]);
        sum[i] += x + y;
        float2 factors = (float2)(1.f);
        if (p.keep < 1.f) {
          const float4 f = dropout_factors(&p, at.row + first + g + 8 * i, k0 + n * 8 + 2 * t);
          factors = t % 2 ? f.zw : f.xy;
        }
        s[n][2 * i] = x * factors.x, s[n][2 * i + 1] = y * factors.y;
      }
    }
    multiply_rows(acc, s, values, scratch, item);
    barrier(CLK_LOCAL_MEM_FENCE);
  }

#pragma unroll
  for (int i = 0; i < 2; i++) {
    const int r = first + g + 8 * i;
    const float all = of_four(sum[i], quads[i], r, t, 1);
    if (r >= qn) continue;
    store_half(acc, i, all == 0.f ? 0.f : 1.f / all, out + HEAD_AT(p.out, at.b, at.h) + (q0 + r) * p.out.row, &p, t);
    if (t == 0) store_sums(lse, &p, at.row + r, most[i], all);
  }
}
