// Max and average pooling over three axes (two: the first has size 1), regular and adaptive windows, any strides.
// A_T: the element type.
#include "common/team.clh"
#include "common/lines.clh"

typedef struct {
  int in, out, extent, stride, pad, dilation;  // extent 0: adaptive
} pool_axis;

typedef struct {
  long x, y, index;         // offsets
  dlb_lines lines;          // indices are laid out as the output
  pool_axis axis[3];        // D, H, W
  int count_include_pad, divisor;  // average; divisor 0: the window's size
} pool_params;

// The input positions [start, end) of output o's window; *size is what an average divides by.
inline void window(pool_axis a, int o, int include_pad, int* start, int* end, int* size) {
  if (a.extent == 0) {
    *start = (int)((long)o * a.in / a.out);
    *end = (int)(((long)(o + 1) * a.in + a.out - 1) / a.out);
    *size = *end - *start;
    return;
  }
  const int first = o * a.stride - a.pad, past = first + (a.extent - 1) * a.dilation + 1;
  *start = first < 0 ? first + (-first + a.dilation - 1) / a.dilation * a.dilation : first;
  *end = min(past, a.in);
  *size = include_pad ? min(past, a.in + a.pad) - first : *end - *start;
}

// The outputs [first, last] whose windows may hold input i (with dilation some do not).
inline void covering(pool_axis a, int i, int* first, int* last) {
  if (a.extent == 0) {
    *first = (int)((long)i * a.out / a.in);
    *last = (int)(((long)(i + 1) * a.out + a.in - 1) / a.in) - 1;
    return;
  }
  const int low = i + a.pad - (a.extent - 1) * a.dilation;
  *first = low <= 0 ? 0 : (low + a.stride - 1) / a.stride;
  *last = min((i + a.pad) / a.stride, a.out - 1);
}

// For which lanes [*low, *high) tap k of a regular window is inside the input.
inline void inside(pool_axis a, int first, int lanes, int k, int* low, int* high) {
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

kernel void max_pool(global const A_T* x, global A_T* y, global long* index, const pool_params p,
                     const dlb_team team) {
  const pool_axis ad = p.axis[0], ah = p.axis[1], aw = p.axis[2];
  const long out_hop = p.lines.channels_inner ? p.lines.ys[1] : p.lines.ys[4];
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
    const long base = offset_of(at, p.lines.ys);
    store_piece(y + p.y + base, out_hop, at.lanes, best);
    FOR_LANES(j, 0, at.lanes) index[p.index + base + j * out_hop] = place[j];
  }
}

kernel void avg_pool(global const A_T* x, global A_T* y, const pool_params p, const dlb_team team) {
  const pool_axis ad = p.axis[0], ah = p.axis[1], aw = p.axis[2];
  const long out_hop = p.lines.channels_inner ? p.lines.ys[1] : p.lines.ys[4];
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
    store_piece(y + p.y + offset_of(at, p.lines.ys), out_hop, at.lanes, sum);
  }
}

