// The gradients of attention on tensor cores, divided as in attention/gpu_flash_backward.cl.
#include "attention/gpu_mma.clh"

// Whether a step's rows are read from memory during the step before. Steps of float32 are short, so that they fit the
// registers beside the rest; on an H100 heads of 64 take 2.8 ms with it and 3.1 without.
#if defined(T_FLOAT)
#define AHEAD 1
#else
#define AHEAD 0
#endif

// s, a work-item's scores of keys from k0 on, become the scores' gradients, from d, those of the probabilities. base,
// less: of each row, the largest score and the logarithm of the sum, and the row's delta. kept: as of kept_of_queries().
INLINE void query_gradients(float s[TILES][COLUMNS][4], const float d[TILES][COLUMNS][4], const float2 base[TILES][2],
                            const float less[TILES][2], const AttentionParams* p, global const T* bias,
                            global float* scores_grad, const QueryBlock* at, int k0, uint kept, int item) {
  const int lane = item % 32, g = lane / 4, t = lane % 4, first = item / 32 * ROWS;
  const bool whole = p->keys - k0 >= STEP && !(p->causal && k0 + STEP > at->q0 + first + 1);
  UNROLL
  for (int m = 0; m < TILES; m++)
#pragma unroll
    for (int i = 0; i < 2; i++)
#pragma unroll
      for (int n = 0; n < COLUMNS; n++) {
        const int r = first + m * 16 + g + 8 * i, query = at->q0 + r;
#pragma unroll
        for (int c = 0; c < 2; c++) {
          const int key = k0 + n * 8 + 2 * t + c;
          const bool exists = key < p->keys && query < p->queries;
          float x = s[m][n][2 * i + c] * p->scale;
          if (BIAS && exists) x += bias_of(bias, p, at->bias, query, key);
          const float gradient = DROPPED(d[m][n][2 * i + c], kept, *p, m, i, n, c) - less[m][i];
          x = whole || (exists && !(p->causal && key > query)) ? exp(x - base[m][i].x - base[m][i].y) * gradient : 0.f;
          if (p->has_scores && exists) scores_grad[p->scores + (at->row + r) * p->keys + key] = x;
          s[m][n][2 * i + c] = x;
        }
      }
}

kernel __attribute__((reqd_work_group_size(ITEMS, 1, 1))) void attention_gpu_mma_dq(
    global const T* Q, global const T* K, global const T* V, global const T* bias, global const T* grad_out,
    global const float* lse, global const float* delta, global T* grad_q, global float* scores_grad,
    AttentionParams p) {
  local __attribute__((aligned(16))) uint keys[ROW_TILE], values[ROW_TILE];
  LOCAL_PAIRS(key_pairs, keys);
  local uint scratch[SCRATCH];
  const int item = get_local_id(0), lane = item % 32, g = lane / 4, t = lane % 4, first = item / 32 * ROWS;
  const QueryBlock at = query_block(&p, K, V, KEPT);
  const int q0 = at.q0, qn = at.qn;
  KeptWord queries[TILES][DEPTH][4], grads[TILES][DEPTH][4];
  load_kept(queries, Q + HEAD_AT(p.q, at.b, at.h) + (q0 + first) * p.q.row, p.q.row, qn - first, &p, lane);
  load_kept(grads, grad_out + HEAD_AT(p.out, at.b, at.h) + (q0 + first) * p.out.row, p.out.row, qn - first, &p, lane);
  float acc[TILES][DIM / 8][4], less[TILES][2];
  float2 base[TILES][2];
  clear_rows(acc);
#pragma unroll
  for (int m = 0; m < TILES; m++)
#pragma unroll
    for (int i = 0; i < 2; i++) {
      const int r = first + m * 16 + g + 8 * i;
      base[m][i] = r < qn ? vload2(at.row + r, lse + p.lse) : (float2)(INFINITY, 0.f);
      less[m][i] = r < qn ? delta[p.delta + at.row + r] : 0.f;
    }

  const int end = p.causal && !p.has_scores ? min(p.keys, q0 + qn) : p.keys;
  Four next_keys[FETCHES], next_values[FETCHES];
  for (int k0 = 0; k0 < end; k0 += STEP) {
    const int kn = min(STEP, p.keys - k0);
    if (!AHEAD || k0 == 0) {
      fetch_rows(next_keys, at.k + k0 * p.k.row, p.k.row, kn, &p, item);
      fetch_rows(next_values, at.v + k0 * p.v.row, p.v.row, kn, &p, item);
    }
    store_rows(next_keys, keys, item);
    store_rows(next_values, values, item);
    load_pairs_too(at.k + k0 * p.k.row, p.k.row, kn, &p, key_pairs, item);
    barrier(CLK_LOCAL_MEM_FENCE);
    if (AHEAD && k0 + STEP < end) {
      const int k1 = k0 + STEP;
      fetch_rows(next_keys, at.k + k1 * p.k.row, p.k.row, min(STEP, p.keys - k1), &p, item);
      fetch_rows(next_values, at.v + k1 * p.v.row, p.v.row, min(STEP, p.keys - k1), &p, item);
    }
    const uint kept = kept_of_queries(&p, at.row + first + g, k0 + 2 * t);
    float s[TILES][COLUMNS][4], d[TILES][COLUMNS][4];
    multiply_scores(s, queries, keys, scratch, item);
    multiply_scores(d, grads, values, scratch, item);
    query_gradients(s, d, base, less, &p, bias, scores_grad, &at, k0, kept, item);
    multiply_rows(acc, s, key_pairs, scratch, item);
    barrier(CLK_LOCAL_MEM_FENCE);
  }
  global T* to = grad_q + HEAD_AT(p.grad_q, at.b, at.h) + (q0 + first) * p.grad_q.row;
  store_kept(acc, p.scale, to, p.grad_q.row, qn - first, &p, lane);
}

