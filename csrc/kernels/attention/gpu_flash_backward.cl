// clang-format off
// The gradients of attention for GPU-class devices: attention_gpu_flash_dq keeps queries, attention_gpu_flash_dkv keys, so that each
// sums up its own results in a fixed order.
#include "attention/gpu_flash.clh"

kernel __attribute__((reqd_work_group_size(ITEMS, 1, 1))) void attention_gpu_flash_dq(
    global const T* Q, global const T* K, global const T* V, global const T* bias, global const T* grad_out,
    global const float* lse, global const float* delta, global T* grad_q, global float* scores_grad, AttentionParams p) {
  LOCAL float queries[KEPT_TILE], grads[KEPT_TILE], rows[STEP_TILE], scores[SCORE_TILE];
  const int item = get_local_id(0), group = item / LANES, lane = item % LANES;
  const QueryBlock at = query_block(&p, K, V, KEPT);
  const int q0 = at.q0, qn = at.qn;
  load_transposed(Q + HEAD_AT(p.q, at.b, at.h) + q0 * p.q.row, p.q.row, qn, &p, p.scale, queries, KEPT, item);
  load_transposed(grad_out + HEAD_AT(p.out, at.b, at.h) + q0 * p.out.row, p.out.row, qn, &p, 1.f, grads, KEPT, item);
  float4 acc[4][ON / 4];
  clear_rows(acc);
  float base[4], rest[4], less[4];
#pragma unroll
  for (int i = 0; i < 4; i++) {
    const int r = group * 4 + i;
    base[i] = r < qn ? lse[p.lse + 2 * (at.row + r)] : INFINITY, rest[i] = r < qn ? lse[p.lse + 2 * (at.row + r) + 1] : 0.f;
    less[i] = r < qn ? delta[p.delta + at.row + r] : 0.f;
  }

  const int end = p.causal ? min(p.keys, q0 + qn) : p.keys;
  for (int k0 = 0; k0 < (p.has_scores ? p.keys : end); k0 += STEP) {
    const int kn = min(STEP, p.keys - k0);
    load_transposed(at.k + k0 * p.k.row, p.k.row, kn, &p, 1.f, rows, STEP, item);
    barrier(CLK_LOCAL_MEM_FENCE);
    Columns found[4], found_grads[4];
    multiply_scores(found, queries, rows, group, lane);
    barrier(CLK_LOCAL_MEM_FENCE);
    load_transposed(at.v + k0 * p.v.row, p.v.row, kn, &p, 1.f, rows, STEP, item);
    barrier(CLK_LOCAL_MEM_FENCE);
    multiply_scores(found_grads, grads, rows, group, lane);
    float s[4][SN], d[4][SN];
#pragma unroll
    for (int i = 0; i < 4; i++) {
      STORE_COLUMNS(found[i], s[i]);
      STORE_COLUMNS(found_grads[i], d[i]);
#pragma unroll
      for (int n = 0; n < SN; n++) {
        const int query = q0 + group * 4 + i, key = k0 + lane * SN + n;
        const bool seen = key < p.keys && query < p.queries;
        if (seen && p.bias_kind) s[i][n] += bias_of(bias, &p, at.bias, query, key);
        if (p.keep < 1.f) d[i][n] *= dropout_factor(&p, at.row + group * 4 + i, key);
        s[i][n] = seen && !(p.causal && key > query) ? exp(s[i][n] - base[i] - rest[i]) * (d[i][n] - less[i]) : 0.f;
        if (p.has_scores && seen) scores_grad[p.scores + (at.row + group * 4 + i) * p.keys + key] = s[i][n];
      }
    }
#pragma unroll
    for (int n = 0; n < SN; n++)
      FOUR(scores + (lane * SN + n) * PITCH(KEPT) + group * 4) = (float4)(s[0][n], s[1][n], s[2][n], s[3][n]);
    barrier(CLK_LOCAL_MEM_FENCE);
    load_rows(at.k + k0 * p.k.row, p.k.row, kn, &p, rows, item);
    barrier(CLK_LOCAL_MEM_FENCE);
    multiply_rows(acc, scores, rows, group, lane);
    barrier(CLK_LOCAL_MEM_FENCE);
  }
  global T* o = grad_q + HEAD_AT(p.grad_q, at.b, at.h) + q0 * p.grad_q.row;
#pragma unroll
  for (int i = 0; i < 4; i++)
    if (group * 4 + i < qn) store_part(acc[i], p.scale, o + (group * 4 + i) * p.grad_q.row, &p, lane);
}

