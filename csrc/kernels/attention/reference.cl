// The plainest attention, which the other kernels are checked against: a work-item for each row of a result, every
// score computed where it is needed. Wants common/gpu_tile.clh for load1() and store1().
#include "attention/attention.clh"

inline float bias_at(global const T* bias, const AttentionParams* p, int b, int h, int i, int j) {
  if (p->bias_kind == ATTENTION_NO_BIAS) return 0.f;
  const long at = HEAD_AT(p->bias, b, h) + i * p->bias.row + j * p->bias_key;
  return p->bias_kind == ATTENTION_FLOAT_BIAS ? ((global const float*)bias)[at] : load1(bias + at);
}

inline float dot_rows(global const T* a, global const T* b, int n) {
  float4 sums = (float4)(0.f);
  int d = 0;
  for (; d + 4 <= n; d += 4)
    sums = fma((float4)(load1(a + d), load1(a + d + 1), load1(a + d + 2), load1(a + d + 3)),
               (float4)(load1(b + d), load1(b + d + 1), load1(b + d + 2), load1(b + d + 3)), sums);
  for (; d < n; d++) sums.x = fma(load1(a + d), load1(b + d), sums.x);
  return (sums.x + sums.y) + (sums.z + sums.w);
}

kernel void attention_reference(global const T* Q, global const T* K, global const T* V, global const T* bias,
                                global T* out, global float* lse, AttentionParams p) {
  const int i = get_global_id(0), h = get_global_id(1), b = get_global_id(2);
  if (i >= p.queries) return;
  global const T* q = Q + HEAD_AT(p.q, b, h) + i * p.q.row;
  global const T* k = K + HEAD_AT(p.k, b, h / p.group);
  global const T* v = V + HEAD_AT(p.v, b, h / p.group);
  const ulong row = ROW_AT(p, b, h) + i;
  float most = -INFINITY, sum = 0.f, acc[ATTENTION_MOST_DIM];
  for (int d = 0; d < p.dim; d++) acc[d] = 0.f;
  const int seen = p.causal ? min(p.keys, i + 1) : p.keys;
  for (int j = 0; j < seen; j++) {
    const float s = p.scale * dot_rows(q, k + j * p.k.row, p.dim) + bias_at(bias, &p, b, h, i, j);
    const float next = fmax(most, s), base = next == -INFINITY ? 0.f : next;
    const float old = exp(most - base);
    float e = exp(s - base);
    most = next, sum = sum * old + e;
    if (p.keep < 1.f) e *= dropout_factor(&p, row, j);
    for (int d = 0; d < p.dim; d++) acc[d] = acc[d] * old + e * load1(v + j * p.v.row + d);
  }
  global T* o = out + HEAD_AT(p.out, b, h) + i * p.out.row;
  for (int d = 0; d < p.dim; d++) store1(o + d, sum == 0.f ? 0.f : acc[d] / sum);
  store_sums(lse, &p, row, most, sum);
}

// The probability that the forward pass gave a score of a row.
inline float probability(float s, global const float* lse, const AttentionParams* p, ulong row) {
  return exp(s - lse[p->lse + 2 * row] - lse[p->lse + 2 * row + 1]);
}

// The gradient of one score.
inline float score_grad(float prob, float grad_prob, float factor, float delta) {
  return prob * (grad_prob * factor - delta);
}

kernel void attention_reference_dq(global const T* Q, global const T* K, global const T* V, global const T* bias,
                                   global const T* grad_out, global const float* lse, global const float* delta,
                                   global T* grad_q, global float* scores, AttentionParams p) {
  const int i = get_global_id(0), h = get_global_id(1), b = get_global_id(2);
  if (i >= p.queries) return;
  global const T* q = Q + HEAD_AT(p.q, b, h) + i * p.q.row;
  global const T* g = grad_out + HEAD_AT(p.out, b, h) + i * p.out.row;
  global const T* k = K + HEAD_AT(p.k, b, h / p.group);
  global const T* v = V + HEAD_AT(p.v, b, h / p.group);
  const ulong row = ROW_AT(p, b, h) + i;
  float acc[ATTENTION_MOST_DIM];
  for (int d = 0; d < p.dim; d++) acc[d] = 0.f;
  for (int j = 0; j < p.keys; j++) {
    float ds = 0.f;
    if (!p.causal || j <= i) {
      const float s = p.scale * dot_rows(q, k + j * p.k.row, p.dim) + bias_at(bias, &p, b, h, i, j);
      const float factor = p.keep < 1.f ? dropout_factor(&p, row, j) : 1.f;
      const float grad_prob = dot_rows(g, v + j * p.v.row, p.dim);
      ds = score_grad(probability(s, lse, &p, row), grad_prob, factor, delta[p.delta + row]);
      for (int d = 0; d < p.dim; d++) acc[d] = fma(ds, load1(k + j * p.k.row + d), acc[d]);
    }
    if (p.has_scores) scores[p.scores + row * p.keys + j] = ds;
  }
  global T* o = grad_q + HEAD_AT(p.grad_q, b, h) + i * p.grad_q.row;
  for (int d = 0; d < p.dim; d++) store1(o + d, p.scale * acc[d]);
}

kernel void attention_reference_dkv(global const T* Q, global const T* K, global const T* V, global const T* bias,
                                    global const T* grad_out, global const float* lse, global const float* delta,
                                    global T* grad_k, global T* grad_v, AttentionParams p) {
  const int j = get_global_id(0), kv = get_global_id(1), b = get_global_id(2);
  if (j >= p.keys) return;
  global const T* k = K + HEAD_AT(p.k, b, kv) + j * p.k.row;
  global const T* v = V + HEAD_AT(p.v, b, kv) + j * p.v.row;
  float dk[ATTENTION_MOST_DIM], dv[ATTENTION_MOST_DIM];
  for (int d = 0; d < p.dim; d++) dk[d] = dv[d] = 0.f;
  for (int h = kv * p.group; h < (kv + 1) * p.group; h++)
    for (int i = p.causal ? j : 0; i < p.queries; i++) {
      global const T* q = Q + HEAD_AT(p.q, b, h) + i * p.q.row;
      global const T* g = grad_out + HEAD_AT(p.out, b, h) + i * p.out.row;
      const ulong row = ROW_AT(p, b, h) + i;
      const float s = p.scale * dot_rows(q, k, p.dim) + bias_at(bias, &p, b, h, i, j);
      const float factor = p.keep < 1.f ? dropout_factor(&p, row, j) : 1.f, prob = probability(s, lse, &p, row);
      const float ds = score_grad(prob, dot_rows(g, v, p.dim), factor, delta[p.delta + row]);
      for (int d = 0; d < p.dim; d++) {
        dk[d] = fma(ds, load1(q + d), dk[d]);
        dv[d] = fma(prob * factor, load1(g + d), dv[d]);
      }
    }
  global T* to_k = grad_k + HEAD_AT(p.grad_k, b, kv) + j * p.grad_k.row;
  global T* to_v = grad_v + HEAD_AT(p.grad_v, b, kv) + j * p.grad_v.row;
  for (int d = 0; d < p.dim; d++) store1(to_k + d, p.scale * dk[d]), store1(to_v + d, dv[d]);
}
