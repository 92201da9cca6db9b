// Depthwise convolution (one input channel per group) by windows that slide down the image, for GPU-class devices: forward
// and weight gradient. A work-item keeps the pixels of x under the filter in registers. From one row of y to the next only
// STRIDE rows of them are new, so that 7 x 7 taps cost 7 loads for 49 multiply-adds; gpu_depthwise.cl, which has no
// limits on filter, stride and dilation, loads several times as many.
//
// Build-time macros: taps along height and width (TAP_ROWS x TAP_COLS) and the stride along height (STRIDE), along which
// there is no dilation. Everything else is a run-time argument.

#include "kernels/conv/params.h"

#define TAPS (TAP_ROWS * TAP_COLS)
#define NEW_ROWS (STRIDE < TAP_ROWS ? STRIDE : TAP_ROWS)
#define ITEMS DEPTHWISE_ITEMS

// Work-items walk columns: a segment of the rows at one place of the other axes. Neighbours have neighbouring widths.
typedef struct {
  int n, d, w, first, end;  // rows first to below end
} Column;

static inline int segments_of(const ConvDepthwise* p) { return (p->y_size[1] + p->segment - 1) / p->segment; }
static inline int columns_of(const ConvDepthwise* p) { return p->batch * p->y_size[0] * p->y_size[2] * segments_of(p); }

static inline Column column_at(int i, const ConvDepthwise* p) {
  const int segments = segments_of(p);
  Column o;
  o.w = i % p->y_size[2], i /= p->y_size[2];
  o.first = i % segments * p->segment, i /= segments;
  o.end = min(o.first + p->segment, p->y_size[1]);
  o.d = i % p->y_size[0], o.n = i / p->y_size[0];
  return o;
}

// Where the taps of a row are along width, in elements from the row's beginning, and which of them are within it. Those
// that are not have the place of the nearest pixel: loads without conditions do not wait for each other.
typedef struct {
  int offset[TAP_COLS];
  uint inside;
} RowTaps;

static inline RowTaps taps_at(int w, const ConvDepthwise* p) {
  RowTaps o;
  o.inside = 0;
#pragma unroll
  for (int s = 0; s < TAP_COLS; s++) {
    const int xw = w * p->stride[2] - p->pad[2] + s * p->dilation[2];
    o.offset[s] = clamp(xw, 0, p->x_size[2] - 1) * p->x_s[2];
    o.inside |= (uint)((uint)xw < (uint)p->x_size[2]) << s;
  }
  return o;
}

// Rows r0 to below r1 of the window at row h of y. At the k-th row of y of a column, row r is in place
// (k * STRIDE + r) % TAP_ROWS, so that none is ever moved. x is the column's plane; all is 0 where that is not `present`.
static inline void load_rows(ACC window[TAP_ROWS][TAP_COLS], int r0, int r1, int k, int h, global const T* x,
                             const RowTaps* taps, bool present, const ConvDepthwise* p) {
#pragma unroll
  for (int r = r0; r < r1; r++) {
    const int xh = h * STRIDE - p->pad[1] + r;
    const uint inside = present && (uint)xh < (uint)p->x_size[1] ? taps->inside : 0;
    global const T* from = x + clamp(xh, 0, p->x_size[1] - 1) * p->x_s[1];
    ACC row[TAP_COLS];
#pragma unroll
    for (int s = 0; s < TAP_COLS; s++) row[s] = load1(from + taps->offset[s]);
#pragma unroll
    for (int s = 0; s < TAP_COLS; s++) window[(k * STRIDE + r) % TAP_ROWS][s] = inside >> s & 1 ? row[s] : 0;
  }
}

// y = conv(x, w) + bias, within bounds, with one tap along depth. Also the input gradient where stride and multiplier are
// 1: x = dL/dy, w walked backwards.
// Global size: at least channels * columns.
kernel void conv_depthwise_windows_forward(global const T* restrict x, global const T* restrict w, global T* y,
                                           global const T* restrict bias, ConvDepthwise p EPILOGUE_PARAMETERS) {
  const uint columns = columns_of(&p), i = get_global_id(0);
  if (i >= columns * p.channels) return;
  const int c = p.channels_fast ? i % p.channels : i / columns;
  const Column at = column_at(p.channels_fast ? i / p.channels : i % columns, &p);
  const int xd = at.d * p.stride[0] - p.pad[0];
  const bool present = (uint)xd < (uint)p.x_size[0];  // the plane is not padding
  const RowTaps taps = taps_at(at.w, &p);
  const ACC b = p.has_bias ? load1(bias + p.bias_offset + c) : 0;
  x += p.x_offset + at.n * p.x_n + c / p.multiplier * p.x_c + clamp(xd, 0, p.x_size[0] - 1) * p.x_s[0];
  w += p.w_offset + c * p.w_c;
  const long column = at.n * p.y_n + c * p.y_c + at.d * p.y_s[0] + at.w * p.y_s[2];
  y += p.y_offset + column;
  ACC weight[TAPS], window[TAP_ROWS][TAP_COLS];
#pragma unroll
  for (int t = 0; t < TAPS; t++) weight[t] = load1(w + t / TAP_COLS * p.w_s[1] + t % TAP_COLS * p.w_s[2]);
  load_rows(window, 0, TAP_ROWS - NEW_ROWS, 0, at.first, x, &taps, present, &p);
  for (int h0 = at.first; h0 < at.end; h0 += TAP_ROWS) {
#pragma unroll
    for (int k = 0; k < TAP_ROWS; k++) {
      const int h = h0 + k;
      if (h < at.end) {
        load_rows(window, TAP_ROWS - NEW_ROWS, TAP_ROWS, k, h, x, &taps, present, &p);
        ACC total = b;
#pragma unroll
        for (int r = 0; r < TAP_ROWS; r++) {
          ACC sum = 0;  // of a row of taps, so that the additions need not wait for each other
#pragma unroll
          for (int s = 0; s < TAP_COLS; s++)
            sum = fma(weight[r * TAP_COLS + s], window[(k * STRIDE + r) % TAP_ROWS][s], sum);
          total += sum;
        }
        store1(y + h * p.y_s[1], FINISH(total, p.low, p.high, column + h * p.y_s[1], 0, c));
      }
    }
  }
}

