// Resizing along up to three axes, any strides, on CPUs and GPUs; and its gradient. A_T: the element type.
#include "common/team.clh"
#include "common/lines.clh"
#include "upsample/taps.clh"

// The positions and the weights of `lanes` neighbours along the width, from w on, of so many taps: [tap][neighbour].
static inline void taps_of_line(ResizeAxis a, int w, int lanes, int taps, int index[4][BLOCK], T weight[4][BLOCK]) {
  int at[4];
  REAL weights[4];
  for (int j = 0; j < lanes; ++j) {
    taps_at(a, w + j, at, weights);
    for (int k = 0; k < taps; ++k) index[k][j] = at[k], weight[k][j] = weights[k];
  }
}

kernel void resize(global const A_T* x, global A_T* y, const ResizeParams p, const Team team) {
  const ResizeAxis ad = p.axis[0], ah = p.axis[1], aw = p.axis[2];
  const int td = taps_of(ad), th = taps_of(ah), tw = taps_of(aw), copies = td * th * tw == 1;
  const long out_hop = p.lines.channels_inner ? p.lines.ys[1] : p.lines.ys[4];
  // Taps along the width, of the piece that begins at `known`: on to the next row, which often has the same.
  int index[4][BLOCK], known = -1;
  T weight[4][BLOCK];
  FOR_ROWS(row, team) {
    if (!row_active) continue;
    const dlb_piece at = piece_of(p.lines, row);
    global const A_T* in = x + p.x + at.n * p.lines.xs[0] + at.c * p.lines.xs[1];
    const long base = p.y + offset_of(at, p.lines.ys);
    int di[4], hi[4], wi[4];
    REAL dw[4], hw[4], ww[4];
    taps_at(ad, at.d, di, dw);
    taps_at(ah, at.h, hi, hw);
    if (copies) {  // exact for integers too
      in += di[0] * p.lines.xs[2] + hi[0] * p.lines.xs[3];
      if (p.lines.channels_inner) {
        in += nearest_of(aw, at.w) * p.lines.xs[4];
        COPY_PIECE(y + base, out_hop, at.lanes, in, j * p.lines.xs[1])
      } else {
#ifdef DLB_CPU
        if (at.w != known) DLB_SIMD for (int j = 0; j < at.lanes; ++j) index[0][j] = nearest_of(aw, at.w + j);
        known = at.w;
        COPY_PIECE(y + base, out_hop, at.lanes, in, index[0][j] * p.lines.xs[4])
#else
        COPY_PIECE(y + base, out_hop, at.lanes, in, nearest_of(aw, at.w + j) * p.lines.xs[4])
#endif
      }
      continue;
    }
    T sum[BLOCK];
    for (int j = 0; j < at.lanes; ++j) sum[j] = 0;
    if (p.lines.channels_inner || at.lanes == 1) {
      taps_at(aw, at.w, wi, ww);
      for (int d = 0; d < td; ++d)
        for (int h = 0; h < th; ++h)
          for (int w = 0; w < tw; ++w) {
            const T weight = dw[d] * hw[h] * ww[w];
            global const A_T* from = in + di[d] * p.lines.xs[2] + hi[h] * p.lines.xs[3] + wi[w] * p.lines.xs[4];
            DLB_SIMD for (int j = 0; j < at.lanes; ++j) sum[j] += weight * LOAD_A(from, j * p.lines.xs[1]);
          }
    } else {
      if (at.w != known) taps_of_line(aw, at.w, at.lanes, tw, index, weight);
      known = at.w;
      for (int d = 0; d < td; ++d)
        for (int h = 0; h < th; ++h) {
          const T common = dw[d] * hw[h];
          global const A_T* from = in + di[d] * p.lines.xs[2] + hi[h] * p.lines.xs[3];
          for (int w = 0; w < tw; ++w)
            DLB_SIMD for (int j = 0; j < at.lanes; ++j) sum[j] +=
                common * weight[w][j] * LOAD_A(from, index[w][j] * p.lines.xs[4]);
        }
    }
    store_piece(y + base, out_hop, at.lanes, sum);
  }
}

// The outputs [first, last] that may read input i: more than do, never fewer.
inline void readers(ResizeAxis a, int i, int* first, int* last) {
  const REAL scale = scale_of(a), reach = a.mode == RESIZE_CUBIC ? 3 : 2;
  *first = i == 0 || scale <= 0 ? 0 : clamp((int)((i - reach) / scale) - 1, 0, a.out - 1);
  *last = i == a.in - 1 || scale <= 0 ? a.out - 1 : clamp((int)((i + reach) / scale) + 1, 0, a.out - 1);
}

// The share of input i in output o.
inline REAL share(ResizeAxis a, int o, int i) {
  int index[4];
  REAL weight[4], sum = 0;
  taps_at(a, o, index, weight);
  const int taps = taps_of(a);
  for (int k = 0; k < taps; ++k) sum += index[k] == i ? weight[k] : 0;
  return sum;
}

#define CHUNK 16

// x: the gradient of the input, written; y: of the output. Every input element gathers from its readers.
kernel void resize_backward(global A_T* x, global const A_T* y, const ResizeParams p, const Team team) {
  const ResizeAxis ad = p.axis[0], ah = p.axis[1], aw = p.axis[2];
  FOR_ROWS(row, team) {
    if (!row_active) continue;
    const dlb_piece at = piece_of(p.lines, row);
    global const A_T* grad = y + p.y + at.n * p.lines.ys[0] + at.c * p.lines.ys[1];
    int d0, d1, h0, h1, w0, w1;
    readers(ad, at.d, &d0, &d1);
    readers(ah, at.h, &h0, &h1);
    readers(aw, at.w, &w0, &w1);
    T sum[BLOCK], shares[CHUNK];
    for (int j = 0; j < at.lanes; ++j) sum[j] = 0;
    for (int begin = w0; begin <= w1; begin += CHUNK) {
      const int count = min(CHUNK, w1 + 1 - begin);
      for (int w = 0; w < count; ++w) shares[w] = share(aw, begin + w, at.w);
      for (int d = d0; d <= d1; ++d) {
        const T of_d = share(ad, d, at.d);
        if (of_d == 0) continue;
        for (int h = h0; h <= h1; ++h) {
          const T common = of_d * share(ah, h, at.h);
          if (common == 0) continue;
          global const A_T* from = grad + d * p.lines.ys[2] + h * p.lines.ys[3] + begin * p.lines.ys[4];
          for (int w = 0; w < count; ++w) {
            if (shares[w] == 0) continue;
            const T weight = common * shares[w];
            DLB_SIMD for (int j = 0; j < at.lanes; ++j) sum[j] +=
                weight * LOAD_A(from, w * p.lines.ys[4] + j * p.lines.ys[1]);
          }
        }
      }
    }
    const long to = p.x + offset_of(at, p.lines.xs);
    for (int j = 0; j < at.lanes; ++j) STORE_A(x, to + j * p.lines.xs[1], sum[j]);
  }
}
