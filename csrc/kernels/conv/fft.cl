// Convolution by Fourier transforms: what stands between the transforms.
#include "kernels/conv/params.h"

#ifdef DLB_CPU
#define JOIN_(a, b) a##b
#define JOIN(a, b) JOIN_(a, b)
typedef JOIN(float, WIDTH) V;
// whole names, as in fft/tile.clh
#if WIDTH == 16
#define LOAD(p) vload16(0, p)
#define STORE(v, p) vstore16(v, 0, p)
#elif WIDTH == 8
#define LOAD(p) vload8(0, p)
#define STORE(v, p) vstore8(v, 0, p)
#else
#define LOAD(p) vload4(0, p)
#define STORE(v, p) vstore4(v, 0, p)
#endif
#else
#define WIDTH 1
typedef float V;
#define LOAD(p) (*(p))
#define STORE(v, p) (*(p) = (v))
#endif
#define FOR_ITEMS(id) \
  for (int id = get_global_id(0) * t.per_item, id##_end = min(id + t.per_item, t.items); id < id##_end; ++id)

// The chunk's images, a line of t.columns for each of their rows, zeros behind it.
kernel void conv_fft_image(global const float* in, const long from, global float* to, const long begin, const Gather g,
                           const FftChunk t) {
  const int channels = g.groups * g.red;
  FOR_ITEMS(id) {
    const int y = id % g.in[1], c = id / g.in[1] % channels, n = id / g.in[1] / channels + t.image;
    global const float* line = in + from + n * g.is[0] + c * g.is[1] + y * g.is[3];
    global float* out = to + begin + (long)id * t.columns;
    for (int x = 0; x < g.in[2]; ++x) out[x] = line[x * g.is[4]];
    for (int x = g.in[2]; x < t.columns; ++x) out[x] = 0;
  }
}

// Filters turned so that tap t of an axis lies at first + t * dilation, around the corner where that is negative: results
// then begin at 0. An item is a line.
kernel void conv_fft_filter(global const float* w, const long from, global float* to, const long begin, const Gather g,
                            const FftChunk t) {
  FOR_ITEMS(id) {
    const int y = id % t.rows, r = id / t.rows % g.red, channel = id / t.rows / g.red;
    const int group = channel / g.cols, col = channel - group * g.cols;
    global float* out = to + begin + (long)id * t.columns;
    for (int x = 0; x < t.columns; ++x) out[x] = 0;
    for (int i = 0; i < g.taps[1]; ++i) {
      const int row = g.first[1] + i * g.dilation[1];
      if ((row < 0 ? row + t.rows : row) != y) continue;
      global const float* taps = w + from + group * g.wgroup + col * g.wcol + r * g.wred + i * g.wtap[1];
      for (int j = 0; j < g.taps[2]; ++j) {
        const int x = g.first[2] + j * g.dilation[2];
        out[x < 0 ? x + t.columns : x] = taps[j * g.wtap[2]];
      }
    }
  }
}

// y[image][group, col] = sum over red of x[image][group, red] * conj(w[group, col][red]), number by number. An item is a
// vector of numbers of FFT_IMAGES images and FFT_COLUMNS channels; those that there are not repeat the last one.
kernel void conv_fft_multiply(global const float* x, const long ox, global const float* w, const long ow,
                              global float* y, const long oy, const Gather g, const FftChunk t) {
  const int vectors = t.plane / WIDTH, blocks = (g.cols + FFT_COLUMNS - 1) / FFT_COLUMNS;
  const long spectrum = 2 * t.plane;
  FOR_ITEMS(id) {
    const int f = id % vectors * WIDTH, block = id / vectors % blocks, rest = id / vectors / blocks;
    const int group = rest % g.groups, pair = rest / g.groups * FFT_IMAGES;
    global const float* a[FFT_IMAGES];
    global const float* b[FFT_COLUMNS];
#pragma unroll
    for (int i = 0; i < FFT_IMAGES; ++i)
      a[i] = x + ox + ((long)min(pair + i, t.images - 1) * g.groups + group) * g.red * spectrum + f;
#pragma unroll
    for (int j = 0; j < FFT_COLUMNS; ++j)
      b[j] = w + ow + ((long)group * g.cols + min(block * FFT_COLUMNS + j, g.cols - 1)) * g.red * spectrum + f;
    V re[FFT_IMAGES][FFT_COLUMNS], im[FFT_IMAGES][FFT_COLUMNS];
#pragma unroll
    for (int i = 0; i < FFT_IMAGES; ++i)
#pragma unroll
      for (int j = 0; j < FFT_COLUMNS; ++j) re[i][j] = im[i][j] = 0;
    for (long r = 0; r < g.red * spectrum; r += spectrum) {
#pragma unroll
      for (int j = 0; j < FFT_COLUMNS; ++j) {
        const V c = LOAD(b[j] + r), d = LOAD(b[j] + r + t.plane);
#pragma unroll
        for (int i = 0; i < FFT_IMAGES; ++i) {
          const V p = LOAD(a[i] + r), q = LOAD(a[i] + r + t.plane);
          re[i][j] += p * c, re[i][j] += q * d;
          im[i][j] += q * c, im[i][j] -= p * d;
        }
      }
    }
#pragma unroll
    for (int i = 0; i < FFT_IMAGES; ++i)
#pragma unroll
      for (int j = 0; j < FFT_COLUMNS; ++j) {
        const int n = pair + i, col = block * FFT_COLUMNS + j;
        if (n >= t.images || col >= g.cols) continue;
        global float* to = y + oy + (((long)n * g.groups + group) * g.cols + col) * spectrum + f;
        STORE(re[i][j], to);
        STORE(im[i][j], to + t.plane);
      }
  }
}

// A result as a direct sum.
inline float direct_sum(global const float* in, global const float* w, const Gather* g, int n, int c, int y, int x) {
  const int group = c / g->cols, col = c - group * g->cols;
  in += n * g->is[0] + group * g->red * g->is[1];
  w += group * g->wgroup + col * g->wcol;
  float sum = 0;
  for (int r = 0; r < g->red; ++r)
    for (int i = 0; i < g->taps[1]; ++i)
      for (int j = 0; j < g->taps[2]; ++j) {
        const int row = y + g->first[1] + i * g->dilation[1], column = x + g->first[2] + j * g->dilation[2];
        if (row < 0 || row >= g->in[1] || column < 0 || column >= g->in[2]) continue;
        sum += in[r * g->is[1] + row * g->is[3] + column * g->is[4]] * w[r * g->wred + i * g->wtap[1] + j * g->wtap[2]];
      }
  return sum;
}

// Results from lines of t.columns; an item is a line. A transform spreads infinities and NaN over the whole image, so that
// results which are not finite are computed again.
kernel void conv_fft_output(global const float* from, const long begin, global const float* in, const long oin,
                            global const float* w, const long ow, global const float* bias, const long obias,
                            global float* out, const long to, const Gather g, const FftChunk t) {
  const int channels = g.groups * g.cols;
  FOR_ITEMS(id) {
    const int y = id % g.q[1], c = id / g.q[1] % channels, n = id / g.q[1] / channels + t.image;
    global const float* line = from + begin + (long)id * t.columns;
    global float* o = out + to + n * g.os[0] + c * g.os[1] + y * g.os[3];
    const float add = g.has_bias ? bias[obias + c] : 0;
    for (int x = 0; x < g.q[2]; ++x) {
      const float v = (isfinite(line[x]) ? line[x] : direct_sum(in + oin, w + ow, &g, n, c, y, x)) + add;
      o[x * g.os[4]] = v < g.low ? g.low : v > g.high ? g.high : v;
    }
  }
}
