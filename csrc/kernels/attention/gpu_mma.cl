// Attention on tensor cores, in one pass over the keys as in attention/cpu_flash.cl.
#include "attention/gpu_mma.clh"

// The largest, or the sum, of what the four work-items of a row have. All work-items take part.
#if MMA == 2
#define QUADS ITEMS
INLINE float of_four(float v, local float* quads, int item, int take_sum) {
  barrier(CLK_LOCAL_MEM_FENCE);
  quads[item] = v;
  barrier(CLK_LOCAL_MEM_FENCE);
  const float4 all = *(local const float4*)(quads + item / 4 * 4);
  return take_sum ? (all.x + all.y) + (all.z + all.w) : fmax(fmax(all.x, all.y), fmax(all.z, all.w));
}
#else
#define QUADS 4
INLINE float of_neighbour(float v, int distance) {
  float other;
  asm volatile("shfl.sync.bfly.b32 %0, %1, %2, 31, -1;" : "=f"(other) : "f"(v), "r"(distance));
  return other;
}
INLINE float of_four(float v, local float* quads, int item, int take_sum) {
#pragma unroll
  for (int distance = 1; distance < 4; distance *= 2) {
    const float other = of_neighbour(v, distance);
    v = take_sum ? v + other : fmax(v, other);
  }
  return v;
}
#endif

// s, the scores of keys from k0 on, become their weights after dropout, relative to the largest score of each row so far,
// `most`, which it brings up to date with what depends on it: acc, the sums of values, and sum, of weights.
INLINE void weigh_scores(float s[TILES][COLUMNS][4], float acc[TILES][DIM / 8][4], float most[TILES][2],
                         float sum[TILES][2], local float* quads, const AttentionParams* p, global const T* bias,
                         const QueryBlock* at, int k0, int end, uint kept, int item) {
  const int lane = item % 32, g = lane / 4, t = lane % 4, first = item / 32 * ROWS;
  // Rows that do not exist have finite scores, and are not stored.
  const bool whole = k0 + STEP <= end && !(p->causal && k0 + STEP > at->q0 + first + 1);
  UNROLL
  for (int m = 0; m < TILES; m++)
#pragma unroll
    for (int i = 0; i < 2; i++) {
      const int query = at->q0 + first + m * 16 + g + 8 * i;
      float best = -INFINITY;
#pragma unroll
      for (int n = 0; n < COLUMNS; n++)
#pragma unroll
        for (int c = 0; c < 2; c++) {
          const int key = k0 + n * 8 + 2 * t + c;
          float x = s[m][n][2 * i + c] * p->scale;
          if (!whole && (key >= end || (p->causal && key > query))) x = -INFINITY;
          else if (BIAS && query < p->queries) x += bias_of(bias, p, at->bias, query, key);
          s[m][n][2 * i + c] = x, best = fmax(best, x);
        }
      const float next = fmax(most[m][i], of_four(best, quads, item, 0));
      const float base = next == -INFINITY ? 0.f : next, old = exp(most[m][i] - base);
      most[m][i] = next, sum[m][i] *= old;
#pragma unroll
      for (int n = 0; n < DIM / 8; n++) acc[m][n][2 * i] *= old, acc[m][n][2 * i + 1] *= old;
#pragma unroll
      for (int n = 0; n < COLUMNS; n++) {
        const float x = exp(s[m][n][2 * i] - base), y = exp(s[m][n][2 * i + 1] - base);
        sum[m][i] += x + y;
        s[m][n][2 * i] = DROPPED(x, kept, *p, m, i, n, 0), s[m][n][2 * i + 1] = DROPPED(y, kept, *p, m, i, n, 1);
      }
    }
}

kernel __attribute__((reqd_work_group_size(ITEMS, 1, 1))) void attention_gpu_mma(
    global const T* Q, global const T* K, global const T* V, global const T* bias, global T* out, global float* lse,
    AttentionParams p) {
  local __attribute__((aligned(16))) uint keys[ROW_TILE], values[PAIR_TILE], scratch[SCRATCH];
  local __attribute__((aligned(16))) float quads[QUADS];
  const int item = get_local_id(0), lane = item % 32, g = lane / 4, t = lane % 4, first = item / 32 * ROWS;
  const QueryBlock at = query_block(&p, K, V, KEPT);
  const int q0 = at.q0, qn = at.qn;
  KeptWord queries[TILES][DEPTH][4];
  load_kept(queries, Q + HEAD_AT(p.q, at.b, at.h) + (q0 + first) * p.q.row, p.q.row, qn - first, &p, lane);
  float acc[TILES][DIM / 8][4], most[TILES][2], sum[TILES][2];
  clear_rows(acc);
#pragma unroll
  for (int i = 0; i < 2 * TILES; i++) most[i / 2][i % 2] = -INFINITY, sum[i / 2][i % 2] = 0.f;

  const int end = p.causal ? min(p.keys, q0 + qn) : p.keys;
  for (int k0 = 0; k0 < end; k0 += STEP) {
    Four next_keys[FETCHES], next_values[FETCHES];
    fetch_rows(next_keys, at.k + k0 * p.k.row, p.k.row, min(STEP, end - k0), &p, item);
    fetch_pairs(next_values, at.v + k0 * p.v.row, p.v.row, min(STEP, end - k0), &p, item);
    store_rows(next_keys, keys, item);
    store_pairs(next_values, values, item);
    barrier(CLK_LOCAL_MEM_FENCE);
    const uint kept = kept_of_queries(&p, at.row + first + g, k0 + 2 * t);
    float s[TILES][COLUMNS][4];
    multiply_scores(s, queries, keys, scratch, item);
    weigh_scores(s, acc, most, sum, quads, &p, bias, &at, k0, end, kept, item);
    multiply_rows(acc, s, values, scratch, item);
    barrier(CLK_LOCAL_MEM_FENCE);
  }

  UNROLL
  for (int m = 0; m < TILES; m++)
#pragma unroll
    for (int i = 0; i < 2; i++) {
      const int r = first + m * 16 + g + 8 * i;
      const float all = of_four(sum[m][i], quads, item, 1);
      if (r >= qn) continue;
      global T* to = out + HEAD_AT(p.out, at.b, at.h) + (q0 + r) * p.out.row;
      store_half(acc[m], i, all == 0.f ? 0.f : 1.f / all, to, &p, t);
      if (t == 0) store_sums(lse, &p, at.row + r, most[m][i], all);
    }
}
