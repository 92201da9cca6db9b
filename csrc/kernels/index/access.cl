// clang-format off
// Moves elements of any type between a plain side x and an indexed side y, over a strided walk of up to INDEX_RANK
// dimensions: x[...] = y[... + index[...] * step], or the other way round. E is an unsigned type of the
// element's size. Without an index it is a strided copy that also takes negative strides.
#include "kernels/index/params.h"

// Offset into y for the index at `at`; -1 for one out of bounds.
inline long dlb_lookup(global const int* index, long at, const IndexWalk* w, volatile global int* error) {
  long i = w->wide ? ((global const long*)index)[at] : (long)index[at];
  const long given = i;
  if (i < 0 && w->wraps) i += w->bound;
  if (i < 0 || i >= w->bound) {
    dlb_report(error, w->site, given, w->bound);
    return -1;
  }
  return i * w->step;
}

#if DLB_CPU
inline void dlb_run(global E* to, long to_stride, global const E* from, long from_stride, uint n) {
  if (to_stride == 1 && from_stride == 1) {
#pragma clang loop vectorize(assume_safety)
    for (uint j = 0; j < n; ++j) to[j] = from[j];
  } else if (to_stride == 1 && from_stride == 0) {
    const E value = from[0];
    for (uint j = 0; j < n; ++j) to[j] = value;
  } else {
    for (uint j = 0; j < n; ++j) to[j * to_stride] = from[j * from_stride];
  }
}

// Places in y of a block of indices. They are tested together, so that the loads they lead to need not wait for tests.
// Nonzero: one is out of bounds.
enum { INDEX_BLOCK = 512 };
#define DEFINE_PLACES(name, I_T)                                                                          \
  inline ulong name(global const I_T* index, long si, int n, long bound, long wrap, long step, long* place) { \
    ulong wrong = 0;                                                                                      \
    _Pragma("clang loop vectorize(assume_safety)") for (int j = 0; j < n; ++j) {                          \
      const long given = index[j * si], i = given + (given < 0 ? wrap : 0);                               \
      wrong |= (ulong)i >= (ulong)bound;                                                                  \
      place[j] = i * step;                                                                                \
    }                                                                                                     \
    return wrong;                                                                                         \
  }
DEFINE_PLACES(dlb_long_places, long)
DEFINE_PLACES(dlb_int_places, int)
inline ulong dlb_places(global const int* index, long at, long si, int n, const IndexWalk* w, long* place) {
  const long bound = w->bound, wrap = w->wraps ? bound : 0, step = w->step;
  if (!w->wide)
    return si == 1 ? dlb_int_places(index + at, 1, n, bound, wrap, step, place)
                   : dlb_int_places(index + at, si, n, bound, wrap, step, place);
  global const long* const wide = (global const long*)index + at;
  return si == 1 ? dlb_long_places(wide, 1, n, bound, wrap, step, place)
                 : dlb_long_places(wide, si, n, bound, wrap, step, place);
}

// A run whose elements have an index each. Writes stay in order.
inline void dlb_scattered_run(global E* x, global E* y, global const int* index, long at, volatile global int* error,
                              const IndexWalk* w, uint n) {
  const long sx = w->stride[PLAIN][0], sy = w->stride[INDEXED][0], si = w->stride[INDEX][0];
  const int write = w->write;
  long place[INDEX_BLOCK];
  for (uint first = 0; first < n; first += INDEX_BLOCK) {
    const int count = min((uint)INDEX_BLOCK, n - first);
    global E* to = x + first * sx;
    global E* from = y + first * sy;
    if (dlb_places(index, at + first * si, si, count, w, place)) {
      for (int j = 0; j < count; ++j) {
        const long offset = dlb_lookup(index, at + (first + j) * si, w, error);
        if (!write)
          to[j * sx] = offset >= 0 ? from[j * sy + offset] : (E)0;
        else if (offset >= 0)
          from[j * sy + offset] = to[j * sx];
      }
    } else if (write) {
      for (int j = 0; j < count; ++j) from[j * sy + place[j]] = to[j * sx];
    } else if (sx == 1 && sy == 0) {
#pragma clang loop vectorize(disable) unroll_count(8)
      for (int j = 0; j < count; ++j) to[j] = from[place[j]];
    } else {
#pragma clang loop vectorize(disable) unroll_count(4)
      for (int j = 0; j < count; ++j) to[j * sx] = from[j * sy + place[j]];
    }
  }
}

