// Groups of equal neighbours among rows of `width` elements (A), read in the order of `places` where that is given:
// counted per run of rows, the counts scanned (index/compact.cl), then written. And what orders rows of more than one
// element, from left to right. A run is a CPU's work-item's or a GPU's work-group's.
#include "common/scan_items.clh"
#include "kernels/index/params.h"

// Whether row i is equal to the row before it. NaN is equal to nothing.
inline bool dlb_repeats(global const A_T* x, global const int* places, int ordered, uint width, uint i) {
  const ulong a = (ulong)(ordered ? places[i] : i) * width, b = (ulong)(ordered ? places[i - 1] : i - 1) * width;
  for (uint c = 0; c < width; ++c)
    if (!(LOAD_A(x, a + c) == LOAD_A(x, b + c))) return false;
  return true;
}

#if DLB_CPU
kernel void dlb_count_groups(global const A_T* x, long x_offset, global const int* places, long places_offset,
                             int ordered, uint width, uint n, uint per_run, global int* counts, long counts_offset) {
  const uint run = get_global_id(0), begin = run * per_run;
  if (begin >= n) return;
  const uint end = min(begin + per_run, n);
  x += x_offset, places += places_offset;
  int groups = begin == 0;
  const uint from = max(begin, 1u);
  if (width == 1 && !ordered) {
#pragma clang loop vectorize(assume_safety)
    for (uint i = from; i < end; ++i) groups += !(LOAD_A(x, i) == LOAD_A(x, i - 1));
  } else {
    for (uint i = from; i < end; ++i) groups += !dlb_repeats(x, places, ordered, width, i);
  }
  counts[counts_offset + run] = groups;
}
#else
// Whether row i begins a group, asked by neighbouring work-items for neighbouring rows.
inline bool dlb_begins(global const A_T* x, global const int* places, int ordered, uint width, uint n, uint i) {
  if (i >= n) return false;
  if (width == 1 && !ordered) return i == 0 || !(LOAD_A(x, i) == LOAD_A(x, i - 1));
  return i == 0 || !dlb_repeats(x, places, ordered, width, i);
}

kernel void dlb_count_groups(global const A_T* x, long x_offset, global const int* places, long places_offset,
                             int ordered, uint width, uint n, uint per_run, global int* counts, long counts_offset) {
  local uint sums[2 * SCAN_GROUP];
  const uint item = get_local_id(0), run = get_group_id(0), begin = run * per_run;
  x += x_offset, places += places_offset;
  uint groups = 0, all;
#pragma unroll 4
  for (uint k = 0; k < RUN_ITEMS; ++k)
    groups += dlb_begins(x, places, ordered, width, n, begin + k * SCAN_GROUP + item);
  dlb_scan_items(groups, sums, &all);
  if (item == 0) counts[counts_offset + run] = all;
}
#endif

// starts: where each group begins. inverse (optional): the group of each row. values (optional): each group's element, of
// rows of one. places: where the rows were before they were put in order; they are read by it where `ordered`, and lie in
// order already where only `placed`.
#if DLB_CPU
kernel void dlb_write_groups(global const A_T* x, long x_offset, global const int* places, long places_offset,
                             int ordered, uint width, uint n, uint per_run, global const int* counts,
                             long counts_offset, global long* starts, long starts_offset, global long* inverse,
                             long inverse_offset, int wants_inverse, int placed, global A_T* values, long values_offset,
                             int wants_values) {
  const uint run = get_global_id(0), begin = run * per_run;
  if (begin >= n) return;
  const uint end = min(begin + per_run, n);
  x += x_offset, places += places_offset;
  starts += starts_offset, inverse += inverse_offset, values += values_offset;
  long group = (long)counts[counts_offset + run] - 1;
  // Without branches, which would be guessed wrong: the starts of a block first.
  enum { BLOCK = 256 };
  uint found[BLOCK];
  for (uint block = begin; block < end; block += BLOCK) {
    const uint block_end = min(block + BLOCK, end);
    uint count = 0;
    if (ordered || width > 1) {
      for (uint i = block; i < block_end; ++i) {
        found[count] = i;
        count += i == 0 || !dlb_repeats(x, places, ordered, width, i);
        if (wants_inverse) inverse[placed ? places[i] : i] = group + count;
      }
    } else {
      for (uint i = block; i < block_end; ++i) {
        found[count] = i;
        count += i == 0 || !(LOAD_A(x, i) == LOAD_A(x, i - 1));
        if (wants_inverse) inverse[placed ? places[i] : i] = group + count;
      }
    }
    for (uint f = 0; f < count; ++f) {
      starts[group + 1 + f] = found[f];
      if (wants_values) values[group + 1 + f] = x[ordered ? places[found[f]] : found[f]];
    }
    group += count;
  }
}
#else
// Rows are read, and results written, by neighbouring work-items; in between a work-item has RUN_ITEMS neighbouring rows.
kernel void dlb_write_groups(global const A_T* x, long x_offset, global const int* places, long places_offset,
                             int ordered, uint width, uint n, uint per_run, global const int* counts,
                             long counts_offset, global long* starts, long starts_offset, global long* inverse,
                             long inverse_offset, int wants_inverse, int placed, global A_T* values, long values_offset,
                             int wants_values) {
  local uint sums[2 * SCAN_GROUP];
  local uchar begins[SCAN_GROUP * RUN_ITEMS];
  local ushort place[SCAN_GROUP * RUN_ITEMS];  // of the groups' first rows, then the group of each row
  const uint item = get_local_id(0), run = get_group_id(0), begin = run * per_run, end = min(begin + per_run, n);
  x += x_offset, places += places_offset;
  starts += starts_offset, inverse += inverse_offset, values += values_offset;
  const long group = counts[counts_offset + run];
#pragma unroll 4
  for (uint k = 0; k < RUN_ITEMS; ++k) {
    const uint i = k * SCAN_GROUP + item;
    begins[i] = dlb_begins(x, places, ordered, width, n, begin + i);
  }
  barrier(CLK_LOCAL_MEM_FENCE);
  uint found = 0, all;
#pragma unroll
  for (uint k = 0; k < RUN_ITEMS; ++k) found |= (uint)begins[item * RUN_ITEMS + k] << k;
  const uint before = dlb_scan_items(popcount(found), sums, &all);
  uint at = before;
  for (uint k = 0; k < RUN_ITEMS; ++k)
    if (found >> k & 1) place[at++] = item * RUN_ITEMS + k;
  barrier(CLK_LOCAL_MEM_FENCE);
  for (uint f = item; f < all; f += SCAN_GROUP) {
    const uint i = begin + place[f];
    starts[group + f] = i;
    if (wants_values) values[group + f] = x[ordered ? places[i] : i];
  }
  if (!wants_inverse) return;
  barrier(CLK_LOCAL_MEM_FENCE);
  at = before;
#pragma unroll
  for (uint k = 0; k < RUN_ITEMS; ++k) {
    at += found >> k & 1;
    place[item * RUN_ITEMS + k] = at;
  }
  barrier(CLK_LOCAL_MEM_FENCE);
  for (uint k = 0; k < RUN_ITEMS; ++k) {
    const uint i = k * SCAN_GROUP + item;
    if (begin + i < end) inverse[placed ? places[begin + i] : begin + i] = group + place[i] - 1;
  }
}
#endif

