// Attention for CPU-like devices, in one pass over the keys (Dao, Fu, Ermon, Rudra, Ré: "FlashAttention: Fast and
// Memory-Efficient Exact Attention with IO-Awareness", 2022; Milakov, Gimelshein: "Online normalizer calculation for
// softmax", 2018). One work-item has a block of bq queries of a head in scratch and goes through the keys in blocks of
// bk, which lie there as columns of a panel, so that vectors are sixteen keys of one query.
#include "attention/cpu_flash.clh"

// A row of scores to exponentials below the new maximum; columns from `seen` on count nothing. Returns the factor by
// which what the row has summed up before must be multiplied.
inline float exponentials(local float* s, int seen, int n, local float* most, local float* sum) {
  for (int j = max(seen, 0); j < ROUND16(n); j++) s[j] = -INFINITY;
  float16 best = vload16(0, s);
  for (int j = 16; j < n; j += 16) {
    const float16 v = vload16(0, s + j);
    best = v > best ? v : best;
  }
  const float next = fmax(*most, max16(best)), base = next == -INFINITY ? 0.f : next;
  const float old = *most == next ? 1.f : exp(*most - base);
  float16 sums = (float16)(0.f);
  for (int j = 0; j < n; j += 16) {
    const float16 e = exp_below16(vload16(0, s + j) - base);
    vstore16(e, 0, s + j);
    sums += e;
  }
  *most = next, *sum = *sum * old + sum16(sums);
  return old;
}

kernel __attribute__((reqd_work_group_size(1, 1, 1))) void attention_cpu_flash(
    global const T* Q, global const T* K, global const T* V, global const T* bias, global T* out, global float* lse,
    AttentionParams p, int bq, int bk, local float* scratch) {
  const QueryBlock at = query_block(&p, K, V, bq);
  const int q0 = at.q0, qn = at.qn;
  const int wide = ROUND16(p.dim), q_pitch = wide + 16, s_pitch = bk + 16;
  local float *sq = scratch, *so = sq + bq * q_pitch, *ss = so + (bq + MR) * wide, *sk = ss + (bq + MR) * s_pitch;
  local float *sv = sk + bk * wide, *most = sv + bk * wide, *sum = most + bq;
  load_rows(Q + HEAD_AT(p.q, at.b, at.h) + q0 * p.q.row, p.q.row, qn, p.dim, p.scale, sq, q_pitch);
  zero(so, (bq + MR) * wide);
  for (int i = 0; i < qn; i++) most[i] = -INFINITY, sum[i] = 0.f;

  const int end = p.causal ? min(p.keys, q0 + qn) : p.keys;
  for (int k0 = 0; k0 < end; k0 += bk) {
    const int kn = min(bk, end - k0);
    load_columns(at.k + k0 * p.k.row, p.k.row, kn, p.dim, sk);
    product(sq, q_pitch, qn, p.dim, sk, kn, ss, s_pitch, 0);
    for (int i = 0; i < qn; i++) {
      local float* s = ss + i * s_pitch;
      if (p.bias_kind)
        add_bias(s, bias, p.bias_kind, at.bias + (q0 + i) * p.bias.row + k0 * p.bias_key, p.bias_key, kn);
      const float old = exponentials(s, p.causal ? min(kn, q0 + i - k0 + 1) : kn, kn, most + i, sum + i);
      if (old != 1.f)
        for (int d = 0; d < wide; d += 16) vstore16(old * vload16(0, so + i * wide + d), 0, so + i * wide + d);
      if (p.keep < 1.f)
        for (int j = 0; j < kn; j += 4) vstore4(vload4(0, s + j) * dropout_factors(&p, at.row + i, k0 + j), 0, s + j);
    }
    load_panels(at.v + k0 * p.v.row, p.v.row, kn, p.dim, sv);
    product(ss, s_pitch, qn, kn, sv, p.dim, so, wide, 1);
  }
  global T* o = out + HEAD_AT(p.out, at.b, at.h) + q0 * p.out.row;
  for (int i = 0; i < qn; i++) {
    store_row(so + i * wide, sum[i] == 0.f ? 0.f : 1.f / sum[i], p.dim, o + i * p.out.row);
    store_sums(lse, &p, at.row + i, most[i], sum[i]);
  }
}
