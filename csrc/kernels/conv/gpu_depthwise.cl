// Depthwise convolution (one input channel per group) for GPU-class devices, every size at run time: forward, input
// gradient and weight gradient; 1 to 3 spatial axes, channel multipliers, strides, dilation, any strides in memory.
// There is too little reuse for a matrix product: these kernels live from coalesced reads and the first-level cache.

#include "kernels/conv/params.h"

#define RUN DEPTHWISE_RUN
#define DW_ITEMS DEPTHWISE_ITEMS
#define TAP_ROWS 3  // taps that the weight gradient accumulates in one walk over the pixels: 3 x 8
#define TAP_COLS 8
#define DW_TAPS (TAP_ROWS * TAP_COLS)

typedef struct {
  int n, c, d, h, w;
} Place;

// i-th place of a grid, in the order that makes neighbouring work-items read neighbouring memory.
static inline Place place_at(uint i, int channels_fast, int channels, int depth, int height, int width) {
  Place o;
  uint r = i;
  if (channels_fast) o.c = r % channels, r /= channels;
  o.w = r % width, r /= width;
  o.h = r % height, r /= height;
  o.d = r % depth, r /= depth;
  if (!channels_fast) o.c = r % channels, r /= channels;
  o.n = r;
  return o;
}

// y = conv(x, w) + bias, within bounds. Also the input gradient where stride and multiplier are 1: x = dL/dy, w walked
// backwards.
// Global size: at least batch * channels * depth * ceil(height / RUN) * width of y.
kernel void conv_gpu_depthwise_forward(global const T* restrict x, global const T* restrict w, global T* y,
                                       global const T* restrict bias, ConvDepthwise p EPILOGUE_PARAMETERS) {
  const int runs = (p.y_size[1] + RUN - 1) / RUN;
  const uint i = get_global_id(0);
  if (i >= (uint)(p.batch * p.channels * p.y_size[0] * runs) * p.y_size[2]) return;
  const Place o = place_at(i, p.channels_fast, p.channels, p.y_size[0], runs, p.y_size[2]);
  const int h0 = o.h * RUN, xh0 = h0 * p.stride[1] - p.pad[1];
  x += p.x_offset + o.n * p.x_n + o.c / p.multiplier * p.x_c;
  w += p.w_offset + o.c * p.w_c;
  const bool sliding = p.stride[1] == 1 && p.dilation[1] == 1;
  ACC sum[RUN] = {0};
  for (int td = 0; td < p.taps[0]; td++) {
    const int xd = o.d * p.stride[0] - p.pad[0] + td * p.dilation[0];
    if ((uint)xd >= (uint)p.x_size[0]) continue;
    for (int tw = 0; tw < p.taps[2]; tw++) {
      const int xw = o.w * p.stride[2] - p.pad[2] + tw * p.dilation[2];
      if ((uint)xw >= (uint)p.x_size[2]) continue;
      global const T* column = x + xd * p.x_s[0] + xw * p.x_s[2];
      ACC in[RUN];
#pragma unroll
      for (int r = 0; r < RUN; r++) {
        const int xh = xh0 + r * p.stride[1];
        in[r] = (uint)xh < (uint)p.x_size[1] ? load1(column + xh * p.x_s[1]) : 0;
      }
      for (int th = 0; th < p.taps[1]; th++) {
        const ACC weight = load1(w + td * p.w_s[0] + th * p.w_s[1] + tw * p.w_s[2]);
        const int next = xh0 + (th + 1) * p.dilation[1];
#pragma unroll
        for (int r = 0; r < RUN; r++) sum[r] = fma(weight, in[r], sum[r]);
        if (th + 1 == p.taps[1]) break;
#pragma unroll
        for (int r = 0; r < RUN; r++) {
          const int xh = next + r * p.stride[1];
          in[r] = sliding && r + 1 < RUN         ? in[min(r + 1, RUN - 1)]
                  : (uint)xh < (uint)p.x_size[1] ? load1(column + xh * p.x_s[1])
                                                 : 0;
        }
      }
    }
  }
  const ACC b = p.has_bias ? load1(bias + p.bias_offset + o.c) : 0;
  const long column = o.n * p.y_n + o.c * p.y_c + o.d * p.y_s[0] + o.w * p.y_s[2];
  y += p.y_offset + column;
#pragma unroll
  for (int r = 0; r < RUN; r++)
    if (h0 + r < p.y_size[1])
      store1(y + (h0 + r) * p.y_s[1], FINISH(sum[r] + b, p.low, p.high, column + (h0 + r) * p.y_s[1], 0, o.c));
}

