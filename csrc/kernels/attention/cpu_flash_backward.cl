// The gradients of attention for CPU-like devices, whose probabilities are made again from the scores and the forward
// pass's log-sum-exp. Each kernel has a block of its own results in scratch, so that nothing is added by atomics:
// attention_cpu_flash_dq goes through the keys for a block of queries, attention_cpu_flash_dkv through the queries of a group's
// heads for a block of keys, with scores transposed so that a vector is sixteen queries of one key. attention_cpu_flash_all
// does the work of both.
#include "attention/cpu_flash.clh"

kernel __attribute__((reqd_work_group_size(1, 1, 1))) void attention_cpu_flash_dq(
    global const T* Q, global const T* K, global const T* V, global const T* bias, global const T* grad_out,
    global const float* lse, global const float* delta, global T* grad_q, global float* scores, AttentionParams p,
    int bq, int bk, local float* scratch) {
  const QueryBlock at = query_block(&p, K, V, bq);
  const int q0 = at.q0, qn = at.qn;
  const int wide = ROUND16(p.dim), q_pitch = wide + 16, s_pitch = bk + 16;
  local float *sq = scratch, *sg = sq + bq * q_pitch, *acc = sg + bq * q_pitch, *ss = acc + (bq + MR) * wide;
  local float *sd = ss + (bq + MR) * s_pitch, *panel = sd + (bq + MR) * s_pitch;
  load_rows(Q + HEAD_AT(p.q, at.b, at.h) + q0 * p.q.row, p.q.row, qn, p.dim, p.scale, sq, q_pitch);
  load_rows(grad_out + HEAD_AT(p.out, at.b, at.h) + q0 * p.out.row, p.out.row, qn, p.dim, 1.f, sg, q_pitch);
  zero(acc, (bq + MR) * wide);

  const int end = p.causal ? min(p.keys, q0 + qn) : p.keys;
  for (int k0 = 0; k0 < end; k0 += bk) {
    const int kn = min(bk, end - k0);
    load_columns(at.k + k0 * p.k.row, p.k.row, kn, p.dim, panel);
    product(sq, q_pitch, qn, p.dim, panel, kn, ss, s_pitch, 0);
    load_columns(at.v + k0 * p.v.row, p.v.row, kn, p.dim, panel);
    product(sg, q_pitch, qn, p.dim, panel, kn, sd, s_pitch, 0);
    for (int i = 0; i < qn; i++) {
      local float *s = ss + i * s_pitch, *d = sd + i * s_pitch;
      const float2 base = vload2(at.row + i, lse + p.lse);
      const float less = delta[p.delta + at.row + i];
      if (p.bias_kind)
        add_bias(s, bias, p.bias_kind, at.bias + (q0 + i) * p.bias.row + k0 * p.bias_key, p.bias_key, kn);
      if (p.keep < 1.f)
        for (int j = 0; j < kn; j += 4) vstore4(vload4(0, d + j) * dropout_factors(&p, at.row + i, k0 + j), 0, d + j);
      for (int j = 0; j < kn; j += 16)
        vstore16(exp_below16(vload16(0, s + j) - base.x - base.y) * (vload16(0, d + j) - less), 0, s + j);
      if (p.causal)
        for (int j = max(q0 + i - k0 + 1, 0); j < kn; j++) s[j] = 0.f;
      if (p.has_scores)
        for (int j = 0; j < kn; j++) scores[p.scores + (at.row + i) * p.keys + k0 + j] = s[j];
    }
    load_panels(at.k + k0 * p.k.row, p.k.row, kn, p.dim, panel);
    product(ss, s_pitch, qn, kn, panel, p.dim, acc, wide, 1);
  }
  if (p.has_scores)
    for (int i = 0; i < qn; i++)
      for (int j = max(end, 0); j < p.keys; j++) scores[p.scores + (at.row + i) * p.keys + j] = 0.f;
  global T* o = grad_q + HEAD_AT(p.grad_q, at.b, at.h) + q0 * p.grad_q.row;
  for (int i = 0; i < qn; i++) store_row(acc + i * wide, p.scale, p.dim, o + i * p.grad_q.row);
}