inline void dlb_indexed_run(global E* x, global E* y, global const int* index, long at,
                            volatile global int* error, const IndexWalk* w, uint n) {
  if (w->stride[INDEX][0] != 0) return dlb_scattered_run(x, y, index, at, error, w, n);
  const long sx = w->stride[PLAIN][0], sy = w->stride[INDEXED][0];
  const long offset = w->indexed ? dlb_lookup(index, at, w, error) : 0;
  if (offset < 0) {
    if (!w->write)
      for (uint j = 0; j < n; ++j) x[j * sx] = (E)0;
  } else if (w->write) {
    dlb_run(y + offset, sy, x, sx, n);
  } else {
    dlb_run(x, sx, y + offset, sy, n);
  }
}

kernel void dlb_index_move(global E* x, global E* y, global const int* index, volatile global int* error,
                           const IndexWalk w) {
  uint at = get_global_id(0) * w.per_item;
  const uint end = min(at + w.per_item, w.count);
  uint k[INDEX_RANK];
  uint rest = at;
  long ox = w.base[PLAIN], oy = w.base[INDEXED], oi = w.base[INDEX];
  for (uint d = 0; d < w.rank; ++d) {
    const uint q = rest / w.size[d].divisor;
    k[d] = rest - q * w.size[d].divisor;
    rest = q;
    ox += k[d] * w.stride[PLAIN][d], oy += k[d] * w.stride[INDEXED][d], oi += k[d] * w.stride[INDEX][d];
  }
  while (at < end) {
    const uint n = min(w.size[0].divisor - k[0], end - at);
    dlb_indexed_run(x + ox, y + oy, index, oi, error, &w, n);
    at += n;
    ox -= k[0] * w.stride[PLAIN][0], oy -= k[0] * w.stride[INDEXED][0], oi -= k[0] * w.stride[INDEX][0];
    k[0] = 0;
    for (uint d = 1; d < w.rank; ++d) {
      ox += w.stride[PLAIN][d], oy += w.stride[INDEXED][d], oi += w.stride[INDEX][d];
      if (++k[d] < w.size[d].divisor) break;
      const long size = w.size[d].divisor;
      ox -= size * w.stride[PLAIN][d], oy -= size * w.stride[INDEXED][d], oi -= size * w.stride[INDEX][d];
      k[d] = 0;
    }
  }
}
#else
// An index as it was read: the offset into y, or -1 for one out of bounds.
inline long dlb_offset_of(long given, const IndexWalk* w, volatile global int* error) {
  const long i = given + (given < 0 && w->wraps ? w->bound : 0);
  if (i >= 0 && i < w->bound) return i * w->step;
  dlb_report(error, w->site, given, w->bound);
  return -1;
}

