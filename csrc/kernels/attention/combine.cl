// Puts together the parts of attention/cpu_decode.cl and gpu_decode.cl, in their order: for each row and part the sums of
// values, the largest score and the sum of exponentials below it. A work-group for each row. Wants common/gpu_tile.clh.
#include "attention/attention.clh"

kernel void attention_combine(global const float* partial, long partial_offset, global T* out, global float* lse,
                              AttentionParams p) {
  const int i = get_group_id(0), h = get_group_id(1), b = get_group_id(2), wide = p.dim + 2;
  const long row = ROW_AT(p, b, h) + i;
  partial += partial_offset + row * p.parts * wide;
  float most = -INFINITY, sum = 0.f;
  for (int n = 0; n < p.parts; n++) most = fmax(most, partial[n * wide + p.dim]);
  const float base = most == -INFINITY ? 0.f : most;
  for (int n = 0; n < p.parts; n++) sum += partial[n * wide + p.dim + 1] * exp(partial[n * wide + p.dim] - base);
  for (int d = get_local_id(0); d < p.dim; d += get_local_size(0)) {
    float value = 0.f;
    for (int n = 0; n < p.parts; n++) value += partial[n * wide + d] * exp(partial[n * wide + p.dim] - base);
    store1(out + HEAD_AT(p.out, b, h) + i * p.out.row + d, sum == 0.f ? 0.f : value / sum);
  }
  if (get_local_id(0) == 0) store_sums(lse, &p, row, most, sum);
}
