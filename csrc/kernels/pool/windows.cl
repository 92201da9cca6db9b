// Gradients of pooling where windows do not overlap: each output writes all of its inputs, and nothing is read twice.
#include "pool/pool.clh"

// The inputs [begin, end) that are output o's alone, those between windows included.
inline void owned(PoolAxisParams a, int o, int* begin, int* end) {
  if (a.extent == 0) a.stride = a.in / a.out;
  *begin = o == 0 ? 0 : o * a.stride - a.pad;
  *end = o == a.out - 1 ? a.in : (o + 1) * a.stride - a.pad;
}

inline void backward_windows(global A_T* x, global const A_T* y, global const long* index, PoolParams p, Team team,
                             const int is_max) {
  const PoolAxisParams ad = p.axis[0], ah = p.axis[1], aw = p.axis[2];
  FOR_ROWS(row, team) {
    if (!row_active) continue;
    const dlb_piece at = piece_of(p.lines, row);
    const long from = offset_of(at, p.lines.ys);
    global A_T* to = x + p.x + at.n * p.lines.xs[0] + at.c * p.lines.xs[1];
    int d0, d1, h0, h1, w0, w1, db, de, ds, hb, he, hs, wb, we, ws;
    owned(ad, at.d, &d0, &d1);
    owned(ah, at.h, &h0, &h1);
    window(ad, at.d, p.count_include_pad, &db, &de, &ds);
    window(ah, at.h, p.count_include_pad, &hb, &he, &hs);
    // Neighbours along the width have inputs of their own, along the channels the same ones.
    const int along_width = !p.lines.channels_inner;
    for (int k = 0; k < (along_width ? at.lanes : 1); ++k) {
      owned(aw, at.w + k, &w0, &w1);
      window(aw, at.w + k, p.count_include_pad, &wb, &we, &ws);
      const T divisor = is_max ? 1 : (T)(p.divisor ? p.divisor : ds * hs * ws);
      const long source = from + k * p.lines.ys[4];
      const T one = LOAD_A(y, p.y + source) / divisor;
      const long taken = is_max ? index[p.index + source] : 0;
      for (int d = d0; d < d1; ++d)
        for (int h = h0; h < h1; ++h)
          for (int w = w0; w < w1; ++w) {
            const long place = ((long)d * ah.in + h) * aw.in + w;
            const long offset = d * p.lines.xs[2] + h * p.lines.xs[3] + w * p.lines.xs[4];
            const int inside = d >= db && d < de && h >= hb && h < he && w >= wb && w < we;
            if (along_width) {
              STORE_A(to, offset, (is_max ? taken == place : inside) ? one : (T)0);
            } else {
              FOR_LANES(j, 0, at.lanes) {
                const T g = LOAD_A(y, p.y + source + j * p.lines.ys[1]) / divisor;
                const int takes = is_max ? index[p.index + source + j * p.lines.ys[1]] == place : inside;
                STORE_A(to, offset + j * p.lines.xs[1], takes ? g : (T)0);
              }
            }
          }
    }
  }
}
kernel void max_pool_windows(global A_T* x, global const A_T* y, global const long* index, const PoolParams p,
                             const Team team) {
  backward_windows(x, y, index, p, team, 1);
}
kernel void avg_pool_windows(global A_T* x, global const A_T* y, const PoolParams p, const Team team) {
  backward_windows(x, y, 0, p, team, 0);
}
