// Selection of the k smallest of each row, or the k-th alone, on GPUs, by radix: the digits of the k-th are found from
// the most significant one down, by counting the digits of those elements whose higher digits are the k-th's. The
// elements less than the k-th, and as many of its equals as are missing, are then taken in the row's order. Several
// work-groups share a row; none waits for another one.
#include "sort/gpu_keys.clh"

#define SCRATCH_WORDS (2 * SORT_GROUP)
#define STEP 8  // elements that a work-item of dlb_select_take looks at together

typedef struct {
  K key;      // the digits of the k-th that are known
  uint want;  // which it is of the elements that have them, from 1
} Found;

inline uint dlb_low_bit(uint pass) {  // of the pass's digit
  const uint bits = (pass + 1) * SELECT_DIGIT_BITS;
  return bits < WIDTH ? WIDTH - bits : 0;
}
inline uint dlb_high_bit(uint pass) { return WIDTH - pass * SELECT_DIGIT_BITS; }

// Whether the digits before the pass's are those of the k-th.
inline bool dlb_is_candidate(K key, K known, uint pass) {
  return pass == 0 || (key ^ known) >> dlb_high_bit(pass) == 0;
}

inline global uint* dlb_bins(global uint* bins, const SelectParams* p, uint row, uint pass) {
  return bins + p->bins + (ulong)row * (p->passes * SELECT_BINS + 1) + pass * SELECT_BINS;
}

// The rank of the element that is wanted in its row, from 1.
inline uint dlb_first_want(const SelectParams* p, uint nans) {
  const uint numbers = p->n - nans;
  if (p->mode == SELECT_MEDIAN) return nans ? numbers + 1 : (p->n + 1) / 2;
  if (p->mode == SELECT_NANMEDIAN) return max(1u, (numbers + 1) / 2);
  return p->k;
}

// Finds what is known of the k-th element before pass p->pass, which is not the first, from the counts of the pass
// before. The row's first work-group keeps it for the next kernel. All work-items call it.
inline Found dlb_find(global uint* bins, global ulong* state, const SelectParams* p, uint row, uint part,
                      local uint* scratch, local uint* answer) {
  enum { RUN = SELECT_BINS / SORT_GROUP };
  const uint item = get_local_id(0), pass = p->pass - 1;
  global ulong* states = state + p->state + (ulong)row * (p->passes + 1) * 2;
  const uint want = pass ? (uint)states[2 * pass + 1] : dlb_first_want(p, *dlb_bins(bins, p, row, p->passes));
  const K known = pass ? (K)states[2 * pass] : 0;
  global const uint* bin = dlb_bins(bins, p, row, pass) + item * RUN;
  uint sum = 0, all;
  for (uint b = 0; b < RUN; ++b) sum += bin[b];
  uint below = dlb_scan_items(sum, scratch, &all);
  if (below < want && want <= below + sum) {
    uint b = 0;
    for (; below + bin[b] < want; ++b) below += bin[b];
    answer[0] = item * RUN + b;
    answer[1] = want - below;
  }
  barrier(CLK_LOCAL_MEM_FENCE);
  const Found found = {known | (K)answer[0] << dlb_low_bit(pass), answer[1]};
  if (part == 0 && item == 0) {
    states[2 * p->pass] = found.key;
    states[2 * p->pass + 1] = found.want;
  }
  return found;
}

// Counts the digits of those elements of the part whose higher digits are those of `known`.
inline void dlb_count_digits(global const R* from, global uint* bins, const SelectParams* p, uint row, uint part,
                             K known, local uint* count) {
  const uint item = get_local_id(0);
  const K flip = p->flip & ALL_BITS;
  for (uint b = item; b < SELECT_BINS; b += SORT_GROUP) count[b] = 0;
  barrier(CLK_LOCAL_MEM_FENCE);
  const uint begin = min(part * p->per_part, p->n), end = min(begin + p->per_part, p->n);
  const uint low = dlb_low_bit(p->pass), mask = (1u << (dlb_high_bit(p->pass) - low)) - 1;
  from += p->from + (ulong)row * p->n;
  uint nans = 0;
#pragma unroll 4
  for (uint i = begin + item; i < end; i += SORT_GROUP) {
    const K key = dlb_key(from[i], flip);
    if (dlb_is_candidate(key, known, p->pass)) atomic_inc(&count[(uint)(key >> low) & mask]);
#ifdef INFINITE
    nans += key == (ALL_BITS ^ flip);
#endif
  }
  if (p->pass == 0 && nans) atomic_add(dlb_bins(bins, p, row, p->passes), nans);
  barrier(CLK_LOCAL_MEM_FENCE);
  global uint* all = dlb_bins(bins, p, row, p->pass);
  for (uint b = item; b < SELECT_BINS; b += SORT_GROUP)
    if (count[b]) atomic_add(&all[b], count[b]);
}

