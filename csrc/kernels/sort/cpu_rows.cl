// Stable sorting of rows of integer keys on CPUs (csrc/ops/sort/sort.cpp makes them from any type). K is uint or ulong; a
// key plus `bias` compares as unsigned. Each sorted entry is a key and its place in the row.

#include "kernels/sort/params.h"

// Keys that take part: `bits` low bits after the bias is added.
#define DIGIT(key, shift) (uint)((((K)(key) + bias) >> (shift)) & (RADIX - 1))

#define DIGIT_BITS SORT_CPU_DIGIT_BITS
#define RADIX (1 << DIGIT_BITS)
#define SHORT_ROW 48

inline void dlb_insertion_sort(global K* keys, global int* places, uint n, K bias) {
  for (uint i = 0; i < n; ++i) {
    const K key = keys[i] + bias;
    uint j = i;
    for (; j > 0 && keys[j - 1] + bias > key; --j) keys[j] = keys[j - 1], places[j] = places[j - 1];
    keys[j] = key - bias;
    places[j] = i;
  }
}

// A row by least significant digit radix sort; digits that all keys share cost one look. Both buffers are overwritten;
// the order of the places ends up in `places`.
inline void dlb_radix_sort(global K* keys, global int* places, global K* other_keys, global int* other_places, uint n,
                           K bias, uint bits) {
  uint counts[sizeof(K)][RADIX];
  const uint digits = (bits + DIGIT_BITS - 1) / DIGIT_BITS;
  for (uint d = 0; d < digits; ++d)
    for (uint r = 0; r < RADIX; ++r) counts[d][r] = 0;
  for (uint i = 0; i < n; ++i)
    for (uint d = 0; d < digits; ++d) ++counts[d][DIGIT(keys[i], d * DIGIT_BITS)];
  for (uint i = 0; i < n; ++i) places[i] = i;
  global int* const result = places;
  for (uint d = 0; d < digits; ++d) {
    const uint shift = d * DIGIT_BITS;
    if (counts[d][DIGIT(keys[0], shift)] == n) continue;
    uint sum = 0;
    for (uint r = 0; r < RADIX; ++r) {
      const uint count = counts[d][r];
      counts[d][r] = sum;
      sum += count;
    }
    for (uint i = 0; i < n; ++i) {
      const uint to = counts[d][DIGIT(keys[i], shift)]++;
      other_keys[to] = keys[i];
      other_places[to] = places[i];
    }
    global K* const swap_keys = keys;
    keys = other_keys, other_keys = swap_keys;
    global int* const swap_places = places;
    places = other_places, other_places = swap_places;
  }
  if (places != result)
    for (uint i = 0; i < n; ++i) result[i] = places[i];
}

kernel void dlb_sort_rows(global K* keys, long keys_offset, global int* places, long places_offset,
                          global K* other_keys, long other_keys_offset, global int* other_places,
                          long other_places_offset, uint rows, uint n, uint per_item, K bias, uint bits) {
  const uint begin = get_global_id(0) * per_item, end = min(begin + per_item, rows);
  for (uint row = begin; row < end; ++row) {
    const ulong at = (ulong)row * n;
    if (n <= SHORT_ROW) dlb_insertion_sort(keys + keys_offset + at, places + places_offset + at, n, bias);
    else
      dlb_radix_sort(keys + keys_offset + at, places + places_offset + at, other_keys + other_keys_offset + at,
                     other_places + other_places_offset + at, n, bias, bits);
  }
}

#define LEADING_BITS 11
#define LEADING(key) (uint)(((key) + bias) >> shift & ((1 << LEADING_BITS) - 1))

// The least leading digit up to which at least `least` of the keys key[0], key[step] ... are. `least` is at most their
// number.
inline uint dlb_leading_digit(global const K* key, uint n, uint step, uint least, uint shift, K bias) {
  uint counts[1 << LEADING_BITS];
  for (uint d = 0; d < 1 << LEADING_BITS; ++d) counts[d] = 0;
  for (uint i = 0; i < n; i += step) ++counts[LEADING(key[i])];
  uint digit = 0;
  for (uint below = 0; (below += counts[digit]) < least;) ++digit;
  return digit;
}

// Gathers the keys up to a leading digit, and their places; returns how many. Most blocks have none.
inline uint dlb_gather_keys(global const K* key, uint n, uint digit, uint shift, K bias, global K* to,
                            global int* place) {
  enum { BLOCK = 64 };
  const K last = ((K)(digit + 1) << shift) - 1;  // all ones for the last digit of all bits
  uint count = 0;
  for (uint block = 0; block < n; block += BLOCK) {
    const uint end = min(block + BLOCK, n);
    if (end - block == BLOCK) {
      global const K* const x = key + block;
      K found = 0;
#pragma clang loop vectorize(assume_safety)
      for (uint j = 0; j < BLOCK; ++j) found |= (K)(x[j] + bias <= last);
      if (!found) continue;
    }
    for (uint i = block; i < end; ++i) {
      to[count] = key[i], place[count] = i;
      count += key[i] + bias <= last;
    }
  }
  return count;
}

