// Concatenation: copies blocks of rows of up to CAT_INPUTS tensors side by side into the rows of one. E is an
// unsigned type of the element's size.
#include "kernels/cat/params.h"

inline void dlb_copy_block(global const E* in, int k, global E* out, const CatParams* b) {
  const uint total = b->first[k + 1] - b->first[k], items = get_global_size(0), item = get_global_id(0);
  const uint length = b->length[k].divisor;
  uint at = (ulong)total * item / items;
  const uint end = (ulong)total * (item + 1) / items;
  while (at < end) {
    const uint row = at / length, column = at - row * length, n = min(length - column, end - at);
    global const E* from = in + b->offset[k] + row * b->pitch[k] + column;
    global E* to = out + b->out_offset + row * b->out_pitch + b->start[k] + column;
#pragma clang loop vectorize(assume_safety)
    for (uint j = 0; j < n; ++j) to[j] = from[j];
    at += n;
  }
}

inline E dlb_block_element(global const E* in, int k, uint at, const CatParams* b, long* to) {
  const uint row = dlb_divide(at, b->length[k]), column = at - row * b->length[k].divisor;
  *to = b->out_offset + row * b->out_pitch + b->start[k] + column;
  return in[b->offset[k] + row * b->pitch[k] + column];
}

kernel void dlb_cat(global const E* i0, global const E* i1, global const E* i2, global const E* i3, global const E* i4,
                    global const E* i5, global const E* i6, global const E* i7, global const E* i8, global const E* i9,
                    global const E* i10, global const E* i11, global const E* i12, global const E* i13,
                    global const E* i14, global const E* i15, global E* out, const CatParams b) {
#if DLB_CPU
  dlb_copy_block(i0, 0, out, &b);
  if (b.inputs > 1) dlb_copy_block(i1, 1, out, &b);
  if (b.inputs > 2) dlb_copy_block(i2, 2, out, &b);
  if (b.inputs > 3) dlb_copy_block(i3, 3, out, &b);
  if (b.inputs > 4) dlb_copy_block(i4, 4, out, &b);
  if (b.inputs > 5) dlb_copy_block(i5, 5, out, &b);
  if (b.inputs > 6) dlb_copy_block(i6, 6, out, &b);
  if (b.inputs > 7) dlb_copy_block(i7, 7, out, &b);
  if (b.inputs > 8) dlb_copy_block(i8, 8, out, &b);
  if (b.inputs > 9) dlb_copy_block(i9, 9, out, &b);
  if (b.inputs > 10) dlb_copy_block(i10, 10, out, &b);
  if (b.inputs > 11) dlb_copy_block(i11, 11, out, &b);
  if (b.inputs > 12) dlb_copy_block(i12, 12, out, &b);
  if (b.inputs > 13) dlb_copy_block(i13, 13, out, &b);
  if (b.inputs > 14) dlb_copy_block(i14, 14, out, &b);
  if (b.inputs > 15) dlb_copy_block(i15, 15, out, &b);
#else
  const uint id = get_global_id(0);
  if (id >= b.first[b.inputs]) return;
  uint k = 0;
  while (id >= b.first[k + 1]) ++k;
  global const E* in = i0;
  switch (k) {
    case 1: in = i1; break;
    case 2: in = i2; break;
    case 3: in = i3; break;
    case 4: in = i4; break;
    case 5: in = i5; break;
    case 6: in = i6; break;
    case 7: in = i7; break;
    case 8: in = i8; break;
    case 9: in = i9; break;
    case 10: in = i10; break;
    case 11: in = i11; break;
    case 12: in = i12; break;
    case 13: in = i13; break;
    case 14: in = i14; break;
    case 15: in = i15; break;
  }
  long to;
  const E value = dlb_block_element(in, k, id - b.first[k], &b, &to);
  out[to] = value;
#endif
}