// Probabilities of qn queries and their gradients, for rows of keys from `j` on, at most four: d becomes the scores'
// gradients, s the probabilities that dropout left. `base` is the queries' log-sum-exp, with the rests `pitch` behind;
// `factors` is scratch for four rows.
inline void four_keys(const AttentionParams* p, local float* s, local float* d, int pitch, int rows, int qn,
                      local const float* base, local const float* less, local float* factors, ulong row, int j,
                      int q0) {
  if (p->keep < 1.f)
    for (int i = 0; i < qn; i++) {
      const float4 f = dropout_factors(p, row + i, j);
      factors[i] = f.x, factors[pitch + i] = f.y, factors[2 * pitch + i] = f.z, factors[3 * pitch + i] = f.w;
    }
  for (int r = 0; r < rows; r++, s += pitch, d += pitch, factors += pitch) {
    for (int i = 0; i < qn; i += 16) {
      const float16 prob = exp_below16(vload16(0, s + i) - vload16(0, base + i) - vload16(0, base + pitch + i));
      const float16 factor = p->keep < 1.f ? vload16(0, factors + i) : (float16)(1.f);
      vstore16(prob * (vload16(0, d + i) * factor - vload16(0, less + i)), 0, d + i);
      vstore16(prob * factor, 0, s + i);
    }
    if (p->causal)
      for (int i = 0; i < min(j + r - q0, qn); i++) s[i] = d[i] = 0.f;
  }
}

// Scratch of a block of keys and its gradients, and of what belongs to a block of queries beside it.
typedef struct {
  local float *k, *v, *dk, *dv, *s, *d, *panel, *base, *less, *factors, *end;
  int wide, k_pitch, s_pitch;
} KeyBlock;

inline KeyBlock key_block(const AttentionParams* p, int bq, int bk, local float* scratch) {
  KeyBlock x;
  x.wide = ROUND16(p->dim), x.k_pitch = x.wide + 16, x.s_pitch = bq + 16;
  x.k = scratch, x.v = x.k + bk * x.k_pitch, x.dk = x.v + bk * x.k_pitch, x.dv = x.dk + (bk + MR) * x.wide;
  x.s = x.dv + (bk + MR) * x.wide, x.d = x.s + (bk + MR) * x.s_pitch, x.panel = x.d + (bk + MR) * x.s_pitch;
  x.base = x.panel + bq * x.wide, x.less = x.base + 2 * x.s_pitch, x.factors = x.less + x.s_pitch;
  x.end = x.factors + 4 * x.s_pitch;
  return x;
}

inline void begin_keys(const AttentionParams* p, const KeyBlock* x, global const T* k, global const T* v, int kn,
                       int bk) {
  load_rows(k, p->k.row, kn, p->dim, p->scale, x->k, x->k_pitch);
  load_rows(v, p->v.row, kn, p->dim, 1.f, x->v, x->k_pitch);
  zero(x->dk, (bk + MR) * x->wide);
  zero(x->dv, (bk + MR) * x->wide);
}

// Adds what a block of queries of head h gives to the gradients of kn keys from k0 on; the scores' gradients stay in x->d.
inline void add_queries(const AttentionParams* p, const KeyBlock* x, global const T* Q, global const T* grad_out,
                        global const T* bias, global const float* lse, global const float* delta, int b, int h, int q0,
                        int qn, int k0, int kn) {
  global const T* q = Q + HEAD_AT(p->q, b, h) + q0 * p->q.row;
  global const T* g = grad_out + HEAD_AT(p->out, b, h) + q0 * p->out.row;
  const int pitch = x->s_pitch;
  const long row = ROW_AT(*p, b, h) + q0;
  for (int i = 0; i < ROUND16(qn); i++) {
    x->base[i] = i < qn ? lse[p->lse + 2 * (row + i)] : INFINITY;
    x->base[pitch + i] = i < qn ? lse[p->lse + 2 * (row + i) + 1] : 0.f;
    x->less[i] = i < qn ? delta[p->delta + row + i] : 0.f;
  }
  load_columns(q, p->q.row, qn, p->dim, x->panel);
  product(x->k, x->k_pitch, kn, p->dim, x->panel, qn, x->s, pitch, 0);
  load_columns(g, p->out.row, qn, p->dim, x->panel);
  product(x->v, x->k_pitch, kn, p->dim, x->panel, qn, x->d, pitch, 0);
  for (int j = 0; j < kn; j += 4) {
    const int rows = min(4, kn - j);
    if (p->bias_kind)
      for (int r = j; r < j + rows; r++)
        add_bias(x->s + r * pitch, bias, p->bias_kind,
                 HEAD_AT(p->bias, b, h) + q0 * p->bias.row + (k0 + r) * p->bias_key, p->bias.row, qn);
    four_keys(p, x->s + j * pitch, x->d + j * pitch, pitch, rows, qn, x->base, x->less, x->factors, row, k0 + j, q0);
  }
  load_panels(g, p->out.row, qn, p->dim, x->panel);
  product(x->s, pitch, kn, qn, x->panel, p->dim, x->dv, x->wide, 1);
  load_panels(q, p->q.row, qn, p->dim, x->panel);
  product(x->d, pitch, kn, qn, x->panel, p->dim, x->dk, x->wide, 1);
}

