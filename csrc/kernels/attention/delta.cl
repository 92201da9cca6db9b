// delta[b,h,i]: the sum of a row of the result times its gradient, which all scores of the row subtract from their
// gradients. A work-item for each row; in AttentionParams, q is the result. Wants common/gpu_tile.clh.
#include "attention/attention.clh"

kernel void attention_delta(global const T* out, global const T* grad_out, global float* delta, AttentionParams p) {
  const int i = get_global_id(0), h = get_global_id(1), b = get_global_id(2);
  if (i >= p.queries) return;
  global const T* o = out + HEAD_AT(p.q, b, h) + i * p.q.row;
  global const T* g = grad_out + HEAD_AT(p.out, b, h) + i * p.out.row;
  float sum = 0.f;
  for (int d = 0; d < p.dim; d++) sum = fma(load1(o + d), load1(g + d), sum);
  delta[p.delta + ROW_AT(p, b, h) + i] = sum;
}
