// clang-format off
// dst[o][index[..]][i] = dst[o][index[..]][i] (op) src[o][n][i] on contiguous tensors. A: dst, B: src, T computes.
// index is [n] or, when full, [o][n][i].
#include "kernels/index/params.h"

inline T dlb_combine(int op, T a, T b) {
#ifdef COMPLEX
  return op == COMBINE_PRODUCT ? dlb_cmul(a, b) : op == COMBINE_LAST ? b : a + b;
#else
  switch (op) {
    case COMBINE_SUM: return a + b;
    case COMBINE_PRODUCT: return a * b;
    case COMBINE_LAST: return b;
    case COMBINE_MAXIMUM: return b > a || b != b ? b : a;
    default: return b < a || b != b ? b : a;
  }
#endif
}

inline long dlb_row(global const int* index, long at, const AccumulateParams* p, volatile global int* error) {
  long i = p->wide ? ((global const long*)index)[p->index_offset + at] : (long)index[p->index_offset + at];
  const long given = i;
  if (i < 0 && p->wraps) i += p->bound;
  if (i < 0 || i >= p->bound) {
    dlb_report(error, p->site, given, p->bound);
    return -1;
  }
  return i;
}

#ifdef C__T  // of sorted indices: int, or long for more rows
#define KEY C__T
// Indices as they are sorted, rows of n: 0 .. bound - 1, or `bound` for those that are out of bounds and do not count.
kernel void dlb_index_keys(global const int* index, global KEY* keys, long keys_offset, volatile global int* error,
                           const AccumulateParams p) {
  const ulong id = get_global_id(0), inner = p.full ? p.inner : 1, outer = p.full ? p.outer : 1;
  if (id >= outer * p.n * inner) return;
  const ulong i = id % inner, k = id / inner % p.n, o = id / inner / p.n;
  const long row = dlb_row(index, id, &p, error);
  keys[keys_offset + (o * inner + i) * p.n + k] = row < 0 ? p.bound : row;
}

// The elements of one segment of equal indices in sorted order, added up by one work-item: no two items write the same
// element, and the order is always the same. `perm` says where in the unsorted order each sorted index was.
kernel void dlb_accumulate_sorted(global A_T* dst, global const B_T* src, global const KEY* keys,
                                  global const int* perm, const AccumulateParams p) {
  enum { TOGETHER = 8 };  // loads that do not wait for each other
  const ulong id = get_global_id(0);
  if (id >= (ulong)p.outer * p.n * p.inner) return;
  const uint i = id % p.inner, k = id / p.inner % p.n;
  const ulong o = id / p.inner / p.n;
  const ulong line = p.full ? (o * p.inner + i) * p.n : 0;
  keys += p.index_offset + line;
  perm += p.perm_offset + line;
  const KEY row = keys[k];
  if (row >= p.bound || (k > 0 && keys[k - 1] == row)) return;
  const ulong to = p.dst_offset + (o * p.bound + row) * p.inner + i;
  src += p.src_offset + o * p.n * p.inner + i;
  T sum = LOAD_A(dst, to);
  uint j = k;
  for (; p.n - j >= TOGETHER && keys[j + TOGETHER - 1] == row; j += TOGETHER) {
    T value[TOGETHER];
#pragma unroll
    for (uint e = 0; e < TOGETHER; ++e) value[e] = LOAD_B(src, (ulong)perm[j + e] * p.inner);
#pragma unroll
    for (uint e = 0; e < TOGETHER; ++e) sum = dlb_combine(p.op, sum, value[e]);
  }
  for (; j < p.n && keys[j] == row; ++j) sum = dlb_combine(p.op, sum, LOAD_B(src, (ulong)perm[j] * p.inner));
  STORE_A(dst, to, sum);
}
#endif

#if DLB_CPU
#ifdef COMPLEX
#define IDENTITY(op) ((T)((op) == COMBINE_PRODUCT, 0))
#else
#define IDENTITY(op) \
  ((op) == COMBINE_SUM ? (T)0 : (op) == COMBINE_PRODUCT ? (T)1 : (op) == COMBINE_MAXIMUM ? (T)T_LOWEST : (T)T_HIGHEST)
#endif