// Writes [query][key], transposed as multiply_rows() takes them: to probs the probabilities that the work-item's scores of
// queries from q0 on stand for, after dropout, and to scores the gradients of the scores, from those of the
// probabilities. `row` is where the queries' sums are.
static inline void store_gradients(const Columns found[4], const Columns found_grads[4], local float* probs,
                                   local float* scores, const AttentionParams* p, global const T* bias, long bias_head,
                                   global const float* lse, global const float* delta, long row, int q0, int k0,
                                   int group, int lane) {
  const int qn = min(STEP, p->queries - q0);
  float s[4][SN], d[4][SN];
#pragma unroll
  for (int i = 0; i < 4; i++) {
    STORE_COLUMNS(found[i], s[i]);
    STORE_COLUMNS(found_grads[i], d[i]);
  }
#pragma unroll
  for (int n = 0; n < SN; n++) {
    const int r = lane * SN + n, query = q0 + r;
    const float2 base = r < qn ? vload2(row + r, lse + p->lse) : (float2)(INFINITY, 0.f);
    const float less = r < qn ? delta[p->delta + row + r] : 0.f;
    float factors[4] = {1.f, 1.f, 1.f, 1.f};
    if (p->keep < 1.f) vstore4(dropout_factors(p, row + r, k0 + group * 4), 0, factors);
#pragma unroll
    for (int i = 0; i < 4; i++) {
      const int key = k0 + group * 4 + i;
      const bool seen = key < p->keys && r < qn && !(p->causal && key > query);
      if (seen && p->bias_kind) s[i][n] += bias_of(bias, p, bias_head, query, key);
      const float prob = seen ? exp(s[i][n] - base.x - base.y) : 0.f;
      s[i][n] = prob * factors[i], d[i][n] = seen ? prob * (d[i][n] * factors[i] - less) : 0.f;
    }
    FOUR(probs + r * PITCH(KEPT) + group * 4) = (float4)(s[0][n], s[1][n], s[2][n], s[3][n]);
    FOUR(scores + r * PITCH(KEPT) + group * 4) = (float4)(d[0][n], d[1][n], d[2][n], d[3][n]);
  }
}

kernel __attribute__((reqd_work_group_size(ITEMS, 1, 1))) void attention_gpu_flash_dkv(
    global const T* Q, global const T* K, global const T* V, global const T* bias, global const T* grad_out,
    global const float* lse, global const float* delta, global T* grad_k, global T* grad_v, AttentionParams p) {
  LOCAL float keys[KEPT_TILE], values[KEPT_TILE], rows[STEP_TILE], probs[SCORE_TILE], scores[SCORE_TILE];
  const int item = get_local_id(0), group = item / LANES, lane = item % LANES;
  const int k0 = get_group_id(0) * KEPT, kv = get_group_id(1), b = get_group_id(2), kn = min(KEPT, p.keys - k0);
  load_transposed(K + HEAD_AT(p.k, b, kv) + k0 * p.k.row, p.k.row, kn, &p, p.scale, keys, KEPT, item);
  load_transposed(V + HEAD_AT(p.v, b, kv) + k0 * p.v.row, p.v.row, kn, &p, 1.f, values, KEPT, item);
  float4 dk[4][ON / 4], dv[4][ON / 4];
  clear_rows(dk);
  clear_rows(dv);

  for (int h = kv * p.group; h < (kv + 1) * p.group; h++) {
    global const T* q = Q + HEAD_AT(p.q, b, h);
    global const T* g = grad_out + HEAD_AT(p.out, b, h);
    const long bias_head = HEAD_AT(p.bias, b, h);
    for (int q0 = p.causal ? k0 / STEP * STEP : 0; q0 < p.queries; q0 += STEP) {
      const int qn = min(STEP, p.queries - q0);
      const long row = ROW_AT(p, b, h) + q0;
      load_transposed(q + q0 * p.q.row, p.q.row, qn, &p, 1.f, rows, STEP, item);
      barrier(CLK_LOCAL_MEM_FENCE);
      Columns found[4], found_grads[4];
      multiply_scores(found, keys, rows, group, lane);
      barrier(CLK_LOCAL_MEM_FENCE);
      load_transposed(g + q0 * p.out.row, p.out.row, qn, &p, 1.f, rows, STEP, item);
      barrier(CLK_LOCAL_MEM_FENCE);
      multiply_scores(found_grads, values, rows, group, lane);
      store_gradients(found, found_grads, probs, scores, &p, bias, bias_head, lse, delta, row, q0, k0, group, lane);
      barrier(CLK_LOCAL_MEM_FENCE);
      load_rows(g + q0 * p.out.row, p.out.row, qn, &p, rows, item);
      barrier(CLK_LOCAL_MEM_FENCE);
      multiply_rows(dv, probs, rows, group, lane);
      barrier(CLK_LOCAL_MEM_FENCE);
      load_rows(q + q0 * p.q.row, p.q.row, qn, &p, rows, item);
      barrier(CLK_LOCAL_MEM_FENCE);
      multiply_rows(dk, scores, rows, group, lane);
      barrier(CLK_LOCAL_MEM_FENCE);
    }
  }
  global T* to_k = grad_k + HEAD_AT(p.grad_k, b, kv) + k0 * p.grad_k.row;
  global T* to_v = grad_v + HEAD_AT(p.grad_v, b, kv) + k0 * p.grad_v.row;
#pragma unroll
  for (int i = 0; i < 4; i++) {
    const int r = group * 4 + i;
    if (r >= kn) continue;
    store_part(dk[i], p.scale, to_k + r * p.grad_k.row, &p, lane);
    store_part(dv[i], 1.f, to_v + r * p.grad_v.row, &p, lane);
  }
}