// Gradients gather: every input element sums over the outputs whose windows hold it. Here x is the input's gradient,
// written, and y the output's. Neighbours along the width go through the windows that hold any of them together.
kernel void max_pool_backward(global A_T* x, global const A_T* y, global const long* index, const pool_params p,
                              const dlb_team team) {
  const pool_axis ad = p.axis[0], ah = p.axis[1], aw = p.axis[2];
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

kernel void avg_pool_backward(global A_T* x, global const A_T* y, const pool_params p, const dlb_team team) {
  const pool_axis ad = p.axis[0], ah = p.axis[1], aw = p.axis[2];
  FOR_ROWS(row, team) {
    if (!row_active) continue;
    const dlb_piece at = piece_of(p.lines, row);
    const long base = p.y + at.n * p.lines.ys[0] + at.c * p.lines.ys[1];
    const int along_width = !p.lines.channels_inner && BLOCK > 1;
    int d0, d1, h0, h1, w0, w1, ds, hs, ws, start, end;
    covering(ad, at.d, &d0, &d1);
    covering(ah, at.h, &h0, &h1);
    covering(aw, at.w, &w0, &w1);
    if (along_width) covering(aw, at.w + at.lanes - 1, &start, &w1);
    T sum[BLOCK];
    FOR_LANES(j, 0, at.lanes) sum[j] = 0;
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

#ifdef DLB_CPU
// A contiguous plane of the gradient per row, in the order of the outputs: for types that hold a running sum exactly
// enough (float, double).
kernel void max_pool_backward_planes(global A_T* x, global const A_T* y, global const long* index,
                                     const pool_params p, const dlb_team team) {
  const int in_size = p.axis[0].in * p.axis[1].in * p.axis[2].in;
  const int out_size = p.axis[0].out * p.axis[1].out * p.axis[2].out;
  FOR_ROWS(plane, team) {
    global A_T* to = x + p.x + (long)plane * in_size;
    global const A_T* from = y + p.y + (long)plane * out_size;
    global const long* place = index + p.index + (long)plane * out_size;
    for (int i = 0; i < in_size; ++i) to[i] = 0;
    for (int o = 0; o < out_size; ++o)
      if ((ulong)place[o] < (ulong)in_size) to[place[o]] += from[o];
  }
}
kernel void avg_pool_backward_planes(global A_T* x, global const A_T* y, const pool_params p, const dlb_team team) {
  const pool_axis ad = p.axis[0], ah = p.axis[1], aw = p.axis[2];
  const int in_size = ad.in * ah.in * aw.in;
  FOR_ROWS(plane, team) {
    global A_T* to = x + p.x + (long)plane * in_size;
    global const A_T* from = y + p.y + (long)plane * (ad.out * ah.out * aw.out);
    for (int i = 0; i < in_size; ++i) to[i] = 0;
    for (int od = 0; od < ad.out; ++od)
      for (int oh = 0; oh < ah.out; ++oh) {
        int d0, d1, h0, h1, w0, w1, ds, hs, ws;
        window(ad, od, p.count_include_pad, &d0, &d1, &ds);
        window(ah, oh, p.count_include_pad, &h0, &h1, &hs);
        for (int ow = 0; ow < aw.out; ++ow) {
          window(aw, ow, p.count_include_pad, &w0, &w1, &ws);
          const T share = *from++ / (T)(p.divisor ? p.divisor : ds * hs * ws);
          for (int d = d0; d < d1; ++d)
            for (int h = h0; h < h1; ++h)
              for (int w = w0; w < w1; ++w) to[(d * ah.in + h) * aw.in + w] += share;
        }
      }
  }
}
#endif

// Where windows do not overlap: the inputs [begin, end) that are output o's alone, those between windows included.
inline void owned(pool_axis a, int o, int* begin, int* end) {
  if (a.extent == 0) a.stride = a.in / a.out;
  *begin = o == 0 ? 0 : o * a.stride - a.pad;
  *end = o == a.out - 1 ? a.in : (o + 1) * a.stride - a.pad;
}

// Gradients of windows that do not overlap, each output writing all of its inputs: nothing is read twice.
inline void backward_windows(global A_T* x, global const A_T* y, global const long* index, pool_params p,
                             dlb_team team, const int is_max) {
  const pool_axis ad = p.axis[0], ah = p.axis[1], aw = p.axis[2];
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
kernel void max_pool_backward_windows(global A_T* x, global const A_T* y, global const long* index,
                                      const pool_params p, const dlb_team team) {
  backward_windows(x, y, index, p, team, 1);
}
kernel void avg_pool_backward_windows(global A_T* x, global const A_T* y, const pool_params p, const dlb_team team) {
  backward_windows(x, y, 0, p, team, 0);
}

// What the others are checked against: an element of the result per work-item, and nothing held in arrays.
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

inline void forward_reference(global const A_T* x, global A_T* y, global long* index, pool_params p, dlb_team team,
                              const int is_max) {
  const pool_axis ad = p.axis[0], ah = p.axis[1], aw = p.axis[2];
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
          if (!is_max)
            value += v;
          else if (v > value || v != v)
            value = v, place = ((long)at.d * ah.in + at.h) * aw.in + at.w;
        }
    STORE_A(y, p.y + to, is_max ? value : value / (T)(p.divisor ? p.divisor : ds * hs * ws));
    if (is_max) index[p.index + to] = place;
  }
}
kernel void max_pool_reference(global const A_T* x, global A_T* y, global long* index, const pool_params p,
                               const dlb_team team) {
  forward_reference(x, y, index, p, team, 1);
}
kernel void avg_pool_reference(global const A_T* x, global A_T* y, const pool_params p, const dlb_team team) {
  forward_reference(x, y, 0, p, team, 0);
}

inline void backward_reference(global A_T* x, global const A_T* y, global const long* index, pool_params p,
                               dlb_team team, const int is_max) {
  const pool_axis ad = p.axis[0], ah = p.axis[1], aw = p.axis[2];
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
                                        const pool_params p, const dlb_team team) {
  backward_reference(x, y, index, p, team, 1);
}
kernel void avg_pool_reference_backward(global A_T* x, global const A_T* y, const pool_params p,
                                        const dlb_team team) {
  backward_reference(x, y, 0, p, team, 0);
}

// Indices as a max pool could give, for trials: any position of each window.
inline long any_of(pool_axis a, int o, uint* seed) {
  int start, end, size;
  window(a, o, 0, &start, &end, &size);
  *seed = *seed * 1664525u + 1013904223u;
  const uint places = max((end - start + a.dilation - 1) / a.dilation, 1);
  return start + (int)((*seed >> 8) % places) * a.dilation;
}
kernel void max_pool_any_indices(global long* index, const pool_params p, const dlb_team team) {
  const pool_axis ad = p.axis[0], ah = p.axis[1], aw = p.axis[2];
  FOR_ROWS(row, team) {
    if (!row_active) continue;
    const pool_position at = position_of(row, p.lines.channels, ad.out, ah.out, aw.out);
    uint seed = row;
    const long d = any_of(ad, at.d, &seed), h = any_of(ah, at.h, &seed), w = any_of(aw, at.w, &seed);
    index[p.index + place_of(at, p.lines.ys)] = (d * ah.in + h) * aw.in + w;
  }
}
