// The image unfolded to a matrix with a row per (channel, filter tap) and a column per output pixel, and its adjoint,
// which sums rows back into an image (im2col and col2im). Wants common/element.clh; rows of a group are ordered (channel, tap)
// or, with taps_outer, (tap, channel).
#include "kernels/conv/params.h"

inline int row_of(const ConvShape* p, int channel, int tap, int taps, int taps_outer) {
  const int channels = p->c / p->groups, c = channel % channels;
  return channel / channels * channels * taps + (taps_outer ? tap * channels + c : c * taps + tap);
}

// columns[row * row_step + n * image_step + pixel] = the pixel's input of that row, zero outside of the image. Range:
// output pixels in runs of `span`, channels * taps, images.
kernel void conv_unfold(global const T* x, long ox, global T* columns, long oc, ConvShape p, long row_step,
                        long image_step, int taps_outer, long span) {
  const int taps = p.filter[0] * p.filter[1] * p.filter[2], n = get_global_id(2);
  const int channel = get_global_id(1) / taps, tap = get_global_id(1) % taps;
  const int f0 = tap / (p.filter[1] * p.filter[2]), f1 = tap / p.filter[2] % p.filter[1], f2 = tap % p.filter[2];
  const long pixels = (long)p.out[0] * p.out[1] * p.out[2], end = min((long)(get_global_id(0) + 1) * span, pixels);
  global T* to = columns + oc + row_of(&p, channel, tap, taps, taps_outer) * row_step + n * image_step;
  const int first = f2 * p.dilation[2] - p.padding[2], step = p.stride[2];
  // outputs of a line whose input is inside the image
  const int w0 = first >= 0 ? 0 : (step - 1 - first) / step;
  const int w1 = first >= p.in[2] ? 0 : (p.in[2] - 1 - first) / step + 1;
  x += ox + n * p.xs[0] + channel * p.xs[1] + first * p.xs[4];
  for (long q = get_global_id(0) * span; q < end;) {
    const int q2 = q % p.out[2], q1 = q / p.out[2] % p.out[1], q0 = q / p.out[2] / p.out[1];
    const int last = min((long)p.out[2], q2 + end - q);
    const int i0 = q0 * p.stride[0] - p.padding[0] + f0 * p.dilation[0];
    const int i1 = q1 * p.stride[1] - p.padding[1] + f1 * p.dilation[1];
    const int inside = i0 >= 0 && i0 < p.in[0] && i1 >= 0 && i1 < p.in[1];
    const int begin = inside ? clamp(w0, q2, last) : last, stop = clamp(w1, begin, last);
    global const T* line = x + i0 * p.xs[2] + i1 * p.xs[3];
    global T* d = to + (q - q2);
    for (int w = q2; w < begin; w++) d[w] = (T)(0);
    if (step == 1 && p.xs[4] == 1)
      for (int w = begin; w < stop; w++) d[w] = line[w];
    else
      for (int w = begin; w < stop; w++) d[w] = line[w * (step * p.xs[4])];
    for (int w = stop; w < last; w++) d[w] = (T)(0);
    q += last - q2;
  }
}

#ifndef SPAN
#define SPAN 1  // input columns of one work-item of conv_fold()
#endif

// x = bias + sum over taps of columns, laid out [n][row][pixel]. Range: input columns in runs of SPAN, channels * depths
// * rows, images.
kernel void conv_fold(global const T* columns, long oc, global T* x, long ox, global const T* bias, long ob,
                      ConvShape p, int taps_outer) {
  const int taps = p.filter[0] * p.filter[1] * p.filter[2], n = get_global_id(2), step = p.stride[2];
  const int i1 = get_global_id(1) % p.in[1], i0 = get_global_id(1) / p.in[1] % p.in[0];
  const int channel = get_global_id(1) / p.in[1] / p.in[0];
  const long pixels = (long)p.out[0] * p.out[1] * p.out[2];
  const int begin = get_global_id(0) * SPAN, count = min(SPAN, p.in[2] - begin);
  if (count <= 0) return;
  columns += oc + (long)n * p.c * taps * pixels;
  ACC sum[SPAN];
  for (int i = 0; i < SPAN; i++) sum[i] = ZERO;
  for (int f0 = 0; f0 < p.filter[0]; f0++) {
    const int s0 = i0 + p.padding[0] - f0 * p.dilation[0], q0 = s0 / p.stride[0];
    if (s0 < 0 || q0 >= p.out[0] || q0 * p.stride[0] != s0) continue;
    for (int f1 = 0; f1 < p.filter[1]; f1++) {
      const int s1 = i1 + p.padding[1] - f1 * p.dilation[1], q1 = s1 / p.stride[1];
      if (s1 < 0 || q1 >= p.out[1] || q1 * p.stride[1] != s1) continue;
      for (int f2 = 0; f2 < p.filter[2]; f2++) {
        // outputs q with begin <= q * step + shift < begin + count
        const int shift = f2 * p.dilation[2] - p.padding[2], ahead = begin - shift;
        const int first = ahead <= 0 ? 0 : (ahead + step - 1) / step;
        const int last = ahead + count <= 0 ? 0 : min(p.out[2], (ahead + count - 1) / step + 1);
        const int row = row_of(&p, channel, (f0 * p.filter[1] + f1) * p.filter[2] + f2, taps, taps_outer);
        const long line = row * pixels + ((long)q0 * p.out[1] + q1) * p.out[2];
        if (step == 1)
          for (int q = first; q < last; q++) sum[q - ahead] += LOAD(columns, line + q);
        else
          for (int q = first; q < last; q++) sum[q * step - ahead] += LOAD(columns, line + q);
      }
    }
  }
  x += ox + n * p.xs[0] + channel * p.xs[1] + i0 * p.xs[2] + i1 * p.xs[3] + begin * p.xs[4];
  for (int i = 0; i < count; i++) {
    ACC v = sum[i];
    if (p.has_bias) v += LOAD(bias, ob + channel);
    STORE(v, x, i * p.xs[4]);
  }
}
