// Positions of true elements in three steps: count per run of elements, exclusive scan of the counts, write. The scan
// also serves sorting. A run is a CPU's work-item's or a GPU's work-group's.
#include "common/scan_items.clh"
#include "kernels/index/params.h"

#if DLB_CPU
kernel void dlb_count_true(global const uchar* mask, long offset, uint count, uint per_run, global int* counts,
                           long counts_offset) {
  const uint run = get_global_id(0), begin = run * per_run;
  if (begin >= count) return;
  const uint end = min(begin + per_run, count);
  int n = 0;
  mask += offset;
  for (uint i = begin; i < end; ++i) n += mask[i] != 0;
  counts[counts_offset + run] = n;
}
#else
// Bit i: byte i of the word is not zero.
inline uint dlb_nonzero_bytes(uint word) {
  word |= word >> 4, word |= word >> 2, word |= word >> 1;
  return (word & 0x01010101u) * 0x10204080u >> 28;
}

// Bit k: element first + k is true, of RUN_ITEMS and before `end`. Sixteen bytes are read at once where they are aligned,
// since loads of bytes are as slow as of words.
inline uint dlb_true_bits(global const uchar* mask, uint first, uint end) {
  if (first + RUN_ITEMS <= end && ((size_t)(mask + first) & 15) == 0) {
    const uint4 bytes = *(global const uint4*)(mask + first);
    return dlb_nonzero_bytes(bytes.x) | dlb_nonzero_bytes(bytes.y) << 4 | dlb_nonzero_bytes(bytes.z) << 8 |
           dlb_nonzero_bytes(bytes.w) << 12;
  }
  uint found = 0;
  for (uint k = 0; k < RUN_ITEMS; ++k) found |= (uint)(first + k < end && mask[min(first + k, end - 1)] != 0) << k;
  return found;
}

kernel void dlb_count_true(global const uchar* mask, long offset, uint count, uint per_run, global int* counts,
                           long counts_offset) {
  local uint sums[2 * SCAN_GROUP];
  const uint item = get_local_id(0), run = get_group_id(0), begin = run * per_run, end = min(per_run, count - begin);
  uint all;
  dlb_scan_items(popcount(dlb_true_bits(mask + offset + begin, item * RUN_ITEMS, end)), sums, &all);
  if (item == 0) counts[counts_offset + run] = all;
}
#endif

// Each row of `length` ints becomes its exclusive prefix sum; row_pitch >= length + 1, and the total follows the row.
// CPU: an item per row. GPU: a group per row, each item summing a run.
#if DLB_CPU
kernel void dlb_scan(global int* rows, long offset, uint length, long row_pitch) {
  global int* row = rows + offset + get_global_id(0) * row_pitch;
  int sum = 0;
  for (uint i = 0; i < length; ++i) {
    const int value = row[i];
    row[i] = sum;
    sum += value;
  }
  row[length] = sum;
}
#else
kernel void dlb_scan(global int* rows, long offset, uint length, long row_pitch) {
  local uint sums[2 * SCAN_GROUP];
  const uint item = get_local_id(0);
  global int* row = rows + offset + get_group_id(0) * row_pitch;
  uint before = 0, all;
  for (uint chunk = 0; chunk < length; chunk += SCAN_GROUP * RUN_ITEMS) {
    const uint first = chunk + item * RUN_ITEMS;
    uint value[RUN_ITEMS], sum = 0;
#pragma unroll
    for (uint k = 0; k < RUN_ITEMS; ++k) value[k] = first + k < length ? row[first + k] : 0;
#pragma unroll
    for (uint k = 0; k < RUN_ITEMS; ++k) sum += value[k];
    uint at = before + dlb_scan_items(sum, sums, &all);
#pragma unroll
    for (uint k = 0; k < RUN_ITEMS; ++k) {
      if (first + k < length) row[first + k] = at;
      at += value[k];
    }
    before += all;
  }
  if (item == 0) row[length] = before;
}
#endif

inline void dlb_write_coordinates(global long* out, const Coordinates* c, long n, ulong rest) {
  global long* to = out + c->out_offset + n * c->element_stride;
  for (uint d = 0; d < c->dims; ++d) {
    const ulong q = d + 1 == c->dims ? 0 : rest / c->size[d];
    to[(c->dims - 1 - d) * c->dim_stride] = rest - q * c->size[d];
    rest = q;
  }
}

// Coordinates of each true element, in order; at most `limit` of them.
#if DLB_CPU
kernel void dlb_true_positions(global const uchar* mask, long offset, uint count, uint per_run,
                               global const int* counts, long counts_offset, global long* out, const Coordinates c,
                               long limit) {
  const uint run = get_global_id(0), begin = run * per_run;
  if (begin >= count) return;
  const uint end = min(begin + per_run, count);
  long n = counts[counts_offset + run];
  mask += offset;
  for (uint i = begin; i < end && n < limit; ++i)
    if (mask[i]) dlb_write_coordinates(out, &c, n++, i);
}
#else
// The places in the run are gathered in local memory, so that neighbouring work-items write neighbouring results.
kernel void dlb_true_positions(global const uchar* mask, long offset, uint count, uint per_run,
                               global const int* counts, long counts_offset, global long* out, const Coordinates c,
                               long limit) {
  local uint sums[2 * SCAN_GROUP];
  local ushort place[SCAN_GROUP * RUN_ITEMS];
  const uint item = get_local_id(0), run = get_group_id(0), begin = run * per_run, end = min(per_run, count - begin);
  mask += offset + begin;
  const uint found = dlb_true_bits(mask, item * RUN_ITEMS, end);
  uint all;
  uint at = dlb_scan_items(popcount(found), sums, &all);
  for (uint k = 0; k < RUN_ITEMS; ++k)
    if (found >> k & 1) place[at++] = item * RUN_ITEMS + k;
  barrier(CLK_LOCAL_MEM_FENCE);
  const long before = counts[counts_offset + run], most = max(0L, min((long)all, limit - before));
  for (uint f = item; f < most; f += SCAN_GROUP) dlb_write_coordinates(out, &c, before + f, begin + place[f]);
}
#endif
