// The columns of an image (im2col) and their sum (col2im), and the sum of windows along a dimension. A_T: the element type.
#include "common/team.clh"
#include "common/next.clh"
#include "kernels/vision/params.h"

#ifdef DLB_CPU
#define COLUMN_LANES 128  // neighbours of a row that are taken together
#else
#define COLUMN_LANES 1
#endif

#define FOR_UNITS(unit, count) \
  for (uint unit = get_global_id(0) * p.per_item, unit##_end = min(unit + p.per_item, count); unit < unit##_end; ++unit)

// Only moves bits: A_T is an unsigned type of the element's size.
#ifdef DLB_CPU
kernel void im2col(global const A_T* image, global A_T* columns, const ColumnParams p) {
  FOR_UNITS(unit, p.rows) {
    uint rest = unit;
    const int first = dlb_next(&rest, p.pieces) * COLUMN_LANES, oy = dlb_next(&rest, p.height);
    const int tap = dlb_next(&rest, p.taps), c = dlb_next(&rest, p.channels), n = rest;
    const int lanes = min(COLUMN_LANES, p.out[1] - first);
    const int y = oy * p.stride[0] - p.pad[0] + tap / p.filter[1] * p.dilation[0];
    const int x = first * p.stride[1] - p.pad[1] + tap % p.filter[1] * p.dilation[1];
    global A_T* to =
        columns + p.columns + (((long)n * p.channels.divisor + c) * p.taps.divisor + tap) * p.out[0] * p.out[1] +
        (long)oy * p.out[1] + first;
    // The lanes whose element is in the image.
    const int inside = y >= 0 && y < p.in[0], step = p.stride[1];
    const int low = inside ? clamp(x >= 0 ? 0 : (step - 1 - x) / step, 0, lanes) : lanes;
    const int high = inside ? clamp(x >= p.in[1] ? 0 : (p.in[1] - 1 - x) / step + 1, low, lanes) : lanes;
    global const A_T* from = image + p.image + n * p.xs[0] + c * p.xs[1] + y * p.xs[2] + x * p.xs[3];
    const A_T none = (A_T)(0);
    for (int j = 0; j < low; ++j) to[j] = none;
    if (step * p.xs[3] == 1) {
      DLB_SIMD for (int j = low; j < high; ++j) to[j] = from[j];
    } else {
      DLB_SIMD for (int j = low; j < high; ++j) to[j] = from[j * (step * p.xs[3])];
    }
    for (int j = high; j < lanes; ++j) to[j] = none;
  }
}
#else
// An output position of a channel, for all taps.
kernel void im2col(global const A_T* image, global A_T* columns, const ColumnParams p) {
  uint rest = get_global_id(0);
  if (rest >= p.rows) return;
  const int ox = dlb_next(&rest, p.pieces), oy = dlb_next(&rest, p.height), c = dlb_next(&rest, p.channels), n = rest;
  const int top = oy * p.stride[0] - p.pad[0], left = ox * p.stride[1] - p.pad[1];
  const long length = (long)p.out[0] * p.out[1];
  global A_T* to =
      columns + p.columns + ((long)n * p.channels.divisor + c) * p.taps.divisor * length + (long)oy * p.out[1] + ox;
  image += p.image + n * p.xs[0] + c * p.xs[1];
  for (int fy = 0; fy < p.filter[0]; ++fy) {
    const int y = top + fy * p.dilation[0];
    for (int fx = 0; fx < p.filter[1]; ++fx, to += length) {
      const int x = left + fx * p.dilation[1];
      const bool inside = y >= 0 && y < p.in[0] && x >= 0 && x < p.in[1];
      *to = inside ? image[y * p.xs[2] + x * p.xs[3]] : (A_T)(0);
    }
  }
}
#endif

// Every element of the image, which is contiguous, gathers what the taps read of it.
kernel void col2im(global A_T* image, global const A_T* columns, const ColumnParams p) {
  FOR_UNITS(unit, p.rows) {
    uint rest = unit;
    const int first = dlb_next(&rest, p.pieces) * COLUMN_LANES, y = dlb_next(&rest, p.height);
    const int c = dlb_next(&rest, p.channels), n = rest, step = p.stride[1];
    const int lanes = COLUMN_LANES == 1 ? 1 : min(COLUMN_LANES, p.in[1] - first);
    T sum[COLUMN_LANES];
    for (int j = 0; j < lanes; ++j) sum[j] = (T)(0);
    for (int fy = 0; fy < p.filter[0]; ++fy) {
      const int ahead = y + p.pad[0] - fy * p.dilation[0], oy = ahead / p.stride[0];
      if (ahead < 0 || oy >= p.out[0] || oy * p.stride[0] != ahead) continue;
      for (int fx = 0; fx < p.filter[1]; ++fx) {
        // outputs o with 0 <= o * step - shift < lanes
        const int shift = first + p.pad[1] - fx * p.dilation[1];
        const int low = shift <= 0 ? 0 : (shift + step - 1) / step;
        const int high = shift + lanes <= 0 ? 0 : min(p.out[1], (shift + lanes - 1) / step + 1);
        global const A_T* from =
            columns + p.columns +
            ((((long)n * p.channels.divisor + c) * p.taps.divisor + fy * p.filter[1] + fx) * p.out[0] + oy) * p.out[1];
        if (step == 1) {
          DLB_SIMD for (int o = low; o < high; ++o) sum[o - shift] += LOAD_A(from, o);
        } else {
          for (int o = low; o < high; ++o) sum[o * step - shift] += LOAD_A(from, o);
        }
      }
    }
    const long to = p.image + (((long)n * p.channels.divisor + c) * p.in[0] + y) * p.in[1] + first;
    DLB_SIMD for (int j = 0; j < lanes; ++j) STORE_A(image, to + j, sum[j]);
  }
}

#ifdef DLB_CPU
// The same where nothing lies inside of the dimension, COLUMN_LANES of its elements together; p.inner: how often that
// is.
kernel void sum_windows_of_lines(global A_T* out, global const A_T* grad, const WindowParams p) {
  const int length = p.length.divisor;
  FOR_UNITS(unit, p.count) {
    uint outer = unit;
    const int first = dlb_next(&outer, p.inner) * COLUMN_LANES, lanes = min(COLUMN_LANES, length - first);
    const int ahead = first - p.size + 1, end = min((first + lanes - 1) / p.step + 1, p.windows);
    T sum[COLUMN_LANES];
    for (int j = 0; j < lanes; ++j) sum[j] = (T)(0);
    for (int w = ahead <= 0 ? 0 : (ahead + p.step - 1) / p.step; w < end; ++w) {
      const int shift = first - w * p.step;  // of the first lane, in the window
      global const A_T* from = grad + p.grad + ((long)outer * p.windows + w) * p.size;
      DLB_SIMD for (int i = max(shift, 0); i < min(shift + lanes, p.size); ++i) sum[i - shift] += LOAD_A(from, i);
    }
    DLB_SIMD for (int j = 0; j < lanes; ++j) STORE_A(out, p.out + (long)outer * length + first + j, sum[j]);
  }
}
#endif

kernel void sum_windows(global A_T* out, global const A_T* grad, const WindowParams p) {
  FOR_UNITS(unit, p.count) {
    uint rest = unit;
    const int inner = dlb_next(&rest, p.inner), at = dlb_next(&rest, p.length);
    const int ahead = at - p.size + 1, first = ahead <= 0 ? 0 : (ahead + p.step - 1) / p.step;
    const int last = min(at / p.step, p.windows - 1);
    T sum = (T)(0);
    for (int w = first; w <= last; ++w) {
      const long row = ((long)rest * p.windows + w) * p.inner.divisor + inner;
      sum += LOAD_A(grad, p.grad + row * p.size + at - w * p.step);
    }
    STORE_A(out, p.out + unit, sum);
  }
}
