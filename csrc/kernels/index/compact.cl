// Positions of true elements in three steps: count per run of elements, exclusive scan of the counts, write. The scan
// also serves sorting.
#include "kernels/index/params.h"

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
  local int sums[SCAN_GROUP];
  const uint item = get_local_id(0), items = get_local_size(0);
  global int* row = rows + offset + get_group_id(0) * row_pitch;
  const uint run = (length + items - 1) / items;
  const uint begin = min(item * run, length), end = min(begin + run, length);
  int sum = 0;
  for (uint i = begin; i < end; ++i) sum += row[i];
  sums[item] = sum;
  barrier(CLK_LOCAL_MEM_FENCE);
  for (uint step = 1; step < items; step *= 2) {
    const int below = item >= step ? sums[item - step] : 0;
    barrier(CLK_LOCAL_MEM_FENCE);
    sums[item] += below;
    barrier(CLK_LOCAL_MEM_FENCE);
  }
  int at = sums[item] - sum;
  for (uint i = begin; i < end; ++i) {
    const int value = row[i];
    row[i] = at;
    at += value;
  }
  if (item == items - 1) row[length] = sums[item];
}
#endif

// Coordinates of each true element, in order; at most `limit` of them.
kernel void dlb_true_positions(global const uchar* mask, long offset, uint count, uint per_run,
                               global const int* counts, long counts_offset, global long* out,
                               const Coordinates c, long limit) {
  const uint run = get_global_id(0), begin = run * per_run;
  if (begin >= count) return;
  const uint end = min(begin + per_run, count);
  long n = counts[counts_offset + run];
  mask += offset;
  for (uint i = begin; i < end && n < limit; ++i) {
    if (!mask[i]) continue;
    ulong rest = i;
    global long* to = out + c.out_offset + n * c.element_stride;
    for (uint d = 0; d < c.dims; ++d) {
      const ulong q = d + 1 == c.dims ? 0 : rest / c.size[d];
      to[(c.dims - 1 - d) * c.dim_stride] = rest - q * c.size[d];
      rest = q;
    }
    ++n;
  }
}