// The taps of one axis that reach coordinate x: first, first + inc ... below end, at y coordinates from y in steps of
// -y_step. No tap between them is looked at: with a stride most would fall between the pixels of y.
typedef struct {
  int first, inc, end, y, y_step;
} TapWalk;

static inline TapWalk taps_reaching(const ConvDepthwise* p, int d, int x) {
  const int stride = p->stride[d], dilation = p->dilation[d], at = x + p->pad[d];
  TapWalk o = {0, 1, p->taps[d], at, dilation};
  if (stride == 1) return o;
  const int limit = min(stride, p->taps[d]);
  int rest = at % stride;
  while (o.first < limit && rest != 0) {
    o.first++;
    rest = (at - o.first * dilation) % stride;
  }
  if (rest != 0) o.first = o.end;
  for (o.inc = 1; o.inc * dilation % stride != 0;) o.inc++;
  o.y = (at - o.first * dilation) / stride;
  o.y_step = o.inc * dilation / stride;
  return o;
}

// dL/dx (+ bias) by gathering from y = dL/dy. Global size: at least batch * (channels / multiplier) * pixels of x.
kernel void conv_gpu_depthwise_input_gradient(global T* x, global const T* restrict w, global const T* restrict y,
                                              global const T* restrict bias, ConvDepthwise p) {
  const uint i = get_global_id(0);
  const int x_channels = p.channels / p.multiplier;
  if (i >= (uint)(p.batch * x_channels * p.x_size[0] * p.x_size[1]) * p.x_size[2]) return;
  const Place o = place_at(i, p.channels_fast, x_channels, p.x_size[0], p.x_size[1], p.x_size[2]);
  y += p.y_offset + o.n * p.y_n;
  w += p.w_offset;
  const TapWalk depth = taps_reaching(&p, 0, o.d), height = taps_reaching(&p, 1, o.h);
  const TapWalk width = taps_reaching(&p, 2, o.w);
  ACC sum = 0;
  for (int td = depth.first, yd = depth.y; td < depth.end; td += depth.inc, yd -= depth.y_step) {
    if ((uint)yd >= (uint)p.y_size[0]) continue;
    for (int th = height.first, yh = height.y; th < height.end; th += height.inc, yh -= height.y_step) {
      if ((uint)yh >= (uint)p.y_size[1]) continue;
      for (int tw = width.first, yw = width.y; tw < width.end; tw += width.inc, yw -= width.y_step) {
        if ((uint)yw >= (uint)p.y_size[2]) continue;
        for (int c = o.c * p.multiplier; c < (o.c + 1) * p.multiplier; c++)
          sum = fma(load1(w + c * p.w_c + td * p.w_s[0] + th * p.w_s[1] + tw * p.w_s[2]),
                    load1(y + c * p.y_c + yd * p.y_s[0] + yh * p.y_s[1] + yw * p.y_s[2]), sum);
      }
    }
  }
  if (p.has_bias) sum += load1(bias + p.bias_offset + o.c);
  store1(x + p.x_offset + o.n * p.x_n + o.c * p.x_c + o.d * p.x_s[0] + o.h * p.x_s[1] + o.w * p.x_s[2], sum);
}

