// The gradients of attention for CPU-like devices, whose probabilities are made again from the scores and the forward
// pass's log-sum-exp. Two kernels, each with a block of its own results in scratch, so that nothing is added by atomics:
// attention_cpu_dq goes through the keys for a block of queries, attention_cpu_dkv through the queries of a group's
// heads for a block of keys, with scores transposed so that a vector is sixteen queries of one key.
#include "attention/cpu_flash.clh"

kernel __attribute__((reqd_work_group_size(1, 1, 1))) void attention_cpu_dq(
    global const T* Q, global const T* K, global const T* V, global const T* bias, global const T* grad_out,
    global const float* lse, global const float* delta, global T* grad_q, global float* scores, AttentionParams p, int bq,
    int bk, local float* scratch) {
  const int q0 = get_global_id(0) * bq, h = get_global_id(1), b = get_global_id(2), qn = min(bq, p.queries - q0);
  const int wide = ROUND16(p.dim), q_pitch = wide + 16, s_pitch = bk + 16;
  local float *sq = scratch, *sg = sq + bq * q_pitch, *acc = sg + bq * q_pitch, *ss = acc + (bq + MR) * wide;
  local float *sd = ss + (bq + MR) * s_pitch, *panel = sd + (bq + MR) * s_pitch;
  global const T* k = K + HEAD_AT(p.k, b, h / p.group);
  global const T* v = V + HEAD_AT(p.v, b, h / p.group);
  const long row = ROW_AT(p, b, h) + q0;
  load_rows(Q + HEAD_AT(p.q, b, h) + q0 * p.q.row, p.q.row, qn, p.dim, p.scale, sq, q_pitch);
  load_rows(grad_out + HEAD_AT(p.out, b, h) + q0 * p.out.row, p.out.row, qn, p.dim, 1.f, sg, q_pitch);
  zero(acc, (bq + MR) * wide);

  const int end = p.causal ? min(p.keys, q0 + qn) : p.keys;
  for (int k0 = 0; k0 < end; k0 += bk) {
    const int kn = min(bk, end - k0);
    load_columns(k + k0 * p.k.row, p.k.row, kn, p.dim, panel);
    product(sq, q_pitch, qn, p.dim, panel, kn, ss, s_pitch, 0);
    load_columns(v + k0 * p.v.row, p.v.row, kn, p.dim, panel);
    product(sg, q_pitch, qn, p.dim, panel, kn, sd, s_pitch, 0);
    for (int i = 0; i < qn; i++) {
      local float *s = ss + i * s_pitch, *d = sd + i * s_pitch;
      const float base = lse[p.lse + row + i], less = delta[p.delta + row + i];
      if (p.bias_kind)
        add_bias(s, bias, p.bias_kind, HEAD_AT(p.bias, b, h) + (q0 + i) * p.bias.row + k0 * p.bias_key, p.bias_key, kn);
      if (p.keep < 1.f)
        for (int j = 0; j < kn; j += 4) vstore4(vload4(0, d + j) * dropout_factors(&p, row + i, k0 + j), 0, d + j);
      for (int j = 0; j < kn; j += 16)
        vstore16(exp_below(vload16(0, s + j) - base) * (vload16(0, d + j) - less), 0, s + j);
      if (p.causal)
        for (int j = max(q0 + i - k0 + 1, 0); j < kn; j++) s[j] = 0.f;
      if (p.has_scores)
        for (int j = 0; j < kn; j++) scores[p.scores + (row + i) * p.keys + k0 + j] = s[j];
    }
    load_panels(k + k0 * p.k.row, p.k.row, kn, p.dim, panel);
    product(ss, s_pitch, qn, kn, panel, p.dim, acc, wide, 1);
  }
  if (p.has_scores)
    for (int i = 0; i < qn; i++)
      for (int j = max(end, 0); j < p.keys; j++) scores[p.scores + (row + i) * p.keys + j] = 0.f;
  global T* o = grad_q + HEAD_AT(p.grad_q, b, h) + q0 * p.grad_q.row;
  for (int i = 0; i < qn; i++) store_row(acc + i * wide, p.scale, p.dim, o + i * p.grad_q.row);
}