kernel __attribute__((reqd_work_group_size(ITEMS, 1, 1))) void attention_gpu_mma_dkv(
    global const T* Q, global const T* K, global const T* V, global const T* bias, global const T* grad_out,
    global const float* lse, global const float* delta, global T* grad_k, global T* grad_v, AttentionParams p) {
  local __attribute__((aligned(16))) uint queries[ROW_TILE], grads[ROW_TILE];
  LOCAL_PAIRS(query_pairs, queries);
  LOCAL_PAIRS(grad_pairs, grads);
  local uint scratch[SCRATCH];
  local float2 bases[STEP];
  local float deltas[STEP];
  const int item = get_local_id(0), lane = item % 32, g = lane / 4, t = lane % 4, first = item / 32 * ROWS;
  const int k0 = get_group_id(0) * KEPT, kv = get_group_id(1), b = get_group_id(2), kn = min(KEPT, p.keys - k0);
  KeptWord keys[TILES][DEPTH][4], values[TILES][DEPTH][4];
  load_kept(keys, K + HEAD_AT(p.k, b, kv) + (k0 + first) * p.k.row, p.k.row, kn - first, &p, lane);
  load_kept(values, V + HEAD_AT(p.v, b, kv) + (k0 + first) * p.v.row, p.v.row, kn - first, &p, lane);
  float dk[TILES][DIM / 8][4], dv[TILES][DIM / 8][4];
  clear_rows(dk);
  clear_rows(dv);
  Four next_queries[FETCHES], next_grads[FETCHES];

  for (int h = kv * p.group; h < (kv + 1) * p.group; h++) {
    global const T* q = Q + HEAD_AT(p.q, b, h);
    global const T* go = grad_out + HEAD_AT(p.out, b, h);
    const long bias_head = HEAD_AT(p.bias, b, h);
    const int from = p.causal ? k0 / STEP * STEP : 0;
    for (int q0 = from; q0 < p.queries; q0 += STEP) {
      const int qn = min(STEP, p.queries - q0);
      const long row = ROW_AT(p, b, h) + q0;
      const bool whole = qn == STEP && !(p.causal && q0 < k0 + first + ROWS - 1);
      if (!AHEAD || q0 == from) {
        fetch_rows(next_queries, q + q0 * p.q.row, p.q.row, qn, &p, item);
        fetch_rows(next_grads, go + q0 * p.out.row, p.out.row, qn, &p, item);
      }
      if (item < STEP) {
        bases[item] = item < qn ? vload2(row + item, lse + p.lse) : (float2)(INFINITY, 0.f);
        deltas[item] = item < qn ? delta[p.delta + row + item] : 0.f;
      }
      store_rows(next_queries, queries, item);
      store_rows(next_grads, grads, item);
      load_pairs_too(q + q0 * p.q.row, p.q.row, qn, &p, query_pairs, item);
      load_pairs_too(go + q0 * p.out.row, p.out.row, qn, &p, grad_pairs, item);
      barrier(CLK_LOCAL_MEM_FENCE);
      if (AHEAD && q0 + STEP < p.queries) {
        const int q1 = q0 + STEP;
        fetch_rows(next_queries, q + q1 * p.q.row, p.q.row, min(STEP, p.queries - q1), &p, item);
        fetch_rows(next_grads, go + q1 * p.out.row, p.out.row, min(STEP, p.queries - q1), &p, item);
      }
      const uint kept = kept_of_keys(&p, row + 2 * t, k0 + first + g);
      float s[TILES][COLUMNS][4], d[TILES][COLUMNS][4];
      multiply_scores(s, keys, queries, scratch, item);
      multiply_scores(d, values, grads, scratch, item);
#pragma unroll
      for (int n = 0; n < COLUMNS; n++)
#pragma unroll
        for (int c = 0; c < 2; c++) {
          const int r = n * 8 + 2 * t + c, query = q0 + r;
          const float2 base = bases[r];
          const float less = deltas[r];
#pragma unroll
          for (int m = 0; m < TILES; m++)
#pragma unroll
            for (int i = 0; i < 2; i++) {
              const int key = k0 + first + m * 16 + g + 8 * i;
              const bool seen = (whole || (r < qn && !(p.causal && key > query))) && (!BIAS || key < p.keys);
              float x = s[m][n][2 * i + c] * p.scale;
              if (BIAS && seen) x += bias_of(bias, &p, bias_head, query, key);
              const float prob = seen ? exp(x - base.x - base.y) : 0.f;
              const float gradient = DROPPED(d[m][n][2 * i + c], kept, p, m, i, n, c);
              s[m][n][2 * i + c] = DROPPED(prob, kept, p, m, i, n, c);
              d[m][n][2 * i + c] = seen ? prob * (gradient - less) : 0.f;
            }
        }
      multiply_rows(dv, s, grad_pairs, scratch, item);
      multiply_rows(dk, d, query_pairs, scratch, item);
      barrier(CLK_LOCAL_MEM_FENCE);
    }
  }
#pragma unroll
  for (int m = 0; m < TILES; m++)
#pragma unroll
    for (int i = 0; i < 2; i++) {
      const int r = first + m * 16 + g + 8 * i;
      if (r >= kn) continue;
      store_half(dk[m], i, p.scale, grad_k + HEAD_AT(p.grad_k, b, kv) + (k0 + r) * p.grad_k.row, &p, t);
      store_half(dv[m], i, 1.f, grad_v + HEAD_AT(p.grad_v, b, kv) + (k0 + r) * p.grad_v.row, &p, t);
    }
}