// One block of taps of the weight gradient, over the pixels first, first + step ... below end of channel c.
static inline void accumulate_taps(ACC sum[DW_TAPS], global const T* x, global const T* y, const ConvDepthwise* p,
                                   int first, int step, int end, int td, int th0, int tw0) {
  const int width = p->y_size[2], height = p->y_size[1], depth = p->y_size[0];
  const Place jump = {
      step / width / height / depth, 0, step / width / height % depth, step / width % height, step % width};
  Place o = {first / width / height / depth, 0, first / width / height % depth, first / width % height, first % width};
  for (int q = first; q < end; q += step) {
    const int xd = o.d * p->stride[0] - p->pad[0] + td * p->dilation[0];
    if ((uint)xd < (uint)p->x_size[0]) {
      const ACC gradient = load1(y + o.n * p->y_n + o.d * p->y_s[0] + o.h * p->y_s[1] + o.w * p->y_s[2]);
      global const T* plane = x + o.n * p->x_n + xd * p->x_s[0];
#pragma unroll
      for (int s0 = 0; s0 < TAP_COLS; s0 += 4) {
        if (tw0 + s0 >= p->taps[2]) continue;
        ACC in[TAP_ROWS][4];  // all loads before their first use: their latency is what this kernel waits for
#pragma unroll
        for (int r = 0; r < TAP_ROWS; r++) {
          const int xh = o.h * p->stride[1] - p->pad[1] + (th0 + r) * p->dilation[1];
          const bool row = th0 + r < p->taps[1] && (uint)xh < (uint)p->x_size[1];
#pragma unroll
          for (int s = 0; s < 4; s++) {
            const int xw = o.w * p->stride[2] - p->pad[2] + (tw0 + s0 + s) * p->dilation[2];
            const bool inside = row && tw0 + s0 + s < p->taps[2] && (uint)xw < (uint)p->x_size[2];
            in[r][s] = inside ? load1(plane + xh * p->x_s[1] + xw * p->x_s[2]) : 0;
          }
        }
#pragma unroll
        for (int r = 0; r < TAP_ROWS; r++)
#pragma unroll
          for (int s = 0; s < 4; s++) sum[r * TAP_COLS + s0 + s] = fma(gradient, in[r][s], sum[r * TAP_COLS + s0 + s]);
      }
    }
    o.w += jump.w, o.h += jump.h, o.d += jump.d, o.n += jump.n;
    if (o.w >= width) o.w -= width, o.h++;
    if (o.h >= height) o.h -= height, o.d++;
    if (o.d >= depth) o.d -= depth, o.n++;
  }
}

// dL/dw; with splits > 1 into `partial` (splits x channels x taps, dense), which common/split_reduce.cl finishes.
// A work-group takes DEPTHWISE_CHANNELS channels where those are neighbours, else one. Global size: {ceil(channels / that) * DW_ITEMS,
// splits}.
__attribute__((reqd_work_group_size(DW_ITEMS, 1, 1))) kernel void conv_gpu_depthwise_weight_gradient(
    global const T* restrict x, global T* w, global const T* restrict y, global ACC* partial, ConvDepthwise p) {
  local ACC scratch[DW_TAPS * DW_ITEMS];
  const int lanes = p.channels_fast ? DEPTHWISE_CHANNELS : 1;
  const int item = get_local_id(0), lane = item % lanes;
  const int c0 = get_group_id(0) * lanes, c = min(c0 + lane, p.channels - 1);
  const int pixels = p.batch * p.y_size[0] * p.y_size[1] * p.y_size[2], taps = p.taps[0] * p.taps[1] * p.taps[2];
  const int part = (pixels + p.splits - 1) / p.splits, begin = get_group_id(1) * part;
  const int end = min(begin + part, pixels);
  x += p.x_offset + c / p.multiplier * p.x_c;
  y += p.y_offset + c * p.y_c;
  for (int td = 0; td < p.taps[0]; td++)
    for (int th0 = 0; th0 < p.taps[1]; th0 += TAP_ROWS)
      for (int tw0 = 0; tw0 < p.taps[2]; tw0 += TAP_COLS) {
        ACC sum[DW_TAPS] = {0};
        accumulate_taps(sum, x, y, &p, begin + item / lanes, DW_ITEMS / lanes, end, td, th0, tw0);
        barrier(CLK_LOCAL_MEM_FENCE);
#pragma unroll
        for (int t = 0; t < DW_TAPS; t++) scratch[t * DW_ITEMS + item] = sum[t];
        barrier(CLK_LOCAL_MEM_FENCE);
        for (int t = item; t < DW_TAPS * lanes; t += DW_ITEMS) {
          const int tap = t / lanes, th = th0 + tap / TAP_COLS, tw = tw0 + tap % TAP_COLS;
          const int channel = c0 + t % lanes;
          if (th >= p.taps[1] || tw >= p.taps[2] || channel >= p.channels) continue;
          ACC total = 0;
          for (int i = t % lanes; i < DW_ITEMS; i += lanes) total += scratch[tap * DW_ITEMS + i];
          if (p.splits > 1)
            partial[p.partial_offset + ((long)get_group_id(1) * p.channels + channel) * taps +
                    (td * p.taps[1] + th) * p.taps[2] + tw] = total;
          else store1(w + p.w_offset + channel * p.w_c + td * p.w_s[0] + th * p.w_s[1] + tw * p.w_s[2], total);
        }
      }
}
