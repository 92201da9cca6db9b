// dst[o][index[..]][i] = dst[o][index[..]][i] (op) src[o][n][i] on contiguous tensors. A: dst, B: src, T computes.
// index is [n] or, when full, [o][n][i].
typedef struct {
  long dst_offset, src_offset, index_offset, perm_offset;  // elements
  long bound;                                              // size of dst's indexed dimension
  uint outer, n, inner;
  int full, wide, wraps, site, op;              // op: 0 sum, 1 product, 2 maximum, 3 minimum
  uint outer_parts, inner_parts, bound_parts;  // CPU: how the work-items divide the work
  int padding;
} dlb_accumulation;

inline T dlb_combine(int op, T a, T b) {
#ifdef COMPLEX
  return op == 1 ? dlb_cmul(a, b) : a + b;
#else
  switch (op) {
    case 0: return a + b;
    case 1: return a * b;
    case 2: return b > a || b != b ? b : a;
    default: return b < a || b != b ? b : a;
  }
#endif
}

inline long dlb_row(global const int* index, long at, const dlb_accumulation* p, volatile global int* error) {
  long i = p->wide ? ((global const long*)index)[p->index_offset + at] : (long)index[p->index_offset + at];
  const long given = i;
  if (i < 0 && p->wraps) i += p->bound;
  if (i < 0 || i >= p->bound) {
    dlb_report(error, p->site, given, p->bound);
    return -1;
  }
  return i;
}

// The elements of one segment of equal indices in sorted order, added up by one work-item: no two items write the same
// element, and the order is always the same. `perm` says where in the unsorted order each sorted index was.
kernel void dlb_accumulate_sorted(global A_T* dst, global const B_T* src, global const int* index,
                                  global const long* perm, volatile global int* error, const dlb_accumulation p) {
  const ulong id = get_global_id(0);
  if (id >= (ulong)p.outer * p.n * p.inner) return;
  const uint i = id % p.inner, k = id / p.inner % p.n;
  const ulong o = id / p.inner / p.n;
  const ulong line = p.full ? o * p.n * p.inner + i : 0, step = p.full ? p.inner : 1;
  const long row = dlb_row(index, line + k * step, &p, error);
  if (row < 0 || (k > 0 && dlb_row(index, line + (k - 1) * step, &p, error) == row)) return;
  const ulong to = p.dst_offset + (o * p.bound + row) * p.inner + i;
  T sum = LOAD_A(dst, to);
  for (uint j = k; j < p.n && dlb_row(index, line + j * step, &p, error) == row; ++j) {
    const ulong from = perm[p.perm_offset + line + j * step];
    sum = dlb_combine(p.op, sum, LOAD_B(src, p.src_offset + (o * p.n + from) * p.inner + i));
  }
  STORE_A(dst, to, sum);
}

#if DLB_CPU
// Each work-item owns a part of dst (outer slices, inner columns, or a range of rows) and goes through all indices that
// may lead there, in order.
kernel void dlb_accumulate(global A_T* dst, global const B_T* src, global const int* index,
                           volatile global int* error, const dlb_accumulation p) {
  const ulong id = get_global_id(0);
  const ulong bound_part = id % p.bound_parts, inner_part = id / p.bound_parts % p.inner_parts,
              outer_part = id / p.bound_parts / p.inner_parts;
  const uint o0 = p.outer * outer_part / p.outer_parts, o1 = p.outer * (outer_part + 1) / p.outer_parts;
  const uint i0 = p.inner * inner_part / p.inner_parts, i1 = p.inner * (inner_part + 1) / p.inner_parts;
  const long r0 = p.bound * bound_part / p.bound_parts, r1 = p.bound * (bound_part + 1) / p.bound_parts;
  for (ulong o = o0; o < o1; ++o)
    for (ulong k = 0; k < p.n; ++k) {
      global const B_T* from = src + p.src_offset + (o * p.n + k) * p.inner;
      global A_T* base = dst + p.dst_offset + o * p.bound * p.inner;
      if (p.full) {
        const ulong at = (o * p.n + k) * p.inner;
        for (uint i = i0; i < i1; ++i) {
          const long row = dlb_row(index, at + i, &p, error);
          if (row < 0 || row < r0 || row >= r1) continue;
          const ulong to = row * p.inner + i;
          STORE_A(base, to, dlb_combine(p.op, LOAD_A(base, to), LOAD_B(from, i)));
        }
        continue;
      }
      const long row = dlb_row(index, k, &p, error);
      if (row < 0 || row < r0 || row >= r1) continue;
      base += row * p.inner;
      if (p.op == 0) {
#pragma clang loop vectorize(assume_safety)
        for (uint i = i0; i < i1; ++i) STORE_A(base, i, LOAD_A(base, i) + LOAD_B(from, i));
      } else {
        for (uint i = i0; i < i1; ++i) STORE_A(base, i, dlb_combine(p.op, LOAD_A(base, i), LOAD_B(from, i)));
      }
    }
}
#else
// Replaces the element by its combination with `value`; other work-items may do the same to it or its neighbours.
#if DLB_BYTES == 8
#pragma OPENCL EXTENSION cl_khr_int64_base_atomics : enable
inline void dlb_atomic_combine(global A_T* at, int op, T value) {
  volatile global long* word = (volatile global long*)at;
  long seen = *word, old;
  do {
    old = seen;
    A_T element;
    element = *(A_T*)&old;
    STORE_A(&element, 0, dlb_combine(op, LOAD_A(&element, 0), value));
    seen = atom_cmpxchg(word, old, *(long*)&element);
  } while (seen != old);
}
#else
// Elements narrower than a word are replaced inside it.
inline void dlb_atomic_combine(global A_T* at, int op, T value) {
  const uint shift = ((uint)(size_t)at & 3u) * 8;
  volatile global int* word = (volatile global int*)((size_t)at & ~(size_t)3);
  const uint mask = DLB_BYTES == 4 ? ~0u : (((1u << (8 * DLB_BYTES % 32)) - 1) << shift);
  int seen = *word, old;
  do {
    old = seen;
    const uint bits = ((uint)old & mask) >> shift;
    A_T element = *(A_T*)&bits;
    STORE_A(&element, 0, dlb_combine(op, LOAD_A(&element, 0), value));
    uint fresh = 0;
    *(A_T*)&fresh = element;
    seen = atomic_cmpxchg(word, old, (int)(((uint)old & ~mask) | (fresh << shift)));
  } while (seen != old);
}
#endif
kernel void dlb_accumulate(global A_T* dst, global const B_T* src, global const int* index,
                           volatile global int* error, const dlb_accumulation p) {
  const ulong id = get_global_id(0);
  if (id >= (ulong)p.outer * p.n * p.inner) return;
  const uint i = id % p.inner, k = id / p.inner % p.n;
  const ulong o = id / p.inner / p.n;
  const long row = dlb_row(index, p.full ? id : k, &p, error);
  if (row < 0) return;
  dlb_atomic_combine(dst + p.dst_offset + (o * p.bound + row) * p.inner + i, p.op, LOAD_B(src, p.src_offset + id));
}
#endif
