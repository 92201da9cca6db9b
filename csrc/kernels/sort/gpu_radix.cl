// Stable radix sort of long rows on GPUs, least significant digit first (Merrill & Grimshaw 2011, High Performance and
// Scalable Radix Sorting). A pass is three kernels: each work-group counts the digits of a block, the counts of each
// digit are added up over the row's blocks, each work-group moves its block. No work-group waits for another one, which
// OpenCL does not promise to run. The first pass finds which bits differ within a row; passes over digits that are the
// same everywhere end at once, and kernels work out for themselves where the pass before has left the elements.
#include "sort/gpu_rank.clh"

// Bits that differ within the row, from the first pass.
#define VARYING(row) varying[p.varying + (row)]

inline bool dlb_is_active(K varying, uint pass) {
  return pass == 0 || (varying >> (pass * SORT_DIGIT_BITS) & (RADIX - 1)) != 0;
}

// Passes up to `pass` that move elements.
inline uint dlb_moves_before(K varying, uint pass) {
  uint moves = 0;
  for (uint p = 0; p < pass; ++p) moves += dlb_is_active(varying, p);
  return moves;
}

// counts [row][block][digit]. In the first pass, varying [row] [block] behind the rows' own: bits that differ from the
// row's first.
kernel void dlb_radix_count(global const R* from, global const R* keys, global const R* other_keys, global uint* counts,
                            global K* varying, const RadixParams p) {
  local uint count[RADIX];
  local uint differing[2];
  const uint item = get_local_id(0), row = get_group_id(0) / p.blocks, block = get_group_id(0) % p.blocks;
  const K flip = p.flip & ALL_BITS;
  const K differ = p.pass ? VARYING(row) : 0;
  if (!dlb_is_active(differ, p.pass)) return;
  const ulong begin = (ulong)row * p.n;
  from += p.from + begin;
  if (p.pass) from = (dlb_moves_before(differ, p.pass) & 1 ? keys + p.keys : other_keys + p.other_keys) + begin;
  count[item] = 0;
  if (item < 2) differing[item] = 0;
  barrier(CLK_LOCAL_MEM_FENCE);
  const uint first = block * BLOCK, end = min(p.n - first, (uint)BLOCK);
  const K any = dlb_key(from[0], flip);
  const uint shift = p.pass * SORT_DIGIT_BITS;
  // Equal digits in a row are added at once: sorted rows, and those of few values, would have the work-items wait for
  // each other.
  K found = 0;
  uint last = 0, run = 0;
#pragma unroll
  for (uint k = 0; k < ITEMS; ++k) {
    const uint i = k * SORT_GROUP + item;
    if (i < end) {
      const K key = dlb_key(from[first + i], flip);
      const uint digit = (uint)(key >> shift) & (RADIX - 1);
      found |= key ^ any;
      if (digit != last) {
        if (run) atomic_add(&count[last], run);
        last = digit, run = 0;
      }
      ++run;
    }
  }
  if (run) atomic_add(&count[last], run);
  if (p.pass == 0) DIFFER(differing, found);
  barrier(CLK_LOCAL_MEM_FENCE);
  counts[p.counts + (ulong)get_group_id(0) * RADIX + item] = count[item];
  if (p.pass == 0 && item == 0) varying[p.varying + p.rows + get_group_id(0)] = JOINED(differing);
}

// The counts of a digit become exclusive sums over the row's blocks; totals [row][digit]. A work-group has
// SORT_SCAN_DIGITS digits of a row. The first of a row joins what differs in its blocks.
kernel void dlb_radix_scan(global uint* counts, global uint* totals, global K* varying, const RadixParams p) {
  enum { LANES = SORT_GROUP / SORT_SCAN_DIGITS, GROUPS = RADIX / SORT_SCAN_DIGITS };
  local uint sums[SORT_GROUP];
  local uint differing[2];
  const uint item = get_local_id(0), row = get_group_id(0) / GROUPS, part = get_group_id(0) % GROUPS;
  if (p.pass && !dlb_is_active(VARYING(row), p.pass)) return;
  const uint digit = part * SORT_SCAN_DIGITS + item % SORT_SCAN_DIGITS, lane = item / SORT_SCAN_DIGITS;
  const uint per_lane = (p.blocks + LANES - 1) / LANES;
  const uint begin = min(lane * per_lane, p.blocks), end = min(begin + per_lane, p.blocks);
  counts += p.counts + (ulong)row * p.blocks * RADIX + digit;
  uint sum = 0;
  for (uint b = begin; b < end; ++b) sum += counts[(ulong)b * RADIX];
  sums[item] = sum;
  if (item < 2) differing[item] = 0;
  barrier(CLK_LOCAL_MEM_FENCE);
  uint before = 0, all = 0;
  for (uint l = 0; l < LANES; ++l) {
    const uint other = sums[l * SORT_SCAN_DIGITS + item % SORT_SCAN_DIGITS];
    before += l < lane ? other : 0;
    all += other;
  }
  for (uint b = begin; b < end; ++b) {
    const uint count = counts[(ulong)b * RADIX];
    counts[(ulong)b * RADIX] = before;
    before += count;
  }
  if (lane == 0) totals[p.totals + (ulong)row * RADIX + digit] = all;
  const uint blocks_joined = p.pass == 0 && part == 0 ? p.blocks : 0;
  K found = 0;
  global const K* blocks = varying + p.varying + p.rows + (ulong)row * p.blocks;
  for (uint b = item; b < blocks_joined; b += SORT_GROUP) found |= blocks[b];
  DIFFER(differing, found);
  barrier(CLK_LOCAL_MEM_FENCE);
  if (blocks_joined && item == 0) VARYING(row) = JOINED(differing);
}

