// How many elements (A) fall into each of `bins` bins: elements that are bin numbers (bincount), or between `low` and
// `high` (histc). V is what the bounds are given as; -DLINEAR for histc, -DINTEGER for one of integers.
#include "kernels/index/params.h"

#if defined(INTEGER) || !defined(LINEAR)
typedef long V;
#else
typedef T V;
#endif
#ifdef LINEAR
#define COUNT_T A_T
#define STORE_COUNT(p, i, v) STORE_A(p, i, (T)(v))
#else
#define COUNT_T long
#define STORE_COUNT(p, i, v) ((p)[i] = (v))
#endif

// The bin of an element, or -1.
inline long dlb_bin(global const A_T* x, ulong i, uint bins, V low, V high) {
#ifndef LINEAR
  return (long)LOAD_A(x, i);
#elif defined(INTEGER)
  const long v = LOAD_A(x, i);
  if (v < low || v > high) return -1;
  return min((v - low) * (long)bins / (high - low), (long)bins - 1);
#else
  // Values on the edge between bins fall where the arithmetic of their own type puts them.
  A_T stored;
#define ROUNDED(v) (STORE_A(&stored, 0, v), LOAD_A(&stored, 0))
  const T v = LOAD_A(x, i);
  if (!(v >= low && v <= high)) return -1;
  // A range that is less than the type's spacing holds one value, in its middle.
  if (low == high) return bins / 2;
  const T span = ROUNDED(high - low), wide = ROUNDED((T)bins);
  T place = ROUNDED(v - low);
  place = ROUNDED(place * wide);
  place = ROUNDED(place / span);
  return min((long)place, (long)bins - 1);
#endif
}

#if DLB_CPU
// Each work-item has counts of its own, [items][bins].
kernel void dlb_count(global const A_T* x, long offset, global int* counts, long counts_offset, ulong n, uint per_item,
                      uint bins, V low, V high) {
  const ulong begin = get_global_id(0) * (ulong)per_item, end = min(begin + per_item, n);
  counts += counts_offset + get_global_id(0) * (ulong)bins;
  for (uint b = 0; b < bins; ++b) counts[b] = 0;
  x += offset;
#ifdef LINEAR
  enum { BLOCK = 256 };
  int bin[BLOCK];
  for (ulong i = begin; i < end; i += BLOCK) {
    const int m = min((ulong)BLOCK, end - i);
    global const A_T* from = x + i;
#pragma clang loop vectorize(assume_safety)
    for (int j = 0; j < m; ++j) bin[j] = (int)dlb_bin(from, j, bins, low, high);
    for (int j = 0; j < m; ++j)
      if (bin[j] >= 0) ++counts[bin[j]];
  }
#else
  for (ulong i = begin; i < end; ++i) ++counts[dlb_bin(x, i, bins, low, high)];
#endif
}
#else
// All work-items of a group share counts in local memory where there is room for them.
kernel void dlb_count(global const A_T* x, long offset, global int* counts, long counts_offset, ulong n, uint per_item,
                      uint bins, V low, V high) {
  local int here[COUNT_LOCAL_BINS];
  const bool shared = bins <= COUNT_LOCAL_BINS;
  const uint item = get_local_id(0), items = get_local_size(0);
  counts += counts_offset;
  x += offset;
  if (shared)
    for (uint b = item; b < bins; b += items) here[b] = 0;
  barrier(CLK_LOCAL_MEM_FENCE);
  for (ulong i = get_global_id(0); i < n; i += get_global_size(0)) {
    const long bin = dlb_bin(x, i, bins, low, high);
    if (bin < 0) continue;
    if (shared) atomic_inc(here + bin);
    else atomic_inc(counts + bin);
  }
  barrier(CLK_LOCAL_MEM_FENCE);
  if (shared)
    for (uint b = item; b < bins; b += items)
      if (here[b]) atomic_add(counts + b, here[b]);
}
#endif

// The sums over all copies, as the result's type: int64 of bincount, A of histc.
kernel void dlb_count_merge(global const int* counts, long counts_offset, global COUNT_T* out, long out_offset,
                            uint bins, uint copies, uint per_item) {
  const uint begin = get_global_id(0) * per_item, end = min(begin + per_item, bins);
  counts += counts_offset;
  for (uint b = begin; b < end; ++b) {
    long sum = 0;
    for (uint copy = 0; copy < copies; ++copy) sum += counts[(ulong)copy * bins + b];
    STORE_COUNT(out, out_offset + b, sum);
  }
}
