// The reference that the other pooling kernels are checked against: an element of the result per work-item, and nothing
// held in arrays. Also possible indices for trials.
#include "pool/pool.clh"

typedef struct {
  int n, c, d, h, w;
} pool_position;
inline pool_position position_of(uint i, int channels, int depth, int height, int width) {
  pool_position at;
  at.w = i % width, i /= width;
  at.h = i % height, i /= height;
  at.d = i % depth, i /= depth;
  at.c = i % channels, at.n = i / channels;
  return at;
}
inline long place_of(pool_position at, const long* strides) {
  return at.n * strides[0] + at.c * strides[1] + at.d * strides[2] + at.h * strides[3] + at.w * strides[4];
}

inline void forward_reference(global const A_T* x, global A_T* y, global long* index, PoolParams p, Team team,
                              const int is_max) {
  const PoolAxisParams ad = p.axis[0], ah = p.axis[1], aw = p.axis[2];
  FOR_ROWS(row, team) {
    if (!row_active) continue;
    pool_position at = position_of(row, p.lines.channels, ad.out, ah.out, aw.out);
    const long to = place_of(at, p.lines.ys);
    int d0, d1, h0, h1, w0, w1, ds, hs, ws;
    window(ad, at.d, !is_max && p.count_include_pad, &d0, &d1, &ds);
    window(ah, at.h, !is_max && p.count_include_pad, &h0, &h1, &hs);
    window(aw, at.w, !is_max && p.count_include_pad, &w0, &w1, &ws);
    T value = is_max ? (T)T_LOWEST : (T)0;
    long place = ((long)d0 * ah.in + h0) * aw.in + w0;
    for (at.d = d0; at.d < d1; at.d += ad.dilation)
      for (at.h = h0; at.h < h1; at.h += ah.dilation)
        for (at.w = w0; at.w < w1; at.w += aw.dilation) {
          const T v = LOAD_A(x, p.x + place_of(at, p.lines.xs));
          if (!is_max) value += v;
          else if (v > value || v != v) value = v, place = ((long)at.d * ah.in + at.h) * aw.in + at.w;
        }
    STORE_A(y, p.y + to, is_max ? value : value / (T)(p.divisor ? p.divisor : ds * hs * ws));
    if (is_max) index[p.index + to] = place;
  }
}
kernel void max_pool_reference(global const A_T* x, global A_T* y, global long* index, const PoolParams p,
                               const Team team) {
  forward_reference(x, y, index, p, team, 1);
}
kernel void avg_pool_reference(global const A_T* x, global A_T* y, const PoolParams p, const Team team) {
  forward_reference(x, y, 0, p, team, 0);
}

inline void backward_reference(global A_T* x, global const A_T* y, global const long* index, PoolParams p, Team team,
                               const int is_max) {
  const PoolAxisParams ad = p.axis[0], ah = p.axis[1], aw = p.axis[2];
  FOR_ROWS(row, team) {
    if (!row_active) continue;
    pool_position at = position_of(row, p.lines.channels, ad.in, ah.in, aw.in);
    const long to = place_of(at, p.lines.xs), place = ((long)at.d * ah.in + at.h) * aw.in + at.w;
    int d0, d1, h0, h1, w0, w1, ds, hs, ws, start, end;
    covering(ad, at.d, &d0, &d1);
    covering(ah, at.h, &h0, &h1);
    covering(aw, at.w, &w0, &w1);
    T sum = 0;
    for (at.d = d0; at.d <= d1; ++at.d)
      for (at.h = h0; at.h <= h1; ++at.h)
        for (at.w = w0; at.w <= w1; ++at.w) {
          const long from = place_of(at, p.lines.ys);
          const T g = LOAD_A(y, p.y + from);
          if (is_max) {
            if (index[p.index + from] == place) sum += g;
            continue;
          }
          window(ad, at.d, p.count_include_pad, &start, &end, &ds);
          window(ah, at.h, p.count_include_pad, &start, &end, &hs);
          window(aw, at.w, p.count_include_pad, &start, &end, &ws);
          sum += g / (T)(p.divisor ? p.divisor : ds * hs * ws);
        }
    STORE_A(x, p.x + to, sum);
  }
}
kernel void max_pool_reference_backward(global A_T* x, global const A_T* y, global const long* index,
                                        const PoolParams p, const Team team) {
  backward_reference(x, y, index, p, team, 1);
}
kernel void avg_pool_reference_backward(global A_T* x, global const A_T* y, const PoolParams p, const Team team) {
  backward_reference(x, y, 0, p, team, 0);
}

// Indices as a max pool could give, for trials: any position of each window.
inline long any_of(PoolAxisParams a, int o, uint* seed) {
  int start, end, size;
  window(a, o, 0, &start, &end, &size);
  *seed = *seed * 1664525u + 1013904223u;
  const uint places = max((end - start + a.dilation - 1) / a.dilation, 1);
  return start + (int)((*seed >> 8) % places) * a.dilation;
}
kernel void max_pool_any_indices(global long* index, const PoolParams p, const Team team) {
  const PoolAxisParams ad = p.axis[0], ah = p.axis[1], aw = p.axis[2];
  FOR_ROWS(row, team) {
    if (!row_active) continue;
    const pool_position at = position_of(row, p.lines.channels, ad.out, ah.out, aw.out);
    uint seed = row;
    const long d = any_of(ad, at.d, &seed), h = any_of(ah, at.h, &seed), w = any_of(aw, at.w, &seed);
    index[p.index + place_of(at, p.lines.ys)] = (d * ah.in + h) * aw.in + w;
  }
}