// Sorts a block, of which `end` elements exist, by the digit into tables->shared.numbers, and finds the elements' ranks.
// tables->start becomes where digits begin in the row, less where they do in the block; totals, counts: of the row and
// of the row's blocks before.
static inline void dlb_sort_block(global const R* from, uint end, uint shift, K flip, global const uint* totals,
                                  global const uint* counts, ushort* rank, local RankTables* tables) {
  const uint item = get_local_id(0);
  R number[ITEMS];
  uchar digit[ITEMS];
#pragma unroll
  for (uint k = 0; k < ITEMS; ++k) {
    const uint i = ELEMENT(k);
    // Elements behind the row's end come after all others.
    number[k] = i < end ? from[i] : 0;
    digit[k] = i < end ? DIGIT(number[k], shift) : RADIX - 1;
  }
  dlb_rank(digit, rank, tables);
  uint all;
  const uint digit_start = dlb_scan_items(totals[item], tables->sums, &all);
  tables->start[item] = digit_start + counts[item] - tables->start[item];
#pragma unroll
  for (uint k = 0; k < ITEMS; ++k) tables->shared.numbers[rank[k]] = number[k];
  barrier(CLK_LOCAL_MEM_FENCE);
}

// Moves a block in the order of the digit. The elements are sorted in local memory first, so that neighbours are
// written together. The last pass that moves anything writes the results.
kernel void dlb_radix_move(global const R* from, global const int* places, global R* keys, global int* order,
                           global R* other_keys, global int* other_order, global R* values, global int* indices,
                           global const uint* counts, global const uint* totals, global const K* varying,
                           const RadixParams p) {
  local RankTables tables;
  const uint item = get_local_id(0), row = get_group_id(0) / p.blocks, block = get_group_id(0) % p.blocks;
  const K flip = p.flip & ALL_BITS;
  const K differ = VARYING(row);
  if (!dlb_is_active(differ, p.pass)) return;
  const ulong at_row = (ulong)row * p.n;
  const uint moves = dlb_moves_before(differ, p.pass);
  const bool last = dlb_moves_before(differ, p.passes) == moves + 1, odd = moves & 1;
  bool has_places = p.pass || p.has_places;
  from += p.from + at_row, places += p.places + at_row;
  if (p.pass) {
    from = (odd ? keys + p.keys : other_keys + p.other_keys) + at_row;
    places = (odd ? order + p.order : other_order + p.other_order) + at_row;
  }
  const uint first = block * BLOCK, end = min(p.n - first, (uint)BLOCK), shift = p.pass * SORT_DIGIT_BITS;
  ushort rank[ITEMS];
  dlb_sort_block(from + first, end, shift, flip, totals + p.totals + (ulong)row * RADIX,
                 counts + p.counts + (ulong)get_group_id(0) * RADIX, rank, &tables);
  global R* to = (odd ? other_keys + p.other_keys : keys + p.keys) + at_row;
  if (last) to = values + p.values + at_row;
  const bool moves_numbers = !last || p.wants_values;
  uint target[ITEMS];
#pragma unroll
  for (uint k = 0; k < ITEMS; ++k) {
    const uint i = k * SORT_GROUP + item;
    const R value = tables.shared.numbers[i];
    target[k] = tables.start[DIGIT(value, shift)] + i;
    if (moves_numbers && i < end) to[target[k]] = value;
  }
  barrier(CLK_LOCAL_MEM_FENCE);
#pragma unroll
  for (uint k = 0; k < ITEMS; ++k) {
    const uint i = first + ELEMENT(k);
    tables.shared.origins[rank[k]] = has_places && ELEMENT(k) < end ? places[i] : i;
  }
  barrier(CLK_LOCAL_MEM_FENCE);
  global int* to_order = (odd ? other_order + p.other_order : order + p.order) + at_row;
#pragma unroll
  for (uint k = 0; k < ITEMS; ++k) {
    const uint i = k * SORT_GROUP + item;
    if (i < end) {
      if (!last) to_order[target[k]] = tables.shared.origins[i];
      else if (p.wants_indices)
        dlb_write_index(indices, p.indices + at_row + target[k], p.wide, tables.shared.origins[i]);
    }
  }
  barrier(CLK_LOCAL_MEM_FENCE);  // PoCL 3.1 writes behind the row's end where the kernel ends in a condition
}
