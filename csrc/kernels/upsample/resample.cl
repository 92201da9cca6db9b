// clang-format off
// One pass of a separable resampling, along the middle axis of [outer, axis, inner], by a table of weights of T. A_T: the
// type that is read, B_T: that is written. BYTES: both are bytes, and weights are integers.
#include "common/team.clh"
#include "kernels/upsample/resample.h"

#ifdef DLB_CPU
#define RESAMPLE_LANES 64  // of the inner axis, or of the outputs where that has one element
#else
#define RESAMPLE_LANES 1
#endif

typedef struct {
  int outer, along, first, lanes;
} resample_unit;
inline resample_unit unit_of(const ResamplePass* p, uint row) {
  resample_unit at;
  uint rest = dlb_divide(row, p->blocks);
  at.first = (row - rest * p->blocks.divisor) * RESAMPLE_LANES;
  at.outer = dlb_divide(rest, p->length);
  at.along = rest - at.outer * p->length.divisor;
  at.lanes = RESAMPLE_LANES == 1 ? 1 : min(RESAMPLE_LANES, p->inner - at.first);
  return at;
}

#ifdef BYTES
#define START(p, weights) (1 << (weights[p.precision] - 1))
#define FINISH(p, weights, sum) clamp((sum) >> weights[p.precision], 0, 255)
#else
#define START(p, weights) ((T)0)
#define FINISH(p, weights, sum) (sum)
#endif