// Probabilities of qn queries and their gradients, for rows of keys from `j` on, at most four: d becomes the scores'
// gradients, s the probabilities that dropout left. `factors` is scratch for four rows.
inline void four_keys(const AttentionParams* p, local float* s, local float* d, int pitch, int rows, int qn,
                      local const float* base, local const float* less, local float* factors, ulong row, int j, int q0) {
  if (p->keep < 1.f)
    for (int i = 0; i < qn; i++) {
      const float4 f = dropout_factors(p, row + i, j);
      factors[i] = f.x, factors[pitch + i] = f.y, factors[2 * pitch + i] = f.z, factors[3 * pitch + i] = f.w;
    }
  for (int r = 0; r < rows; r++, s += pitch, d += pitch, factors += pitch) {
    for (int i = 0; i < qn; i += 16) {
      const float16 prob = exp_below(vload16(0, s + i) - vload16(0, base + i));
      const float16 factor = p->keep < 1.f ? vload16(0, factors + i) : (float16)(1.f);
      vstore16(prob * (vload16(0, d + i) * factor - vload16(0, less + i)), 0, d + i);
      vstore16(prob * factor, 0, s + i);
    }
    if (p->causal)
      for (int i = 0; i < min(j + r - q0, qn); i++) s[i] = d[i] = 0.f;
  }
}

kernel __attribute__((reqd_work_group_size(1, 1, 1))) void attention_cpu_dkv(
    global const T* Q, global const T* K, global const T* V, global const T* bias, global const T* grad_out,
    global const float* lse, global const float* delta, global T* grad_k, global T* grad_v, AttentionParams p, int bq,
    int bk, local float* scratch) {
  const int k0 = get_global_id(0) * bk, kv = get_global_id(1), b = get_global_id(2), kn = min(bk, p.keys - k0);
  const int wide = ROUND16(p.dim), k_pitch = wide + 16, s_pitch = bq + 16;
  local float *sk = scratch, *sv = sk + bk * k_pitch, *dk = sv + bk * k_pitch, *dv = dk + (bk + MR) * wide;
  local float *ss = dv + (bk + MR) * wide, *sd = ss + (bk + MR) * s_pitch, *panel = sd + (bk + MR) * s_pitch;
  local float *base = panel + bq * wide, *less = base + s_pitch, *factors = less + s_pitch;
  load_rows(K + HEAD_AT(p.k, b, kv) + k0 * p.k.row, p.k.row, kn, p.dim, p.scale, sk, k_pitch);
  load_rows(V + HEAD_AT(p.v, b, kv) + k0 * p.v.row, p.v.row, kn, p.dim, 1.f, sv, k_pitch);
  zero(dk, (bk + MR) * wide);
  zero(dv, (bk + MR) * wide);

  for (int h = kv * p.group; h < (kv + 1) * p.group; h++) {
    global const T* q = Q + HEAD_AT(p.q, b, h);
    global const T* g = grad_out + HEAD_AT(p.out, b, h);
    for (int q0 = p.causal ? k0 / bq * bq : 0; q0 < p.queries; q0 += bq) {
      const int qn = min(bq, p.queries - q0);
      const long row = ROW_AT(p, b, h) + q0;
      for (int i = 0; i < ROUND16(qn); i++)
        base[i] = i < qn ? lse[p.lse + row + i] : INFINITY, less[i] = i < qn ? delta[p.delta + row + i] : 0.f;
      load_columns(q + q0 * p.q.row, p.q.row, qn, p.dim, panel);
      product(sk, k_pitch, kn, p.dim, panel, qn, ss, s_pitch, 0);
      load_columns(g + q0 * p.out.row, p.out.row, qn, p.dim, panel);
      product(sv, k_pitch, kn, p.dim, panel, qn, sd, s_pitch, 0);
      for (int j = 0; j < kn; j += 4) {
        const int rows = min(4, kn - j);
        if (p.bias_kind)
          for (int r = j; r < j + rows; r++)
            add_bias(ss + r * s_pitch, bias, p.bias_kind,
                     HEAD_AT(p.bias, b, h) + q0 * p.bias.row + (k0 + r) * p.bias_key, p.bias.row, qn);
        four_keys(&p, ss + j * s_pitch, sd + j * s_pitch, s_pitch, rows, qn, base, less, factors, row, k0 + j, q0);
      }
      load_panels(g + q0 * p.out.row, p.out.row, qn, p.dim, panel);
      product(ss, s_pitch, kn, qn, panel, p.dim, dv, wide, 1);
      load_panels(q + q0 * p.q.row, p.q.row, qn, p.dim, panel);
      product(sd, s_pitch, kn, qn, panel, p.dim, dk, wide, 1);
    }
  }
  global T* to_k = grad_k + HEAD_AT(p.grad_k, b, kv) + k0 * p.grad_k.row;
  global T* to_v = grad_v + HEAD_AT(p.grad_v, b, kv) + k0 * p.grad_v.row;
  for (int j = 0; j < kn; j++) {
    store_row(dk + j * wide, p.scale, p.dim, to_k + j * p.grad_k.row);
    store_row(dv + j * wide, 1.f, p.dim, to_v + j * p.grad_v.row);
  }
}