// The first pass, and the others.
kernel void dlb_select_begin(global const R* from, global uint* bins, const SelectParams p) {
  local uint count[SELECT_BINS];
  dlb_count_digits(from, bins, &p, get_group_id(0) / p.parts, get_group_id(0) % p.parts, 0, count);
}

kernel void dlb_select_count(global const R* from, global uint* bins, global ulong* state, const SelectParams p) {
  local uint count[SELECT_BINS];
  local uint answer[2];
  const uint row = get_group_id(0) / p.parts, part = get_group_id(0) % p.parts;
  const K known = dlb_find(bins, state, &p, row, part, count, answer).key;
  dlb_count_digits(from, bins, &p, row, part, known, count);
}

// Counts what each part of a row has of elements less than the k-th, and of its equals. p.pass is p.passes.
kernel void dlb_select_tally(global const R* from, global uint* bins, global ulong* state, global uint* tallies,
                             const SelectParams p) {
  local uint scratch[SCRATCH_WORDS];
  local uint answer[2];
  const uint item = get_local_id(0), row = get_group_id(0) / p.parts, part = get_group_id(0) % p.parts;
  const K flip = p.flip & ALL_BITS;
  const K kth = dlb_find(bins, state, &p, row, part, scratch, answer).key;
  const uint begin = min(part * p.per_part, p.n), end = min(begin + p.per_part, p.n);
  from += p.from + (ulong)row * p.n;
  uint less = 0, equal = 0, all_less, all_equal;
#pragma unroll 4
  for (uint i = begin + item; i < end; i += SORT_GROUP) {
    const K key = dlb_key(from[i], flip);
    less += key < kth;
    equal += key == kth;
  }
  dlb_scan_items(less, scratch, &all_less);
  dlb_scan_items(equal, scratch, &all_equal);
  tallies += p.tallies + ((ulong)row * p.parts + part) * 2;
  if (item == 0) tallies[0] = all_less, tallies[1] = all_equal;
}

// Writes the elements that are taken, in the order of the row, or the last of them alone.
kernel void dlb_select_take(global const R* from, global const ulong* state, global const uint* tallies,
                            global R* values, global int* indices, const SelectParams p) {
  local uint scratch[SCRATCH_WORDS];
  const uint item = get_local_id(0), row = get_group_id(0) / p.parts, part = get_group_id(0) % p.parts;
  const K flip = p.flip & ALL_BITS;
  global const ulong* found = state + p.state + ((ulong)row * (p.passes + 1) + p.passes) * 2;
  const K kth = (K)found[0];
  const uint want = (uint)found[1];  // of the equals
  // Count the elements of the parts before this one.
  tallies += p.tallies + (ulong)row * p.parts * 2;
  uint less, equal;
  dlb_scan_items(item < part ? tallies[2 * item] : 0, scratch, &less);
  dlb_scan_items(item < part ? tallies[2 * item + 1] : 0, scratch, &equal);
  const uint begin = min(part * p.per_part, p.n), end = min(begin + p.per_part, p.n);
  from += p.from + (ulong)row * p.n;
  for (uint block = begin; block < end; block += STEP * SORT_GROUP) {
    const uint first = block + item * STEP, last = min(first + STEP, end);
    uint here = 0, all;  // less: in the upper half
    for (uint i = first; i < last; ++i) {
      const K key = dlb_key(from[i], flip);
      here += ((uint)(key < kth) << 16) + (key == kth);
    }
    const uint before = dlb_scan_items(here, scratch, &all);
    uint smaller = less + (before >> 16), same = equal + (before & 0xffff);
    for (uint i = first; here && i < last; ++i) {
      const R number = from[i];
      const K key = dlb_key(number, flip);
      const bool is_kth = key == kth && same + 1 == want;
      if (p.only_last ? is_kth : key < kth || (key == kth && same < want)) {
        const ulong to = p.only_last ? row : (ulong)row * p.k + smaller + min(same, want);
        values[p.values + to] = number;
        dlb_write_index(indices, p.indices + to, p.wide, i);
      }
      smaller += key < kth;
      same += key == kth;
    }
    less += all >> 16, equal += all & 0xffff;
  }
}