#define FOR_UNITS(unit)                                                                              \
  for (uint unit = get_global_id(0) * p.per_item, unit##_end = min(unit + p.per_item, p.rows);       \
       unit < unit##_end; ++unit)

#if defined(BYTES) && defined(DLB_CPU)
// Weights are of 16 bits. Those of an output lie together, zeros up to a multiple of eight behind them.
#define WEIGHT_T short
#define WEIGHT(o, k) table[(long)(o) * a.taps + (k)]
typedef uchar8 Bytes __attribute__((aligned(1)));  // read whole, unlike vload8()'s on some drivers
typedef uchar4 Pixel __attribute__((aligned(1)));
typedef short8 Weights __attribute__((aligned(2)));

// Converts vectors in one step: some drivers' own functions take an element at a time.
#ifdef __clang__
#define CONVERTED(v, type) __builtin_convertvector(v, type)
#else
#define CONVERTED(v, type) convert_##type(v)
#endif
inline uchar4 bytes_of(int4 sum, int precision) {
  int4 v = sum >> precision;
  v = v < 0 ? (int4)(0) : v;
  v = v > 255 ? (int4)(255) : v;
  return CONVERTED(v, uchar4);
}

// Sums of neighbouring products.
inline int4 products(short8 a, short8 b) {
#if defined(__clang__) && defined(__AVX__)
  int4 sums;
  __asm__("vpmaddwd %2, %1, %0" : "=x"(sums) : "x"(a), "x"(b));
  return sums;
#else
  return CONVERTED(a.even, int4) * CONVERTED(b.even, int4) + CONVERTED(a.odd, int4) * CONVERTED(b.odd, int4);
#endif
}

// All taps of an output, whose weights past its own are zero.
inline int4 taps_of(global const uchar* x, global const short* w, int taps) {
  int4 s = products(CONVERTED(*(global const Bytes*)x, short8), *(global const Weights*)w);
  for (int k = 8; k < taps; k += 8)
    s += products(CONVERTED(*(global const Bytes*)(x + k), short8), *(global const Weights*)(w + k));
  return s;
}

// Outputs of a line of bytes: eight inputs and four outputs at a time.
inline void line_of_bytes(global const uchar* from, global uchar* to, global const int* bounds,
                          global const short* table, int taps, int in, int first, int lanes, int half_of_last,
                          int precision) {
  bounds += 2 * first, table += (long)first * taps;
  int j = 0;
  for (; j + 4 <= lanes && bounds[2 * j + 6] + taps <= in; j += 4) {
    global const short* w = table + j * taps;
    const int4 s0 = taps_of(from + bounds[2 * j], w, taps), s1 = taps_of(from + bounds[2 * j + 2], w + taps, taps),
               s2 = taps_of(from + bounds[2 * j + 4], w + 2 * taps, taps),
               s3 = taps_of(from + bounds[2 * j + 6], w + 3 * taps, taps);
    const int4 a = (int4)(s0.lo + s0.hi, s1.lo + s1.hi), b = (int4)(s2.lo + s2.hi, s3.lo + s3.hi);
    const int4 sum = (int4)(a.even + a.odd, b.even + b.odd) + half_of_last;
    *(global Pixel*)(to + j) = bytes_of(sum, precision);
  }
  for (; j < lanes; ++j) {
    const int count = bounds[2 * j + 1];
    global const uchar* x = from + bounds[2 * j];
    int sum = half_of_last;
    for (int k = 0; k < count; ++k) sum += table[(long)j * taps + k] * x[k];
    to[j] = clamp(sum >> precision, 0, 255);
  }
}

// The bytes of two pixels as numbers, those of each channel side by side.
inline short8 pairs_of(uchar8 v, const int channels) {
#if defined(__clang__) && defined(__ENDIAN_LITTLE__)
  const uchar8 zero = 0;
  return channels == 3 ? as_short8(__builtin_shufflevector(v, zero, 0, 8, 3, 8, 1, 8, 4, 8, 2, 8, 5, 8, 6, 8, 7, 8))
                       : as_short8(__builtin_shufflevector(v, zero, 0, 8, 4, 8, 1, 8, 5, 8, 2, 8, 6, 8, 3, 8, 7, 8));
#else
  return CONVERTED(channels == 3 ? v.s03142567 : v.s04152637, short8);
#endif
}

// The same of pixels of two to four bytes: two pixels at a time, a pair of each channel's bytes side by side.
inline void line_of_pixels(global const uchar* from, global uchar* to, global const int* bounds,
                           global const short* table, int taps, int in, int first, int lanes, int half_of_last,
                           int precision, const int channels) {
  for (int j = 0; j < lanes; ++j) {
    const int start = bounds[2 * (first + j)], count = bounds[2 * (first + j) + 1];
    global const short* w = table + (long)(first + j) * taps;
    global const uchar* x = from + start * channels;
    int4 sum = (int4)(half_of_last);
    if (channels > 2 && start + count + 1 < in) {
      for (int k = 0; k < count; k += 2) {
        const short8 v = pairs_of(*(global const Bytes*)(x + k * channels), channels);
        sum += products(v, as_short8((int4)(*(global const int*)(w + k))));
      }
    } else {
      for (int k = 0; k < count; ++k, x += channels)
        sum += w[k] * (int4)(x[0], x[1], channels > 2 ? x[2] : 0, channels > 3 ? x[3] : 0);
    }
    const uchar4 y = bytes_of(sum, precision);
    if (channels == 4 || (channels == 3 && j + 1 < lanes)) {
      *(global Pixel*)(to + j * channels) = y;  // the next pixel overwrites what is too much
    } else {
      to[j * channels] = y.x, to[j * channels + 1] = y.y;
      if (channels == 3) to[j * channels + 2] = y.z;
    }
  }
}

// A line of pixels of up to BYTES_OF_PIXEL bytes.
static inline void line_of_row(global const uchar* x, global uchar* y, global const int* bounds,
                               global const short* table, global const T* weights, const ResamplePass* p, uint row) {
  const ResampleAxis a = p->axis;
  const uint outer = dlb_divide(row, p->blocks);
  const int first = (row - outer * p->blocks.divisor) * RESAMPLE_LANES, lanes = min(RESAMPLE_LANES, a.out - first);
  global const uchar* from = x + p->x + (long)outer * a.in * p->inner;
  global uchar* to = y + p->y + ((long)outer * a.out + first) * p->inner;
  const int precision = weights[p->precision], half_of_last = 1 << (precision - 1);
#define PIXELS(channels)   \
  if (p->inner == channels) \
    line_of_pixels(from, to, bounds, table, a.taps, a.in, first, lanes, half_of_last, precision, channels);
  if (p->inner == 1) line_of_bytes(from, to, bounds, table, a.taps, a.in, first, lanes, half_of_last, precision);
  PIXELS(2)
  PIXELS(3)
  PIXELS(4)
}
#else
#define WEIGHT_T T
#define WEIGHT(o, k) table[(long)(k) * a.out + (o)]
#endif

// Rows are blocks of [outer, out, inner], or where inner is 1 (of bytes on CPUs: up to 4) of [outer, out].
kernel void resample(global const A_T* x, global B_T* y, global const int* bounds, global const T* weights,
                     const ResamplePass p) {
  const ResampleAxis a = p.axis;
  bounds += a.bounds;
  global const WEIGHT_T* table = (global const WEIGHT_T*)(weights + a.weights);
  FOR_UNITS(row) {
    T sum[RESAMPLE_LANES];
#if defined(DLB_CPU) && defined(BYTES)
    if (p.inner <= BYTES_OF_PIXEL) {
      line_of_row(x, y, bounds, table, weights, &p, row);
      continue;
    }
#elif defined(DLB_CPU)
    if (p.inner == 1) {
      const uint outer = dlb_divide(row, p.blocks);
      const int first = (row - outer * p.blocks.divisor) * RESAMPLE_LANES, lanes = min(RESAMPLE_LANES, a.out - first);
      global const A_T* from = x + p.x + (long)outer * a.in;
      int start[RESAMPLE_LANES], count[RESAMPLE_LANES], most = 0;
      for (int j = 0; j < lanes; ++j) {
        start[j] = bounds[2 * (first + j)], count[j] = bounds[2 * (first + j) + 1];
        sum[j] = START(p, weights), most = max(most, count[j]);
      }
      for (int k = 0; k < most; ++k)
        DLB_SIMD for (int j = 0; j < lanes; ++j) {
          const T v = LOAD_A(from, min(start[j] + k, a.in - 1)), w = WEIGHT(first + j, k);
          sum[j] += k < count[j] ? w * v : (T)0;
        }
      for (int j = 0; j < lanes; ++j)
        STORE_B(y, p.y + (long)outer * a.out + first + j, FINISH(p, weights, sum[j]));
      continue;
    }
#endif
    const resample_unit at = unit_of(&p, row);
    const int start = bounds[2 * at.along], count = bounds[2 * at.along + 1];
    global const A_T* from = x + p.x + ((long)at.outer * a.in + start) * p.inner + at.first;
    const long to = p.y + ((long)at.outer * a.out + at.along) * p.inner + at.first;
#define BLOCK(lanes)                                                                            \
  {                                                                                             \
    for (int j = 0; j < (lanes); ++j) sum[j] = START(p, weights);                               \
    for (int k = 0; k < count; ++k) {                                                           \
      const T w = WEIGHT(at.along, k);                                                          \
      DLB_SIMD for (int j = 0; j < (lanes); ++j) sum[j] += w * LOAD_A(from, (long)k * p.inner + j); \
    }                                                                                           \
    DLB_SIMD for (int j = 0; j < (lanes); ++j) STORE_B(y, to + j, FINISH(p, weights, sum[j]));  \
  }
#ifdef DLB_CPU
    if (at.lanes == RESAMPLE_LANES) {  // sums stay in registers
      BLOCK(RESAMPLE_LANES)
      continue;
    }
#endif
    BLOCK(at.lanes)
  }
}

#ifndef BYTES
// The first output whose inputs end behind input i; with `begins`, the first whose inputs begin behind it.
inline int first_behind(global const int* bounds, int out, int i, int begins) {
  int low = 0, high = out;
  while (low < high) {
    const int middle = (low + high) / 2, start = bounds[2 * middle], end = start + bounds[2 * middle + 1];
    if ((begins ? start : end) > i)
      high = middle;
    else
      low = middle + 1;
  }
  return low;
}

// The transpose: y [outer, out, inner] is read, x [outer, in, inner] written. Rows are blocks of x.
kernel void resample_backward(global B_T* x, global const A_T* y, global const int* bounds, global const T* weights,
                              const ResamplePass p) {
  const ResampleAxis a = p.axis;
  bounds += a.bounds;
  global const T* table = weights + a.weights;
  FOR_UNITS(row) {
    const resample_unit at = unit_of(&p, row);
    const int first = first_behind(bounds, a.out, at.along, 0), end = first_behind(bounds, a.out, at.along, 1);
    T sum[RESAMPLE_LANES];
    for (int j = 0; j < at.lanes; ++j) sum[j] = 0;
    for (int o = first; o < end; ++o) {
      const T w = table[(long)(at.along - bounds[2 * o]) * a.out + o];
      global const A_T* from = y + p.y + ((long)at.outer * a.out + o) * p.inner + at.first;
      DLB_SIMD for (int j = 0; j < at.lanes; ++j) sum[j] += w * LOAD_A(from, j);
    }
    const long to = p.x + ((long)at.outer * a.in + at.along) * p.inner + at.first;
    DLB_SIMD for (int j = 0; j < at.lanes; ++j) STORE_B(x, to + j, sum[j]);
  }
}

#ifdef DLB_CPU
// The same where inner is 1, and B_T is T: every output of a row gives to its inputs.
kernel void resample_backward_rows(global B_T* x, global const A_T* y, global const int* bounds, global const T* weights,
                                   const ResamplePass p) {
  const ResampleAxis a = p.axis;
  bounds += a.bounds;
  global const T* table = weights + a.weights;
  FOR_UNITS(row) {
    global B_T* to = x + p.x + (long)row * a.in;
    global const A_T* from = y + p.y + (long)row * a.out;
    for (int i = 0; i < a.in; ++i) to[i] = 0;
    for (int o = 0; o < a.out; ++o) {
      const int start = bounds[2 * o], count = bounds[2 * o + 1];
      const T g = LOAD_A(from, o);
      for (int k = 0; k < count; ++k) to[start + k] += table[(long)k * a.out + o] * g;
    }
  }
}
#endif
#endif