// Rows of a block of indices, tested together so that what follows need not wait for tests. Nonzero: one is out of bounds.
enum { INDEX_BLOCK = 512 };
#define DEFINE_ROWS(name, I_T)                                                                         \
  inline ulong name(global const I_T* index, int n, long bound, long wrap, long* row) {                \
    ulong wrong = 0;                                                                                   \
    _Pragma("clang loop vectorize(assume_safety)") for (int j = 0; j < n; ++j) {                       \
      const long given = index[j], i = given + (given < 0 ? wrap : 0);                                 \
      wrong |= (ulong)i >= (ulong)bound;                                                               \
      row[j] = i;                                                                                      \
    }                                                                                                  \
    return wrong;                                                                                      \
  }
DEFINE_ROWS(dlb_long_rows, long)
DEFINE_ROWS(dlb_int_rows, int)

// Keeps the rows that are one of `rows` from `first` on, and says which of the block they were; reports those that are
// out of bounds. Returns how many.
inline int dlb_keep_own(long* row, int* lane, int n, long first, ulong rows, global const int* index, ulong at,
                        volatile global int* error, const AccumulateParams* p) {
  int kept = 0;
  for (int j = 0; j < n; ++j) {
    const long r = row[j];
    row[kept] = r, lane[kept] = j;
    kept += (ulong)(r - first) < rows;
    if ((ulong)r >= (ulong)p->bound) dlb_row(index, at + j, p, error);
  }
  return kept;
}

#define EACH_ELEMENT(n, j, combined)                              \
  _Pragma("clang loop vectorize(disable) unroll_count(4)") for (int k = 0; k < (n); ++k) { \
    const ulong to = row[k] * inner + (j) * step;                 \
    const T a = LOAD_A(base, to), b = LOAD_B(from, j);            \
    STORE_A(base, to, combined);                                  \
  }

// Combines from[j] into base[index[j] * inner + j * step] where the index is one of `rows` from `first` on.
inline void dlb_run(global A_T* base, global const B_T* from, global const int* index, ulong at, uint count, uint step,
                    long first, ulong rows, volatile global int* error, const AccumulateParams* p) {
  const long bound = p->bound, wrap = p->wraps ? bound : 0;
  const ulong inner = p->inner;
  const int op = p->op, wide = p->wide;
  const ulong place = p->index_offset + at;
  long row[INDEX_BLOCK];
  int lane[INDEX_BLOCK];
  for (uint done = 0; done < count; done += INDEX_BLOCK) {
    const int n = min((uint)INDEX_BLOCK, count - done);
    const ulong wrong = wide ? dlb_long_rows((global const long*)index + place + done, n, bound, wrap, row)
                             : dlb_int_rows(index + place + done, n, bound, wrap, row);
    if (wrong || rows < (ulong)bound) {
      const int kept = dlb_keep_own(row, lane, n, first, rows, index, at + done, error, p);
      if (op == COMBINE_SUM)
        EACH_ELEMENT(kept, lane[k], a + b)
      else
        EACH_ELEMENT(kept, lane[k], dlb_combine(op, a, b))
    } else if (op == COMBINE_SUM && step == 0 && inner == 1) {
      _Pragma("clang loop vectorize(disable) unroll_count(8)") for (int k = 0; k < n; ++k) {
        const long to = row[k];
        STORE_A(base, to, LOAD_A(base, to) + LOAD_B(from, k));
      }
    } else if (op == COMBINE_SUM) {
      EACH_ELEMENT(n, k, a + b)
    } else {
      EACH_ELEMENT(n, k, dlb_combine(op, a, b))
    }
    from += n, base += (ulong)n * step;
  }
}

