// Attention for GPU-class devices, in one pass over the keys as in attention/cpu_flash.cl.
#include "attention/gpu_flash.clh"

// The largest, or the sum, of what the LANES work-items of the same rows have of each. All work-items take part.
static inline void max_of_lanes(float v[ROWS], local float* scratch, int group, int lane) {
#pragma unroll
  for (int i = 0; i < ROWS; i += 4) FOUR(scratch + lane * PITCH(KEPT) + group * ROWS + i) = vload4(0, v + i);
  barrier(CLK_LOCAL_MEM_FENCE);
#pragma unroll
  for (int i = 0; i < ROWS; i += 4) {
    float4 most = vload4(0, v + i);
    for (int l = 0; l < LANES; l++) most = fmax(most, FOUR(scratch + l * PITCH(KEPT) + group * ROWS + i));
    vstore4(most, 0, v + i);
  }
}
static inline void sum_of_lanes(float v[ROWS], local float* scratch, int group, int lane) {
#pragma unroll
  for (int i = 0; i < ROWS; i += 4) FOUR(scratch + lane * PITCH(KEPT) + group * ROWS + i) = vload4(0, v + i);
  barrier(CLK_LOCAL_MEM_FENCE);
#pragma unroll
  for (int i = 0; i < ROWS; i += 4) {
    float4 sum = (float4)(0.f);
    for (int l = 0; l < LANES; l++) sum += FOUR(scratch + l * PITCH(KEPT) + group * ROWS + i);
    vstore4(sum, 0, v + i);
  }
}

kernel __attribute__((reqd_work_group_size(ITEMS, 1, 1))) void attention_gpu(
    global const T* Q, global const T* K, global const T* V, global const T* bias, global T* out, global float* lse,
    AttentionParams p) {
  LOCAL float queries[KEPT_TILE], rows[STEP_TILE], scores[SCORE_TILE], lanes[LANES * PITCH(KEPT)];
  const int item = get_local_id(0), group = item / LANES, lane = item % LANES;
  const QueryBlock at = query_block(&p, K, V, KEPT);
  const int q0 = at.q0, qn = at.qn;
  load_transposed(Q + HEAD_AT(p.q, at.b, at.h) + q0 * p.q.row, p.q.row, qn, &p, p.scale, queries, KEPT, item);
  float4 acc[ROWS][ON / 4];
  float most[ROWS], sum[ROWS];
  clear_rows(acc);
#pragma unroll
  for (int i = 0; i < ROWS; i++) most[i] = -INFINITY, sum[i] = 0.f;

  const int end = p.causal ? min(p.keys, q0 + qn) : p.keys;
  for (int k0 = 0; k0 < end; k0 += STEP) {
    const int kn = min(STEP, end - k0);
    load_transposed(at.k + k0 * p.k.row, p.k.row, kn, &p, 1.f, rows, STEP, item);
    barrier(CLK_LOCAL_MEM_FENCE);
    Columns found[ROWS];
    multiply_scores(found, queries, rows, group, lane);
    float s[ROWS][SN], next[ROWS];
#pragma unroll
    for (int i = 0; i < ROWS; i++) {
      STORE_COLUMNS(found[i], s[i]);
      next[i] = -INFINITY;
#pragma unroll
      for (int n = 0; n < SN; n++) {
        const int query = q0 + group * ROWS + i, key = k0 + lane * SN + n;
        if (key >= end || query >= p.queries || (p.causal && key > query)) s[i][n] = -INFINITY;
        else if (p.bias_kind) s[i][n] += bias_of(bias, &p, at.bias, query, key);
        next[i] = fmax(next[i], s[i][n]);
      }
    }
    max_of_lanes(next, lanes, group, lane);
#pragma unroll
    for (int i = 0; i < ROWS; i++) {
      next[i] = fmax(most[i], next[i]);
      const float base = next[i] == -INFINITY ? 0.f : next[i], old = exp(most[i] - base);
      most[i] = next[i], sum[i] *= old;
#pragma unroll
      for (int n = 0; n < SN; n++) {
        const float e = exp(s[i][n] - base);
        sum[i] += e;
        s[i][n] = p.keep < 1.f ? e * dropout_factor(&p, at.row + group * ROWS + i, k0 + lane * SN + n) : e;
      }
#pragma unroll
      for (int j = 0; j < ON / 4; j++) acc[i][j] *= old;
    }
    store_scores(s, scores, group, lane);
    load_rows(at.v + k0 * p.v.row, p.v.row, kn, &p, rows, item);
    barrier(CLK_LOCAL_MEM_FENCE);
    multiply_rows(acc, scores, rows, group, lane);
    barrier(CLK_LOCAL_MEM_FENCE);
  }

  sum_of_lanes(sum, lanes, group, lane);
  global T* o = out + HEAD_AT(p.out, at.b, at.h) + q0 * p.out.row;
#pragma unroll
  for (int i = 0; i < ROWS; i++) {
    const int r = group * ROWS + i;
    if (r >= qn) continue;
    store_part(acc[i], sum[i] == 0.f ? 0.f : 1.f / sum[i], o + r * p.out.row, &p, lane);
    if (lane == 0) store_sums(lse, &p, at.row + r, most[i], sum[i]);
  }
}
