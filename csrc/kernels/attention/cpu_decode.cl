// Attention of few queries for CPU-like devices, bound by reading keys and values once: nothing is packed. One work-item
// has a part of the keys and all queries of a group of heads; attention/combine.cl puts the parts together.
#include "attention/cpu_flash.clh"

inline float dot_row(global const T* a, local const float* b, int n) {
  float16 sums = (float16)(0.f);
  int d = 0;
  for (; d + 16 <= n; d += 16) sums = fma(load16(a + d), vload16(0, b + d), sums);
  float sum = sum16(sums);
  for (; d < n; d++) sum = fma(load1(a + d), b[d], sum);
  return sum;
}

// to[d] = sum over n rows of factors[r] * v[r][d], vectors of four times 16 at a time.
inline void weighted_rows(global const T* v, long row, int n, int dim, local const float* factors, global float* to) {
  int d = 0;
  for (; d + 64 <= dim; d += 64) {
    float16 c0 = (float16)(0.f), c1 = c0, c2 = c0, c3 = c0;
    for (int r = 0; r < n; r++) {
      const float16 f = (float16)(factors[r]);
      global const T* x = v + r * row + d;
      c0 = fma(f, load16(x), c0), c1 = fma(f, load16(x + 16), c1);
      c2 = fma(f, load16(x + 32), c2), c3 = fma(f, load16(x + 48), c3);
    }
    vstore16(c0, 0, to + d), vstore16(c1, 0, to + d + 16), vstore16(c2, 0, to + d + 32), vstore16(c3, 0, to + d + 48);
  }
  for (; d + 16 <= dim; d += 16) {
    float16 c = (float16)(0.f);
    for (int r = 0; r < n; r++) c = fma((float16)(factors[r]), load16(v + r * row + d), c);
    vstore16(c, 0, to + d);
  }
  for (; d < dim; d++) {
    float c = 0.f;
    for (int r = 0; r < n; r++) c = fma(factors[r], load1(v + r * row + d), c);
    to[d] = c;
  }
}

kernel __attribute__((reqd_work_group_size(1, 1, 1))) void attention_cpu_decode(
    global const T* Q, global const T* K, global const T* V, global const T* bias, global float* partial,
    long partial_offset, AttentionParams p, local float* scratch) {
  const int n = get_global_id(0), kv = get_global_id(1), b = get_global_id(2);
  const int k0 = n * p.part, kn = min(p.part, p.keys - k0), wide = p.dim + 2;
  local float *q = scratch, *s = q + ROUND16(p.dim);
  global const T* k = K + HEAD_AT(p.k, b, kv) + k0 * p.k.row;
  global const T* v = V + HEAD_AT(p.v, b, kv) + k0 * p.v.row;
  for (int h = kv * p.group; h < (kv + 1) * p.group; h++)
    for (int i = 0; i < p.queries; i++) {
      load_rows(Q + HEAD_AT(p.q, b, h) + i * p.q.row, 0, 1, p.dim, p.scale, q, ROUND16(p.dim));
      const int seen = p.causal ? clamp(i + 1 - k0, 0, kn) : kn;
      for (int j = 0; j < seen; j++) s[j] = dot_row(k + j * p.k.row, q, p.dim);
      if (p.bias_kind)
        add_bias(s, bias, p.bias_kind, HEAD_AT(p.bias, b, h) + i * p.bias.row + k0 * p.bias_key, p.bias_key, seen);
      for (int j = seen; j < ROUND16(kn); j++) s[j] = -INFINITY;
      float16 best = vload16(0, s);
      for (int j = 16; j < kn; j += 16) best = fmax(best, vload16(0, s + j));
      const float most = max16(best), base = most == -INFINITY ? 0.f : most;
      float16 sums = (float16)(0.f);
      for (int j = 0; j < kn; j += 16) {
        const float16 e = exp_below16(vload16(0, s + j) - base);
        vstore16(e, 0, s + j);
        sums += e;
      }
      global float* to = partial + partial_offset + ((ROW_AT(p, b, h) + i) * p.parts + n) * wide;
      weighted_rows(v, p.v.row, seen, p.dim, s, to);
      to[p.dim] = most, to[p.dim + 1] = sum16(sums);
    }
}