// Each work-item owns a part of dst (outer slices, inner columns, or a range of rows) and goes through all indices that
// may lead there, in order. Or it goes through a part of the indices and has a copy of dst of its own, which begins
// empty; the first part goes to dst itself.
kernel void dlb_accumulate(global A_T* dst, global A_T* copies, global const B_T* src, global const int* index,
                           volatile global int* error, const AccumulateParams p) {
  const ulong id = get_global_id(0);
  const ulong copy_part = id % p.copy_parts, bound_part = id / p.copy_parts % p.bound_parts,
              inner_part = id / p.copy_parts / p.bound_parts % p.inner_parts,
              outer_part = id / p.copy_parts / p.bound_parts / p.inner_parts;
  const uint o0 = (ulong)p.outer * outer_part / p.outer_parts, o1 = (ulong)p.outer * (outer_part + 1) / p.outer_parts;
  const uint i0 = (ulong)p.inner * inner_part / p.inner_parts, i1 = (ulong)p.inner * (inner_part + 1) / p.inner_parts;
  const uint k0 = (ulong)p.n * copy_part / p.copy_parts, k1 = (ulong)p.n * (copy_part + 1) / p.copy_parts;
  const long r0 = p.bound * bound_part / p.bound_parts, r1 = p.bound * (bound_part + 1) / p.bound_parts;
  const ulong rows = r1 - r0, cells = (ulong)p.outer * p.bound * p.inner;
  dst += p.dst_offset;
  if (copy_part > 0) {
    dst = copies + p.perm_offset + (copy_part - 1) * cells;
    const T identity = IDENTITY(p.op);
    for (ulong c = 0; c < cells; ++c) STORE_A(dst, c, identity);
  }
  for (ulong o = o0; o < o1; ++o) {
    global A_T* base = dst + o * p.bound * p.inner;
    global const B_T* from = src + p.src_offset + o * p.n * p.inner;
    if (p.inner == 1) {
      dlb_run(base, from + k0, index, (p.full ? o * p.n : 0) + k0, k1 - k0, 0, r0, rows, error, &p);
      continue;
    }
    for (ulong k = k0; k < k1; ++k) {
      const ulong line = k * p.inner;
      if (p.full) {
        dlb_run(base + i0, from + line + i0, index, o * p.n * p.inner + line + i0, i1 - i0, 1, r0, rows, error, &p);
        continue;
      }
      const long row = dlb_row(index, k, &p, error);
      if (row < 0 || (ulong)(row - r0) >= rows) continue;
      global A_T* to = base + row * p.inner;
      if (p.op == COMBINE_SUM) {
#pragma clang loop vectorize(assume_safety)
        for (uint i = i0; i < i1; ++i) STORE_A(to, i, LOAD_A(to, i) + LOAD_B(from, line + i));
      } else {
        for (uint i = i0; i < i1; ++i) STORE_A(to, i, dlb_combine(p.op, LOAD_A(to, i), LOAD_B(from, line + i)));
      }
    }
  }
}

// Combines the copies into dst, in order.
kernel void dlb_accumulate_merge(global A_T* dst, global const A_T* copies, const AccumulateParams p, uint per_item) {
  const ulong cells = (ulong)p.outer * p.bound * p.inner;
  const ulong begin = get_global_id(0) * (ulong)per_item, end = min(begin + per_item, cells);
  dst += p.dst_offset;
  for (uint part = 1; part < p.copy_parts; ++part) {
    global const A_T* copy = copies + p.perm_offset + (part - 1) * cells;
    for (ulong c = begin; c < end; ++c) STORE_A(dst, c, dlb_combine(p.op, LOAD_A(dst, c), LOAD_A(copy, c)));
  }
}
#else
#include "common/atomic.clh"
kernel void dlb_accumulate(global A_T* dst, global const B_T* src, global const int* index,
                           volatile global int* error, const AccumulateParams p) {
  const ulong id = get_global_id(0), lines = (ulong)p.outer * p.n;
  if (id >= lines * p.inner) return;
  ulong o = 0;
  uint k = id, i = 0;
  if (p.inner > 1 || p.outer > 1) {  // divisions of 64 bits are slow
    const bool narrow = lines * p.inner <= 0xffffffffu;
    const ulong line = p.inner == 1 ? id : narrow ? (uint)id / p.inner : id / p.inner;
    o = narrow ? (uint)line / p.n : line / p.n;
    i = id - line * p.inner, k = line - o * p.n;
  }
  const T value = LOAD_B(src, p.src_offset + id);
  const long row = dlb_row(index, p.full ? id : k, &p, error);
  if (row < 0) return;
  dlb_atomic_combine(dst + p.dst_offset + (o * p.bound + row) * p.inner + i, p.op, value);
}
#endif