// Moves `N` elements that are `hop` apart. All indices are read before any is tested, and all elements before any is
// written, so that these loads do not wait for each other.
#define DEFINE_MOVE(name, N)                                                                                       \
  inline void name(global E* x, global E* y, global const int* index, volatile global int* error,                  \
                   const IndexWalk* w, uint first, uint hop) {                                                     \
    long ox[N], oy[N], given[N];                                                                                   \
    E value[N];                                                                                                    \
    _Pragma("unroll") for (uint e = 0; e < N; ++e) {                                                               \
      uint rest = min(first + e * hop, w->count - 1);                                                              \
      long oi = w->base[INDEX];                                                                                    \
      ox[e] = w->base[PLAIN], oy[e] = w->base[INDEXED];                                                            \
      for (uint d = 0; d < w->rank; ++d) {                                                                         \
        const uint q = d + 1 == w->rank ? 0 : dlb_divide(rest, w->size[d]);                                        \
        const long k = rest - q * w->size[d].divisor;                                                              \
        rest = q;                                                                                                  \
        ox[e] += k * w->stride[PLAIN][d], oy[e] += k * w->stride[INDEXED][d], oi += k * w->stride[INDEX][d];       \
      }                                                                                                            \
      given[e] = !w->indexed ? 0 : w->wide ? ((global const long*)index)[oi] : (long)index[oi];                    \
    }                                                                                                              \
    _Pragma("unroll") for (uint e = 0; e < N; ++e) {                                                               \
      const long offset = !w->indexed ? 0 : dlb_offset_of(given[e], w, error);                                     \
      oy[e] = offset < 0 || first + e * hop >= w->count ? -1 : oy[e] + offset;                                     \
    }                                                                                                              \
    _Pragma("unroll") for (uint e = 0; e < N; ++e)                                                                 \
      value[e] = oy[e] < 0 ? (E)0 : w->write ? x[ox[e]] : y[oy[e]];                                                \
    _Pragma("unroll") for (uint e = 0; e < N; ++e) {                                                               \
      if (w->write && oy[e] >= 0) y[oy[e]] = value[e];                                                             \
      if (!w->write && first + e * hop < w->count) x[ox[e]] = value[e];                                            \
    }                                                                                                              \
  }
DEFINE_MOVE(dlb_move_one, 1)
DEFINE_MOVE(dlb_move_some, INDEX_TOGETHER)

kernel void dlb_index_move(global E* x, global E* y, global const int* index, volatile global int* error,
                           const IndexWalk w) {
  const uint first = get_global_id(0), hop = get_global_size(0);
  if (first >= w.count) return;
  if (w.per_item == 1)
    dlb_move_one(x, y, index, error, &w, first, hop);
  else
    dlb_move_some(x, y, index, error, &w, first, hop);
}
#endif

// Turns one index tensor of several into element offsets, added up in `offsets` (contiguous, int64):
// offsets[i] = (first ? 0 : offsets[i]) + index * step. An index out of bounds adds nothing.
kernel void dlb_index_linear(global long* offsets, global const int* index, volatile global int* error,
                             const IndexWalk w, int first) {
  const uint begin = get_global_id(0) * w.per_item;
  const uint end = min(begin + w.per_item, w.count);
#if DLB_CPU
  if (w.rank == 1) {
    const long base = w.base[INDEX], si = w.stride[INDEX][0];
    global long* const to = offsets + w.base[PLAIN];
    long place[INDEX_BLOCK];
    for (uint block = begin; block < end; block += INDEX_BLOCK) {
      const int n = min((uint)INDEX_BLOCK, end - block);
      if (dlb_places(index, base + block * si, si, n, &w, place))
        for (int j = 0; j < n; ++j) place[j] = max(dlb_lookup(index, base + (block + j) * si, &w, error), 0L);
      for (int j = 0; j < n; ++j) to[block + j] = first ? place[j] : to[block + j] + place[j];
    }
    return;
  }
#endif
  for (uint i = begin; i < end; ++i) {
    uint rest = i;
    long at = w.base[INDEX];
    for (uint d = 0; d < w.rank; ++d) {
      const uint q = dlb_divide(rest, w.size[d]);
      at += (rest - q * w.size[d].divisor) * w.stride[INDEX][d];
      rest = q;
    }
    const long offset = max(dlb_lookup(index, at, &w, error), 0L);
    offsets[w.base[PLAIN] + i] = first ? offset : offsets[w.base[PLAIN] + i] + offset;
  }
}