inline void store_keys(const AttentionParams* p, const KeyBlock* x, int kn, global T* to_k, global T* to_v) {
  for (int j = 0; j < kn; j++) {
    store_row(x->dk + j * x->wide, p->scale, p->dim, to_k + j * p->grad_k.row);
    store_row(x->dv + j * x->wide, 1.f, p->dim, to_v + j * p->grad_v.row);
  }
}

kernel __attribute__((reqd_work_group_size(1, 1, 1))) void attention_cpu_flash_dkv(
    global const T* Q, global const T* K, global const T* V, global const T* bias, global const T* grad_out,
    global const float* lse, global const float* delta, global T* grad_k, global T* grad_v, AttentionParams p, int bq,
    int bk, local float* scratch) {
  const int k0 = get_global_id(0) * bk, kv = get_global_id(1), b = get_global_id(2), kn = min(bk, p.keys - k0);
  const KeyBlock x = key_block(&p, bq, bk, scratch);
  begin_keys(&p, &x, K + HEAD_AT(p.k, b, kv) + k0 * p.k.row, V + HEAD_AT(p.v, b, kv) + k0 * p.v.row, kn, bk);
  for (int h = kv * p.group; h < (kv + 1) * p.group; h++)
    for (int q0 = p.causal ? k0 / bq * bq : 0; q0 < p.queries; q0 += bq)
      add_queries(&p, &x, Q, grad_out, bias, lse, delta, b, h, q0, min(bq, p.queries - q0), k0, kn);
  store_keys(&p, &x, kn, grad_k + HEAD_AT(p.grad_k, b, kv) + k0 * p.grad_k.row,
             grad_v + HEAD_AT(p.grad_v, b, kv) + k0 * p.grad_v.row);
}

// All three gradients of a group of heads by one work-item, which has every score once: five products in place of the
// two kernels' seven, where there are heads enough for all cores. Queries' gradients are summed up in `sums`, float
// [batch, heads, queries, dim in multiples of 16], in the order of the keys.
kernel __attribute__((reqd_work_group_size(1, 1, 1))) void attention_cpu_flash_all(
    global const T* Q, global const T* K, global const T* V, global const T* bias, global const T* grad_out,
    global const float* lse, global const float* delta, global T* grad_q, global T* grad_k, global T* grad_v,
    global float* sums, long sums_offset, AttentionParams p, int bq, int bk, local float* scratch) {
  const int kv = get_global_id(0), b = get_global_id(1);
  const KeyBlock x = key_block(&p, bq, bk, scratch);
  local float *columns = x.end, *dq = columns + bk * x.wide;
  for (int k0 = 0; k0 < p.keys; k0 += bk) {
    const int kn = min(bk, p.keys - k0);
    global const T* k = K + HEAD_AT(p.k, b, kv) + k0 * p.k.row;
    begin_keys(&p, &x, k, V + HEAD_AT(p.v, b, kv) + k0 * p.v.row, kn, bk);
    load_panels(k, p.k.row, kn, p.dim, columns);
    for (int h = kv * p.group; h < (kv + 1) * p.group; h++)
      for (int q0 = p.causal ? k0 / bq * bq : 0; q0 < p.queries; q0 += bq) {
        const int qn = min(bq, p.queries - q0);
        add_queries(&p, &x, Q, grad_out, bias, lse, delta, b, h, q0, qn, k0, kn);
        product_transposed(x.d, x.s_pitch, qn, kn, columns, p.dim, dq, x.wide);
        global float* to = sums + sums_offset + (ROW_AT(p, b, h) + q0) * x.wide;
        for (int i = 0; i < qn * x.wide; i += 16)
          vstore16(k0 == 0 ? vload16(0, dq + i) : vload16(0, to + i) + vload16(0, dq + i), 0, to + i);
      }
    store_keys(&p, &x, kn, grad_k + HEAD_AT(p.grad_k, b, kv) + k0 * p.grad_k.row,
               grad_v + HEAD_AT(p.grad_v, b, kv) + k0 * p.grad_v.row);
  }
  for (int h = kv * p.group; h < (kv + 1) * p.group; h++)
    for (int i = 0; i < p.queries; i++) {
      global const float* from = sums + sums_offset + (ROW_AT(p, b, h) + i) * x.wide;
      for (int d = 0; d < x.wide; d += 16) vstore16(vload16(0, from + d), 0, dq + d);
      store_row(dq, p.scale, p.dim, grad_q + HEAD_AT(p.grad_q, b, h) + i * p.grad_q.row);
    }
}