// The k smallest of each row in order, for larger k: what is not above the leading digit of the k-th smallest, or of an
// estimate of it, is gathered and sorted. The keys are overwritten.
kernel void dlb_select_sorted(global K* keys, long keys_offset, global int* places, long places_offset,
                              global int* order, long order_offset, global K* other_keys, long other_keys_offset,
                              global int* other_order, long other_order_offset, global int* best, long best_offset,
                              uint rows, uint n, uint k, uint per_item, K bias, uint bits) {
  enum { SAMPLES = 16384 };
  const uint begin = get_global_id(0) * per_item, end = min(begin + per_item, rows);
  const uint shift = bits > LEADING_BITS ? bits - LEADING_BITS : 0;
  for (uint row = begin; row < end; ++row) {
    const ulong at = (ulong)row * n;
    global K* const key = keys + keys_offset + at;
    global K* const few = other_keys + other_keys_offset + at;
    global int* const place = places + places_offset + at;
    global int* const sorted = order + order_offset + at;
    const uint step = max(1u, n / SAMPLES), samples = (n + step - 1) / step;
    const uint expected = (uint)((ulong)k * samples / n), least = expected + expected / 2 + 16;
    uint count = 0;
    if (step > 1 && least < samples) {
      const uint digit = dlb_leading_digit(key, n, step, least, shift, bias);
      count = dlb_gather_keys(key, n, digit, shift, bias, few, place);
    }
    if (count < k) {
      const uint digit = dlb_leading_digit(key, n, 1, k, shift, bias);
      count = dlb_gather_keys(key, n, digit, shift, bias, few, place);
    }
    dlb_radix_sort(few, sorted, key, other_order + other_order_offset + at, count, bias, bits);
    global int* const to = best + best_offset + (ulong)row * k;
    for (uint j = 0; j < k; ++j) to[j] = place[sorted[j]];
  }
}

// The k smallest of each row in order, earlier places first among equals: kept sorted while the row is read once.
kernel void dlb_select_rows(global const K* keys, long keys_offset, global K* best, long best_offset,
                            global int* places, long places_offset, uint rows, uint n, uint k, uint per_item, K bias) {
  const uint begin = get_global_id(0) * per_item, end = min(begin + per_item, rows);
  for (uint row = begin; row < end; ++row) {
    global const K* from = keys + keys_offset + (ulong)row * n;
    global K* kept = best + best_offset + (ulong)row * k;
    global int* where = places + places_offset + (ulong)row * k;
    uint filled = 0;
    for (uint i = 0; i < n; ++i) {
      const K key = from[i] + bias;
      if (filled == k && key >= kept[k - 1]) continue;
      uint j = filled < k ? filled++ : k - 1;
      for (; j > 0 && kept[j - 1] > key; --j) kept[j] = kept[j - 1], where[j] = where[j - 1];
      kept[j] = key;
      where[j] = i;
    }
  }
}

// One digit of a radix sort of long rows, in three steps: each work-item counts the digits of its chunk, the counts
// [row][digit][chunk] are scanned (index/compact.cl), each work-item moves its chunk in order.
kernel void dlb_radix_count(global const K* keys, long keys_offset, uint rows, uint n, uint chunks, uint per_chunk,
                            K bias, uint shift, global int* counts, long counts_offset) {
  const uint id = get_global_id(0), row = id / chunks, chunk = id % chunks;
  if (row >= rows) return;
  int count[RADIX];
  for (uint r = 0; r < RADIX; ++r) count[r] = 0;
  const uint begin = min(chunk * per_chunk, n), end = min(begin + per_chunk, n);
  keys += keys_offset + (ulong)row * n;
  for (uint i = begin; i < end; ++i) ++count[DIGIT(keys[i], shift)];
  counts += counts_offset + (ulong)row * (chunks * RADIX + 1) + chunk;
  for (uint r = 0; r < RADIX; ++r) counts[r * chunks] = count[r];
}

kernel void dlb_radix_move(global const K* keys, long keys_offset, global const int* places, long places_offset,
                           global K* to_keys, long to_keys_offset, global int* to_places, long to_places_offset,
                           uint rows, uint n, uint chunks, uint per_chunk, K bias, uint shift, global const int* counts,
                           long counts_offset, int first) {
  const uint id = get_global_id(0), row = id / chunks, chunk = id % chunks;
  if (row >= rows) return;
  int next[RADIX];
  counts += counts_offset + (ulong)row * (chunks * RADIX + 1) + chunk;
  for (uint r = 0; r < RADIX; ++r) next[r] = counts[r * chunks];
  const uint begin = min(chunk * per_chunk, n), end = min(begin + per_chunk, n);
  const ulong at = (ulong)row * n;
  keys += keys_offset + at;
  places += places_offset + at;
  to_keys += to_keys_offset + at;
  to_places += to_places_offset + at;
  for (uint i = begin; i < end; ++i) {
    const K key = keys[i];
    const int to = next[DIGIT(key, shift)]++;
    to_keys[to] = key;
    to_places[to] = first ? (int)i : places[i];
  }
}
