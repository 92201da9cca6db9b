// clang-format off
// Pooling, where a work-item takes neighbours of a line of the result: max_pool and avg_pool forward.
#include "pool/pool.clh"

// For which lanes [*low, *high) tap k of a regular window is inside the input.
inline void inside(PoolAxisParams a, int first, int lanes, int k, int* low, int* high) {
  const int shift = first * a.stride - a.pad + k * a.dilation, room = a.in - 1 - shift;
  *low = shift >= 0 ? 0 : (-shift + a.stride - 1) / a.stride;
  *high = room < 0 ? 0 : min(lanes, room / a.stride + 1);
}

// Takes the maximum of lanes [low, high) with elements `hop` apart; lane j's element is at position first + j * pace.
inline void scan_max(global const A_T* from, long hop, int first, int pace, int low, int high, T* best, int* place) {
  FOR_LANES(j, low, high) {
    const T v = LOAD_A(from, j * hop);
    const int take = v > best[j] || v != v;
    best[j] = take ? v : best[j];
    place[j] = take ? first + j * pace : place[j];
  }
}
inline void scan_sum(global const A_T* from, long hop, int low, int high, T* sum) {
  FOR_LANES(j, low, high) sum[j] += LOAD_A(from, j * hop);
}
// The usual distances as constants: loads without a gather. (No variadic macros: OpenCL C has none.)
#define SCAN_MAX(from, hop, first, pace, low, high)               \
  {                                                               \
    if (hop == 1)                                                 \
      scan_max(from, 1, first, pace, low, high, best, place);     \
    else if (hop == 2)                                            \
      scan_max(from, 2, first, pace, low, high, best, place);     \
    else                                                          \
      scan_max(from, hop, first, pace, low, high, best, place);   \
  }
#define SCAN_SUM(from, hop, low, high)      \
  {                                         \
    if (hop == 1)                           \
      scan_sum(from, 1, low, high, sum);    \
    else if (hop == 2)                      \
      scan_sum(from, 2, low, high, sum);    \
    else                                    \
      scan_sum(from, hop, low, high, sum);  \
  }

// How far neighbours of a piece lie apart in a tensor of these strides.
inline long hop_of(int channels_inner, const long* strides) {
  return channels_inner ? strides[1] : strides[4];
}

// Stores a piece's places, `hop` elements apart; those of GPUs together where they lie so, as store_piece().
inline void store_places(global long* to, long hop, int lanes, const int* place) {
#ifdef WIDE_LINES
  if (hop == 1 && lanes == 4 && ((ulong)to & 15) == 0) {
    ((global long2*)to)[0] = (long2)(place[0], place[1]);
    ((global long2*)to)[1] = (long2)(place[2], place[3]);
    return;
  }
#endif
  FOR_LANES(j, 0, lanes) to[j * hop] = place[j];
}

kernel void max_pool_lines(global const A_T* x, global A_T* y, global long* index, const PoolParams p,
                     const Team team) {
  const PoolAxisParams ad = p.axis[0], ah = p.axis[1], aw = p.axis[2];
  FOR_ROWS(row, team) {
    if (!row_active) continue;
    const dlb_piece at = piece_of(p.lines, row);
    global const A_T* in = x + p.x + at.n * p.lines.xs[0] + at.c * p.lines.xs[1];
    int d0, d1, h0, h1, w0, w1, unused;
    window(ad, at.d, 0, &d0, &d1, &unused);
    window(ah, at.h, 0, &h0, &h1, &unused);
    window(aw, at.w, 0, &w0, &w1, &unused);
    T best[BLOCK];
    int place[BLOCK];
    const int along_width = !p.lines.channels_inner && at.lanes > 1;
    const long hop = p.lines.channels_inner ? p.lines.xs[1] : aw.stride * p.lines.xs[4];
    // A dilated window can lie in the padding altogether, and its first place outside the input.
    FOR_LANES(j, 0, at.lanes) {
      if (along_width) window(aw, at.w + j, 0, &w0, &w1, &unused);
      best[j] = T_LOWEST;
      place[j] = (d0 * ah.in + h0) * aw.in + w0;
    }
    for (int d = d0; d < d1; d += ad.dilation)
      for (int h = h0; h < h1; h += ah.dilation) {
        const int line = (d * ah.in + h) * aw.in;
        global const A_T* source = in + d * p.lines.xs[2] + h * p.lines.xs[3];
        if (along_width) {
          for (int k = 0; k < aw.extent; ++k) {
            int low, high;
            inside(aw, at.w, at.lanes, k, &low, &high);
            const int shift = at.w * aw.stride - aw.pad + k * aw.dilation;
            global const A_T* from = source + shift * p.lines.xs[4];
            SCAN_MAX(from, hop, line + shift, aw.stride, low, high)
          }
        } else {
          for (int w = w0; w < w1; w += aw.dilation) {
            global const A_T* from = source + w * p.lines.xs[4];
            SCAN_MAX(from, hop, line + w, 0, 0, at.lanes)
          }
        }
      }
    const long base = offset_of(at, p.lines.ys), out_hop = hop_of(p.lines.channels_inner, p.lines.ys);
    store_piece(y + p.y + base, out_hop, at.lanes, best);
    store_places(index + p.index + base, out_hop, at.lanes, place);
  }
}

kernel void avg_pool_lines(global const A_T* x, global A_T* y, const PoolParams p, const Team team) {
  const PoolAxisParams ad = p.axis[0], ah = p.axis[1], aw = p.axis[2];
  FOR_ROWS(row, team) {
    if (!row_active) continue;
    const dlb_piece at = piece_of(p.lines, row);
    global const A_T* in = x + p.x + at.n * p.lines.xs[0] + at.c * p.lines.xs[1];
    int d0, d1, h0, h1, w0, w1, ds, hs, ws;
    window(ad, at.d, p.count_include_pad, &d0, &d1, &ds);
    window(ah, at.h, p.count_include_pad, &h0, &h1, &hs);
    window(aw, at.w, p.count_include_pad, &w0, &w1, &ws);
    T sum[BLOCK];
    FOR_LANES(j, 0, at.lanes) sum[j] = 0;
    const int along_width = !p.lines.channels_inner && at.lanes > 1;
    const long hop = p.lines.channels_inner ? p.lines.xs[1] : aw.stride * p.lines.xs[4];
    for (int d = d0; d < d1; ++d)
      for (int h = h0; h < h1; ++h) {
        global const A_T* source = in + d * p.lines.xs[2] + h * p.lines.xs[3];
        if (along_width) {
          for (int k = 0; k < aw.extent; ++k) {
            int low, high;
            inside(aw, at.w, at.lanes, k, &low, &high);
            global const A_T* from = source + (at.w * aw.stride - aw.pad + k) * p.lines.xs[4];
            SCAN_SUM(from, hop, low, high)
          }
        } else {
          for (int w = w0; w < w1; ++w) {
            global const A_T* from = source + w * p.lines.xs[4];
            SCAN_SUM(from, hop, 0, at.lanes)
          }
        }
      }
    FOR_LANES(j, 0, at.lanes) {
      if (along_width) window(aw, at.w + j, p.count_include_pad, &w0, &w1, &ws);
      sum[j] /= (T)(p.divisor ? p.divisor : ds * hs * ws);
    }
    const long out_hop = hop_of(p.lines.channels_inner, p.lines.ys);
    store_piece(y + p.y + offset_of(at, p.lines.ys), out_hop, at.lanes, sum);
  }
}
