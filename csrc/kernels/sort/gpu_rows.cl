// Stable sorting of rows that fit into a work-group's local memory, on GPUs, in one launch. The first k of each row,
// with their places, are the result.
#include "sort/gpu_rank.clh"

inline void dlb_write_sorted(global R* values, global int* indices, const SortRowsParams* p, uint row, uint at, R value,
                             uint index) {
  if (at >= p->k) return;
  const ulong to = (ulong)row * p->k + at;
  if (p->wants_values) values[p->values + to] = value;
  if (p->wants_indices) dlb_write_index(indices, p->indices + to, p->wide, index);
}

// Rows of at most SORT_SHORT elements, as many of them as a work-group has room for: bitonic networks (Batcher 1968) on
// keys and places, which differ.
kernel void dlb_sort_short(global const R* from, global const int* places, global R* values, global int* indices,
                           const SortRowsParams p) {
  local K key[SORT_SHORT];
  local ushort place[SORT_SHORT];
  const uint item = get_local_id(0);
  const K flip = p.flip & ALL_BITS;
  uint padded = 1;
  while (padded < p.n) padded *= 2;
  const uint first = get_group_id(0) * (SORT_SHORT / padded);
  for (uint t = item; t < SORT_SHORT; t += SORT_GROUP) {
    const uint row = first + t / padded, i = t & (padded - 1);
    const bool exists = row < p.rows && i < p.n;
    key[t] = exists ? dlb_key(from[p.from + (ulong)row * p.n + i], flip) : ~(K)0;
    place[t] = i;
  }
  barrier(CLK_LOCAL_MEM_FENCE);
  for (uint size = 2; size <= padded; size *= 2)
    for (uint step = size / 2; step > 0; step /= 2) {
      for (uint t = item; t < SORT_SHORT / 2; t += SORT_GROUP) {
        const uint i = 2 * t - (t & (step - 1)), j = i + step;
        const bool up = size == padded || (i & size) == 0;
        const K a = key[i], b = key[j];
        const ushort at_a = place[i], at_b = place[j];
        if ((a > b || (a == b && at_a > at_b)) == up) {
          key[i] = b, key[j] = a;
          place[i] = at_b, place[j] = at_a;
        }
      }
      barrier(CLK_LOCAL_MEM_FENCE);
    }
  for (uint t = item; t < SORT_SHORT; t += SORT_GROUP) {
    const uint row = first + t / padded, i = t & (padded - 1);
    if (row < p.rows && i < p.n) {
      const ulong at = (ulong)row * p.n + place[t];
      dlb_write_sorted(
          values, indices, &p, row, i, from[p.from + at], p.has_places ? (uint)places[p.places + at] : place[t]);
    }
  }
}

// Rows of at most BLOCK elements, a work-group each: radix sort in local memory. Digits that all keys share cost
// nothing.
kernel void dlb_sort_block(global const R* from, global const int* places, global R* values, global int* indices,
                           const SortRowsParams p) {
  local RankTables tables;
  local uint differing[2];
  const uint item = get_local_id(0), row = get_group_id(0);
  const K flip = p.flip & ALL_BITS;
  from += p.from + (ulong)row * p.n;
  R number[ITEMS];
  ushort place[ITEMS], rank[ITEMS];
  uchar digit[ITEMS];
  if (item < 2) differing[item] = 0;
  barrier(CLK_LOCAL_MEM_FENCE);
  const K any = dlb_key(from[0], flip);
  K found = 0;
#pragma unroll
  for (uint k = 0; k < ITEMS; ++k) {
    const uint i = ELEMENT(k);
    number[k] = i < p.n ? from[i] : 0;
    place[k] = i;
    if (i < p.n) found |= dlb_key(number[k], flip) ^ any;
  }
  DIFFER(differing, found);
  barrier(CLK_LOCAL_MEM_FENCE);
  for (uint shift = 0; shift < p.bits; shift += SORT_DIGIT_BITS) {
    if ((differing[shift / 32] >> shift % 32 & (RADIX - 1)) == 0) continue;
      // Elements behind the row's end come after all others and stay there.
#pragma unroll
    for (uint k = 0; k < ITEMS; ++k) digit[k] = ELEMENT(k) < p.n ? DIGIT(number[k], shift) : RADIX - 1;
    dlb_rank(digit, rank, &tables);
#pragma unroll
    for (uint k = 0; k < ITEMS; ++k) tables.shared.numbers[rank[k]] = number[k];
    barrier(CLK_LOCAL_MEM_FENCE);
#pragma unroll
    for (uint k = 0; k < ITEMS; ++k) number[k] = tables.shared.numbers[ELEMENT(k)];
    barrier(CLK_LOCAL_MEM_FENCE);
#pragma unroll
    for (uint k = 0; k < ITEMS; ++k) tables.shared.origins[rank[k]] = place[k];
    barrier(CLK_LOCAL_MEM_FENCE);
#pragma unroll
    for (uint k = 0; k < ITEMS; ++k) place[k] = tables.shared.origins[ELEMENT(k)];
    barrier(CLK_LOCAL_MEM_FENCE);
  }
  places += p.places + (ulong)row * p.n;
#pragma unroll
  for (uint k = 0; k < ITEMS; ++k) {
    const uint i = ELEMENT(k);
    if (i < p.n)
      dlb_write_sorted(values, indices, &p, row, i, number[k], p.has_places ? (uint)places[place[k]] : place[k]);
  }
}