// lengths[g] = starts[g + 1] - starts[g], the last up to n.
kernel void dlb_group_lengths(global const long* starts, long starts_offset, global long* lengths, long lengths_offset,
                              uint groups, long n, uint per_item) {
  const uint begin = get_global_id(0) * per_item, end = min(begin + per_item, groups);
  starts += starts_offset, lengths += lengths_offset;
  for (uint g = begin; g < end; ++g) lengths[g] = (g + 1 < groups ? starts[g + 1] : n) - starts[g];
}

inline bool dlb_row_less(global const A_T* x, uint width, int i, int j) {
  for (uint c = 0; c < width; ++c) {
    const T a = LOAD_A(x, (ulong)i * width + c), b = LOAD_A(x, (ulong)j * width + c);
    if (a < b) return true;
    if (a > b) return false;
  }
  return false;
}

// One pass of a stable merge sort of row numbers: neighbouring runs of `run` are merged.
#if DLB_CPU
kernel void dlb_merge_rows(global const A_T* x, long x_offset, uint width, global const int* from, long from_offset,
                           global int* to, long to_offset, uint n, uint run, int first) {
  const ulong begin = (ulong)get_global_id(0) * 2 * run;
  const uint middle = min(begin + run, (ulong)n), end = min(begin + 2 * (ulong)run, (ulong)n);
  x += x_offset, from += from_offset, to += to_offset;
  uint a = begin, b = middle;
  for (uint k = begin; k < end; ++k) {
    const int left = first ? (int)a : a < middle ? from[a] : 0, right = first ? (int)b : b < end ? from[b] : 0;
    const bool takes_left = b >= end || (a < middle && !dlb_row_less(x, width, right, left));
    to[k] = takes_left ? left : right;
    a += takes_left, b += !takes_left;
  }
}
#else
// Each work-item finds the place of one row: behind those of the other run that come before it.
kernel void dlb_merge_rows(global const A_T* x, long x_offset, uint width, global const int* from, long from_offset,
                           global int* to, long to_offset, uint n, uint run, int first) {
  const uint i = get_global_id(0);
  if (i >= n) return;
  x += x_offset, from += from_offset, to += to_offset;
  const uint begin = i / run / 2 * 2 * run, middle = min(begin + run, n), end = min((ulong)middle + run, (ulong)n);
  const bool left = i < middle;
  const int row = first ? (int)i : from[i];
  uint low = left ? middle : begin, high = left ? end : middle;
  const uint other_begin = low;
  while (low < high) {
    const uint at = low + (high - low) / 2;
    const int other = first ? (int)at : from[at];
    if (left ? dlb_row_less(x, width, other, row) : !dlb_row_less(x, width, row, other)) low = at + 1;
    else high = at;
  }
  to[begin + (i - (left ? begin : middle)) + (low - other_begin)] = row;
}
#endif

// The most frequent value of each sorted row, the least of them, and the last place that has it.
kernel void dlb_mode(global const A_T* sorted, long sorted_offset, global const int* places, long places_offset,
                     global A_T* values, long values_offset, global long* indices, long indices_offset, uint rows,
                     uint n, uint per_item) {
  const uint begin = get_global_id(0) * per_item, end = min(begin + per_item, rows);
  for (uint row = begin; row < end; ++row) {
    global const A_T* x = sorted + sorted_offset + (ulong)row * n;
    uint start = 0, most = 0, at = 0;
    for (uint i = 1; i <= n; ++i) {
      if (i < n && LOAD_A(x, i) == LOAD_A(x, i - 1)) continue;
      if (i - start > most) most = i - start, at = i - 1;
      start = i;
    }
    values[values_offset + row] = x[at];
    indices[indices_offset + row] = places[places_offset + (ulong)row * n + at];
  }
}
