// Attention for GPU-class devices, in one pass over the keys as in attention/cpu_flash.cl.
#include "attention/gpu_flash.clh"

// The largest, or the sum, of what the LANES work-items of four rows have of each. All work-items take part.
static inline float4 max_of_lanes(float4 v, local float* scratch, int group, int lane) {
  FOUR(scratch + lane * PITCH(KEPT) + group * 4) = v;
  barrier(CLK_LOCAL_MEM_FENCE);
  for (int l = 0; l < LANES; l++) v = fmax(v, FOUR(scratch + l * PITCH(KEPT) + group * 4));
  return v;
}
static inline float4 sum_of_lanes(float4 v, local float* scratch, int group, int lane) {
  FOUR(scratch + lane * PITCH(KEPT) + group * 4) = v;
  barrier(CLK_LOCAL_MEM_FENCE);
  float4 sum = (float4)(0.f);
  for (int l = 0; l < LANES; l++) sum += FOUR(scratch + l * PITCH(KEPT) + group * 4);
  return sum;
}

// s = the work-item's scores of keys from k0 on, with their bias; -infinity for those that do not count. best: the largest
// of each row.
static inline void take_scores(const Columns found[4], float s[4][SN], float best[4], const AttentionParams* p,
                               global const T* bias, const QueryBlock* at, int k0, int end, int group, int lane) {
#pragma unroll
  for (int i = 0; i < 4; i++) {
    STORE_COLUMNS(found[i], s[i]);
    best[i] = -INFINITY;
#pragma unroll
    for (int n = 0; n < SN; n++) {
      const int query = at->q0 + group * 4 + i, key = k0 + lane * SN + n;
      if (key >= end || query >= p->queries || (p->causal && key > query)) s[i][n] = -INFINITY;
      else if (p->bias_kind) s[i][n] += bias_of(bias, p, at->bias, query, key);
      best[i] = fmax(best[i], s[i][n]);
    }
  }
}

kernel __attribute__((reqd_work_group_size(ITEMS, 1, 1))) void attention_gpu_flash(
    global const T* Q, global const T* K, global const T* V, global const T* bias, global T* out, global float* lse,
    AttentionParams p) {
  LOCAL float queries[KEPT_TILE], rows[STEP_TILE], scores[SCORE_TILE], lanes[LANES * PITCH(KEPT)];
  const int item = get_local_id(0), group = item / LANES, lane = item % LANES;
  const QueryBlock at = query_block(&p, K, V, KEPT);
  const int q0 = at.q0, qn = at.qn;
  load_transposed(Q + HEAD_AT(p.q, at.b, at.h) + q0 * p.q.row, p.q.row, qn, &p, p.scale, queries, KEPT, item);
  float4 acc[4][ON / 4], most = (float4)(-INFINITY), sum = (float4)(0.f);
  clear_rows(acc);

  const int end = p.causal ? min(p.keys, q0 + qn) : p.keys;
  for (int k0 = 0; k0 < end; k0 += STEP) {
    const int kn = min(STEP, end - k0);
    load_transposed(at.k + k0 * p.k.row, p.k.row, kn, &p, 1.f, rows, STEP, item);
    barrier(CLK_LOCAL_MEM_FENCE);
    Columns found[4];
    multiply_scores(found, queries, rows, group, lane);
    float s[4][SN], best[4];
    take_scores(found, s, best, &p, bias, &at, k0, end, group, lane);
    const float4 next = fmax(most, max_of_lanes(vload4(0, best), lanes, group, lane));
    const float4 base4 = select(next, (float4)(0.f), next == -INFINITY), old4 = exp(most - base4);
    float base[4], old[4], sums[4];
    vstore4(base4, 0, base), vstore4(old4, 0, old), vstore4(sum * old4, 0, sums);
    most = next;
#pragma unroll
    for (int i = 0; i < 4; i++) {
#pragma unroll
      for (int n = 0; n < SN; n++) {
        const float e = exp(s[i][n] - base[i]);
        sums[i] += e;
        s[i][n] = p.keep < 1.f ? e * dropout_factor(&p, at.row + group * 4 + i, k0 + lane * SN + n) : e;
      }
#pragma unroll
      for (int j = 0; j < ON / 4; j++) acc[i][j] *= old[i];
    }
    sum = vload4(0, sums);
#pragma unroll
    for (int n = 0; n < SN; n++)
      FOUR(scores + (lane * SN + n) * PITCH(KEPT) + group * 4) = (float4)(s[0][n], s[1][n], s[2][n], s[3][n]);
    load_rows(at.v + k0 * p.v.row, p.v.row, kn, &p, rows, item);
    barrier(CLK_LOCAL_MEM_FENCE);
    multiply_rows(acc, scores, rows, group, lane);
    barrier(CLK_LOCAL_MEM_FENCE);
  }

  float sums[4], mosts[4];
  const float4 all = sum_of_lanes(sum, lanes, group, lane);
  vstore4(all, 0, sums), vstore4(most, 0, mosts);
  global T* o = out + HEAD_AT(p.out, at.b, at.h) + q0 * p.out.row;
#pragma unroll
  for (int i = 0; i < 4; i++) {
    const int r = group * 4 + i;
    if (r >= qn) continue;
    store_part(acc[i], sums[i] == 0.f ? 0.f : 1.f / sums[i], o + r * p.out.row, &p, lane);
    if (lane == 0) store_sums(lse, &p, at.row + r, mosts[i], sums[i]);
  }
}
