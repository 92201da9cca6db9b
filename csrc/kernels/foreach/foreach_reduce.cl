// Norms, power sums and maxima of many tensors: one partial per piece of work, then one result per tensor. Sees
// A (inputs), B (results), T (accumulator); DLB_MODE: 1 sum |x|, 2 sum x*x, 3 max |x|, 4 max x;
// DLB_ROOT: the square root of the sum is wanted. Tables have the places of the tensor and of its result.
#include "foreach/multi_tensor.clh"
#if DLB_MODE == 1
#define DLB_TERM(x) fabs(x)
#elif DLB_MODE == 2
#define DLB_TERM(x) ((x) * (x))
#elif DLB_MODE == 3
#define DLB_TERM(x) fabs(x)
#else
#define DLB_TERM(x) (x)
#endif
#if DLB_MODE <= 2
#define DLB_FIRST ((T)0)
#define DLB_JOIN(a, b) ((a) + (b))
#else
#define DLB_FIRST (DLB_MODE == 3 ? (T)0 : T_LOWEST)
#define DLB_JOIN(a, b) ((a) > (b) || (a) != (a) ? (a) : (b))
#endif
#ifdef DLB_ROOT
#define DLB_RESULT(x) sqrt(x)
#else
#define DLB_RESULT(x) (x)
#endif
#define DLB_ROW(t) (start + p.tensors + 1 + (ulong)(t)*3)

#ifdef DLB_CPU
// Sums run in blocks, so that rounding errors grow with the block and the number of blocks, not with all elements.
#define DLB_BLOCK 2048u

kernel void dlb_foreach_partials(DLB_SEGMENTS, global const ulong* ring, const MultiTensorParams p, global T* partials,
                                 long partials_at) {
  partials += partials_at;
  global const ulong* const start = ring + p.table;
  const ulong item = get_global_id(0);
  ulong at = item * p.per_item;
  const ulong end = min(at + p.per_item, p.total);
  if (at >= end) return;
  for (uint t = dlb_find_tensor(start, p.tensors, at); at < end; ++t) {
    global const A_T* x = DLB_AT(A_T, DLB_ROW(t)[1]) + (at - start[t]);
    ulong left = min(end, start[t + 1]) - at;
    at += left;
    T total = DLB_FIRST;
    while (left > 0) {
      const uint n = (uint)min(left, (ulong)DLB_BLOCK);
      T lanes[16];
      for (uint k = 0; k < 16; ++k) lanes[k] = DLB_FIRST;
      const uint whole = n / 16 * 16;
      for (uint j = 0; j < whole; j += 16) {
#pragma clang loop vectorize(assume_safety)
        for (uint k = 0; k < 16; ++k) {
          const T v = DLB_TERM(LOAD_A(x, j + k));
          lanes[k] = DLB_JOIN(lanes[k], v);
        }
      }
      for (uint j = whole; j < n; ++j) {
        const T v = DLB_TERM(LOAD_A(x, j));
        lanes[j - whole] = DLB_JOIN(lanes[j - whole], v);
      }
      T block = lanes[0];
      for (uint k = 1; k < 16; ++k) block = DLB_JOIN(block, lanes[k]);
      total = DLB_JOIN(total, block);
      x += n;
      left -= n;
    }
    partials[item + t] = total;  // items and tensors only ever advance one at a time: no two share a place
  }
}

kernel void dlb_foreach_results(DLB_SEGMENTS, global const ulong* ring, const MultiTensorParams p,
                                global const T* partials, long partials_at) {
  partials += partials_at;
  global const ulong* const start = ring + p.table;
  for (uint t = get_global_id(0); t < p.tensors; t += get_global_size(0)) {
    const ulong first = start[t] / p.per_item + t, last = (start[t + 1] - 1) / p.per_item + t;
    T total = partials[first];
    for (ulong i = first + 1; i <= last; ++i) total = DLB_JOIN(total, partials[i]);
    STORE_B(DLB_AT(B_T, DLB_ROW(t)[2]), 0, DLB_RESULT(total));
  }
}

#else

// Joins one value per work-item; the result is in all of them.
inline T dlb_join_group(T value, local T* shared) {
  const uint me = get_local_id(0);
  shared[me] = value;
  barrier(CLK_LOCAL_MEM_FENCE);
  for (uint width = MULTI_TENSOR_GROUP / 2; width > 0; width /= 2) {
    if (me < width) shared[me] = DLB_JOIN(shared[me], shared[me + width]);
    barrier(CLK_LOCAL_MEM_FENCE);
  }
  return shared[0];
}

kernel void dlb_foreach_partials(DLB_SEGMENTS, global const ulong* ring, const MultiTensorParams p, global T* partials,
                                 long partials_at) {
  partials += partials_at;
  local T shared[MULTI_TENSOR_GROUP];
  global const ulong* const start = ring + p.table;
  const ulong chunk = get_group_id(0);
  const uint t = dlb_find_tensor(start, p.tensors, chunk);
  const ulong first = (chunk - start[t]) * MULTI_TENSOR_CHUNK;
  global const A_T* x = DLB_AT(A_T, DLB_ROW(t)[1]) + first;
  const uint n = (uint)min(DLB_ROW(t)[0] - first, (ulong)MULTI_TENSOR_CHUNK);
  T total = DLB_FIRST;
  for (uint j = get_local_id(0); j < n; j += MULTI_TENSOR_GROUP) {
    const T v = DLB_TERM(LOAD_A(x, j));
    total = DLB_JOIN(total, v);
  }
  total = dlb_join_group(total, shared);
  if (get_local_id(0) == 0) partials[chunk] = total;
}

kernel void dlb_foreach_results(DLB_SEGMENTS, global const ulong* ring, const MultiTensorParams p,
                                global const T* partials, long partials_at) {
  partials += partials_at;
  local T shared[MULTI_TENSOR_GROUP];
  global const ulong* const start = ring + p.table;
  const uint t = get_group_id(0);
  T total = DLB_FIRST;
  for (ulong i = start[t] + get_local_id(0); i < start[t + 1]; i += MULTI_TENSOR_GROUP)
    total = DLB_JOIN(total, partials[i]);
  total = dlb_join_group(total, shared);
  if (get_local_id(0) == 0) STORE_B(DLB_AT(B_T, DLB_ROW(t)[2]), 0, DLB_RESULT(total));
}
#endif
