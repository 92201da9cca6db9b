// Gradients of pooling: every input element sums over the outputs whose windows hold it. Here x is the input's
// gradient, written, and y the output's. Neighbours along the width go through the windows that hold any of them
// together.
#include "pool/pool.clh"

kernel void max_pool_gather(global A_T* x, global const A_T* y, global const long* index, const PoolParams p,
                            const Team team) {
  const PoolAxisParams ad = p.axis[0], ah = p.axis[1], aw = p.axis[2];
  FOR_ROWS(row, team) {
    if (!row_active) continue;
    const dlb_piece at = piece_of(p.lines, row);
    const long place = ((long)at.d * ah.in + at.h) * aw.in + at.w;
    const long base = at.n * p.lines.ys[0] + at.c * p.lines.ys[1];
    const int along_width = !p.lines.channels_inner && BLOCK > 1;
    int d0, d1, h0, h1, w0, w1, unused;
    covering(ad, at.d, &d0, &d1);
    covering(ah, at.h, &h0, &h1);
    covering(aw, at.w, &w0, &w1);
    if (along_width) covering(aw, at.w + at.lanes - 1, &unused, &w1);
    T sum[BLOCK];
    FOR_LANES(j, 0, at.lanes) sum[j] = 0;
    for (int d = d0; d <= d1; ++d)
      for (int h = h0; h <= h1; ++h)
        for (int w = w0; w <= w1; ++w) {
          const long o = base + d * p.lines.ys[2] + h * p.lines.ys[3] + w * p.lines.ys[4];
          if (along_width) {
            const long taken = index[p.index + o];
            const T g = LOAD_A(y, p.y + o);
            FOR_LANES(j, 0, at.lanes) sum[j] += taken == place + j ? g : (T)0;
          } else {
            FOR_LANES(j, 0, at.lanes) {
              const T g = LOAD_A(y, p.y + o + j * p.lines.ys[1]);
              sum[j] += index[p.index + o + j * p.lines.ys[1]] == place ? g : (T)0;
            }
          }
        }
    const long to = p.x + offset_of(at, p.lines.xs), hop = along_width ? p.lines.xs[4] : p.lines.xs[1];
    store_piece(x + to, hop, at.lanes, sum);
  }
}

kernel void avg_pool_gather(global A_T* x, global const A_T* y, const PoolParams p, const Team team) {
  const PoolAxisParams ad = p.axis[0], ah = p.axis[1], aw = p.axis[2];
  FOR_ROWS(row, team) {
    if (!row_active) continue;
    const dlb_piece at = piece_of(p.lines, row);
    const int along_width = !p.lines.channels_inner && BLOCK > 1;
    const long base = p.y + at.n * p.lines.ys[0] + at.c * p.lines.ys[1];
    T sum[BLOCK];
    FOR_LANES(j, 0, at.lanes) sum[j] = 0;
    int d0, d1, h0, h1, w0, w1, ds, hs, ws, start, end;
    covering(ad, at.d, &d0, &d1);
    covering(ah, at.h, &h0, &h1);
    covering(aw, at.w, &w0, &w1);
    if (along_width) covering(aw, at.w + at.lanes - 1, &start, &w1);
    for (int d = d0; d <= d1; ++d) {
      window(ad, d, p.count_include_pad, &start, &end, &ds);
      for (int h = h0; h <= h1; ++h) {
        window(ah, h, p.count_include_pad, &start, &end, &hs);
        for (int w = w0; w <= w1; ++w) {
          window(aw, w, p.count_include_pad, &start, &end, &ws);
          const T divisor = (T)(p.divisor ? p.divisor : ds * hs * ws);
          const long o = base + d * p.lines.ys[2] + h * p.lines.ys[3] + w * p.lines.ys[4];
          if (along_width) {
            const T share = LOAD_A(y, o) / divisor;
            FOR_LANES(j, 0, at.lanes) sum[j] += at.w + j >= start && at.w + j < end ? share : (T)0;
          } else {
            FOR_LANES(j, 0, at.lanes) sum[j] += LOAD_A(y, o + j * p.lines.ys[1]) / divisor;
          }
        }
      }
    }
    const long to = p.x + offset_of(at, p.lines.xs), hop = along_width ? p.lines.xs[4] : p.lines.xs[1];
    store_piece(x + to, hop, at.lanes, sum);
  }
}