static inline void add_column(ACC sum[TAPS], global const T* x, global const T* y, const ConvDepthwise* p, Column at,
                              int td) {
  const int xd = at.d * p->stride[0] - p->pad[0] + td * p->dilation[0];
  if ((uint)xd >= (uint)p->x_size[0]) return;
  const RowTaps taps = taps_at(at.w, p);
  x += at.n * p->x_n + xd * p->x_s[0];
  y += at.n * p->y_n + at.d * p->y_s[0] + at.w * p->y_s[2];
  ACC window[TAP_ROWS][TAP_COLS];
  load_rows(window, 0, TAP_ROWS - NEW_ROWS, 0, at.first, x, &taps, true, p);
  for (int h0 = at.first; h0 < at.end; h0 += TAP_ROWS) {
#pragma unroll
    for (int k = 0; k < TAP_ROWS; k++) {
      const int h = h0 + k;
      if (h < at.end) {
        const ACC gradient = load1(y + h * p->y_s[1]);
        load_rows(window, TAP_ROWS - NEW_ROWS, TAP_ROWS, k, h, x, &taps, true, p);
#pragma unroll
        for (int t = 0; t < TAPS; t++)
          sum[t] = fma(gradient, window[(k * STRIDE + t / TAP_COLS) % TAP_ROWS][t % TAP_COLS], sum[t]);
      }
    }
  }
}

// dL/dw; with splits > 1 into `partial` (splits x channels x taps, dense), which common/split_reduce.cl finishes.
// A work-group takes DEPTHWISE_CHANNELS channels where those are neighbours, else one, and a part of the columns. Global
// size: {ceil(channels / that) * ITEMS, splits}.
__attribute__((reqd_work_group_size(ITEMS, 1, 1))) kernel void conv_depthwise_windows_gradient(
    global const T* restrict x, global T* w, global const T* restrict y, global ACC* partial, ConvDepthwise p) {
  local ACC scratch[TAPS * ITEMS];
  const int lanes = p.channels_fast ? DEPTHWISE_CHANNELS : 1;
  const int item = get_local_id(0), lane = item % lanes;
  const int c0 = get_group_id(0) * lanes, c = min(c0 + lane, p.channels - 1);
  const int columns = columns_of(&p);
  const int part = (columns + p.splits - 1) / p.splits, begin = get_group_id(1) * part;
  const int end = min(begin + part, columns);
  x += p.x_offset + c / p.multiplier * p.x_c;
  y += p.y_offset + c * p.y_c;
  for (int td = 0; td < p.taps[0]; td++) {
    ACC sum[TAPS] = {0};
    for (int i = begin + item / lanes; i < end; i += ITEMS / lanes) add_column(sum, x, y, &p, column_at(i, &p), td);
    barrier(CLK_LOCAL_MEM_FENCE);
#pragma unroll
    for (int t = 0; t < TAPS; t++) scratch[t * ITEMS + item] = sum[t];
    for (int half_items = ITEMS / 2; half_items >= lanes; half_items /= 2) {
      barrier(CLK_LOCAL_MEM_FENCE);
      for (int t = item; t < TAPS * half_items; t += ITEMS) {
        const int at = t / half_items * ITEMS + t % half_items;
        scratch[at] += scratch[at + half_items];
      }
    }
    barrier(CLK_LOCAL_MEM_FENCE);
    for (int t = item; t < TAPS * lanes; t += ITEMS) {
      const int tap = t / lanes, th = tap / TAP_COLS, tw = tap % TAP_COLS, channel = c0 + t % lanes;
      if (channel >= p.channels) continue;
      const ACC total = scratch[tap * ITEMS + t % lanes];
      if (p.splits > 1)
        partial[p.partial_offset + ((long)get_group_id(1) * p.channels + channel) * p.taps[0] * TAPS + td * TAPS +
                tap] = total;
      else store1(w + p.w_offset + channel * p.w_c + td * p.w_s[0] + th * p.w_s[1] + tw * p.w_s[2], total);
    }
  }
}
