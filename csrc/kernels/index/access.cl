// Moves elements of any type between a plain side x and an indexed side y, over a strided walk of up to RANK
// dimensions: x[...] = y[... + index[...] * step], or the other way round. E is an unsigned type of the
// element's size. Without an index it is a strided copy that also takes negative strides.
#define RANK 8

typedef struct {
  long base[3];  // elements: x, y, index
  long stride[3][RANK];
  dlb_divider size[RANK];  // innermost first
  long bound;              // valid indices are 0 .. bound - 1
  long step;               // elements of y per unit of index
  uint rank, count, per_item;
  int wide;   // the index is int64, not int32
  int wraps;  // negative indices count from the end
  int write;  // from x to y
  int site;
  int indexed;  // 0: there is no index
} dlb_walk;

// Offset into y for the index at `at`; -1 for one out of bounds.
inline long dlb_lookup(global const int* index, long at, const dlb_walk* w, volatile global int* error) {
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

inline void dlb_indexed_run(global E* x, global E* y, global const int* index, long at,
                            volatile global int* error, const dlb_walk* w, uint n) {
  const long sx = w->stride[0][0], sy = w->stride[1][0], si = w->stride[2][0];
  if (si == 0) {
    const long offset = w->indexed ? dlb_lookup(index, at, w, error) : 0;
    if (offset < 0) {
      if (!w->write)
        for (uint j = 0; j < n; ++j) x[j * sx] = (E)0;
    } else if (w->write) {
      dlb_run(y + offset, sy, x, sx, n);
    } else {
      dlb_run(x, sx, y + offset, sy, n);
    }
    return;
  }
  for (uint j = 0; j < n; ++j) {
    const long offset = dlb_lookup(index, at + j * si, w, error);
    if (w->write) {
      if (offset >= 0) y[j * sy + offset] = x[j * sx];
    } else {
      x[j * sx] = offset >= 0 ? y[j * sy + offset] : (E)0;
    }
  }
}

kernel void dlb_index_move(global E* x, global E* y, global const int* index, volatile global int* error,
                           const dlb_walk w) {
  uint at = get_global_id(0) * w.per_item;
  const uint end = min(at + w.per_item, w.count);
  uint k[RANK];
  uint rest = at;
  long ox = w.base[0], oy = w.base[1], oi = w.base[2];
  for (uint d = 0; d < w.rank; ++d) {
    const uint q = rest / w.size[d].divisor;
    k[d] = rest - q * w.size[d].divisor;
    rest = q;
    ox += k[d] * w.stride[0][d], oy += k[d] * w.stride[1][d], oi += k[d] * w.stride[2][d];
  }
  while (at < end) {
    const uint n = min(w.size[0].divisor - k[0], end - at);
    dlb_indexed_run(x + ox, y + oy, index, oi, error, &w, n);
    at += n;
    ox -= k[0] * w.stride[0][0], oy -= k[0] * w.stride[1][0], oi -= k[0] * w.stride[2][0];
    k[0] = 0;
    for (uint d = 1; d < w.rank; ++d) {
      ox += w.stride[0][d], oy += w.stride[1][d], oi += w.stride[2][d];
      if (++k[d] < w.size[d].divisor) break;
      const long size = w.size[d].divisor;
      ox -= size * w.stride[0][d], oy -= size * w.stride[1][d], oi -= size * w.stride[2][d];
      k[d] = 0;
    }
  }
}
#else
kernel void dlb_index_move(global E* x, global E* y, global const int* index, volatile global int* error,
                           const dlb_walk w) {
  uint rest = get_global_id(0);
  if (rest >= w.count) return;
  long ox = w.base[0], oy = w.base[1], oi = w.base[2];
  for (uint d = 0; d < w.rank; ++d) {
    const uint q = dlb_divide(rest, w.size[d]);
    const long k = rest - q * w.size[d].divisor;
    rest = q;
    ox += k * w.stride[0][d], oy += k * w.stride[1][d], oi += k * w.stride[2][d];
  }
  const long offset = w.indexed ? dlb_lookup(index, oi, &w, error) : 0;
  if (w.write) {
    if (offset >= 0) y[oy + offset] = x[ox];
  } else {
    x[ox] = offset >= 0 ? y[oy + offset] : (E)0;
  }
}
#endif

// Turns one index tensor of several into element offsets, added up in `offsets` (contiguous, int64):
// offsets[i] = (first ? 0 : offsets[i]) + index * step. An index out of bounds adds nothing.
kernel void dlb_index_linear(global long* offsets, global const int* index, volatile global int* error,
                             const dlb_walk w, int first) {
  const uint begin = get_global_id(0) * w.per_item;
  const uint end = min(begin + w.per_item, w.count);
  for (uint i = begin; i < end; ++i) {
    uint rest = i;
    long at = w.base[2];
    for (uint d = 0; d < w.rank; ++d) {
      const uint q = dlb_divide(rest, w.size[d]);
      at += (rest - q * w.size[d].divisor) * w.stride[2][d];
      rest = q;
    }
    const long offset = max(dlb_lookup(index, at, &w, error), 0L);
    offsets[w.base[0] + i] = first ? offset : offsets[w.base[0] + i] + offset;
  }
}
