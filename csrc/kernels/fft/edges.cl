// The steps before and after transforms that do not fit a tile: copies with a table, and real numbers in pairs. Wants
// fft/common.clh.

#ifdef DLB_CPU
#define DLB_SIMD _Pragma("clang loop vectorize(assume_safety)")
#else
#define DLB_SIMD
#endif

// Visits the work-item's runs of items, `each` of which there are to a transform.
#define FOR_RUNS(each)                                                     \
  const long each_ = (each), begin_ = (long)get_global_id(0) * p.per_item; \
  const long stop_ = min(p.transforms * each_, begin_ + p.per_item);       \
  for (long id_ = begin_; id_ < stop_; id_ = (id_ / each_ + 1) * each_)
// Where the run's transform lies; its items are [k, end).
#define LOCATE                                                                                       \
  const int transform = id_ / each_, k = id_ - transform * each_, end = min(each_, k + stop_ - id_); \
  long from = p.in.offset, to = p.out.offset;                                                        \
  fft_locate(&p.in, &p.out, p.sizes, transform + p.first, &from, &to);                               \
  global const REAL* in = input + from;                                                              \
  global REAL* out = output + to;
// The last arguments of copy_run and the like. Where complex numbers are neighbours the compiler is told their steps, so
// that it makes vectors. (OpenCL C has no macros of any number of arguments, which would write both calls at once.)
#define IS_DENSE (p.in.step == 2 && p.in.im == 1 && p.out.step == 2 && p.out.im == 1)
#define DENSE_STEPS 2, 1, 2, 1
#define STEPS p.in.step, p.in.im, p.out.step, p.out.im

// out[k] = in[k] * table[k] * scale, with parts swapped before and after.
inline void copy_run(global const REAL* in, global REAL* out, global const REAL* t, int use_table, int k, int end,
                     int swap_in, int swap_out, REAL scale, long xs, long xi, long ys, long yi) {
  DLB_SIMD for (int e = k; e < end; ++e) {
    const REAL x = in[e * xs], y = xi ? in[e * xs + xi] : 0;
    const REAL re = swap_in ? y : x, im = swap_in ? x : y;
    const REAL c = use_table ? t[2 * e] : 1, d = use_table ? t[2 * e + 1] : 0;
    const REAL a = (re * c - im * d) * scale, b = (re * d + im * c) * scale;
    out[e * ys] = swap_out ? b : a;
    if (yi) out[e * ys + yi] = swap_out ? a : b;
  }
}

// The same of the second half of a spectrum, which is the first one's mirror image. Number 0 is real.
inline void copy_mirrored(global const REAL* in, global REAL* out, global const REAL* t, int use_table, int k, int end,
                          int points, int swap_in, int swap_out, REAL scale, const FftView* from, const FftView* to) {
  for (int e = k; e < end; ++e) {
    const int mirrored = 2 * e > points;
    global const REAL* at = in + (mirrored ? points - e : e) * from->step;
    const REAL x = at[0], y = e == 0 ? 0 : mirrored ? -at[from->im] : at[from->im];
    const REAL re = swap_in ? y : x, im = swap_in ? x : y;
    const REAL c = use_table ? t[2 * e] : 1, d = use_table ? t[2 * e + 1] : 0;
    const REAL a = (re * c - im * d) * scale, b = (re * d + im * c) * scale;
    out[e * to->step] = swap_out ? b : a;
    if (to->im) out[e * to->step + to->im] = swap_out ? a : b;
  }
}

// p.count numbers of each transform, zeros from p.points on, multiplied by the table if there is one.
kernel void fft_copy(global const REAL* input, global REAL* output, global const REAL* table, const FftEdge p,
                     const REAL scale) {
  table += p.table;
  const int swap_in = p.flags & FFT_SWAP_IN ? 1 : 0, swap_out = p.flags & FFT_SWAP_OUT ? 1 : 0;
  FOR_RUNS(p.count) {
    LOCATE
    const int there = min(end, p.points);
    if (p.flags & FFT_HERMITIAN) {
      copy_mirrored(in, out, table, p.use_table, k, there, p.points, swap_in, swap_out, scale, &p.in, &p.out);
    } else if (k < there) {
      if (IS_DENSE) copy_run(in, out, table, p.use_table, k, there, swap_in, swap_out, scale, DENSE_STEPS);
      else copy_run(in, out, table, p.use_table, k, there, swap_in, swap_out, scale, STEPS);
    }
    for (int e = max(k, p.points); e < end; ++e) {
      out[e * p.out.step] = 0;
      if (p.out.im) out[e * p.out.step + p.out.im] = 0;
    }
  }
}

// As fft_pack of fft/stockham.cl, pairs k and their partners.
inline void pack_run(global const REAL* in, global REAL* out, global const REAL* t, int pairs, int k, int end,
                     REAL scale, long xs, long xi, long ys, long yi) {
  if (k == 0) {
    const REAL a = in[0], b = in[pairs * xs];
    out[0] = (a - b) * scale, out[yi] = (a + b) * scale;
    k = 1;
  }
  DLB_SIMD for (int e = k; e < end; ++e) {
    const int l = pairs - e;
    const REAL ar = in[e * xs], ai = in[e * xs + xi], br = in[l * xs], bi = -in[l * xs + xi];
    const REAL sr = ar + br, si = ai + bi, dr = ar - br, di = ai - bi;
    const REAL ur = t[2 * e] * dr + t[2 * e + 1] * di, ui = t[2 * e] * di - t[2 * e + 1] * dr;
    out[e * ys] = (si + ur) * scale, out[e * ys + yi] = (sr - ui) * scale;
    out[l * ys] = (ur - si) * scale, out[l * ys + yi] = (sr + ui) * scale;
  }
}

kernel void fft_pack_edge(global const REAL* input, global REAL* output, global const REAL* table, const FftEdge p,
                          const REAL scale) {
  FOR_RUNS(p.points / 2 + 1) {
    LOCATE
    if (IS_DENSE) pack_run(in, out, table + p.table, p.points, k, end, scale, DENSE_STEPS);
    else pack_run(in, out, table + p.table, p.points, k, end, scale, STEPS);
  }
}

// As fft_unpack; mirrored: the other half of the spectrum too.
inline void unpack_run(global const REAL* in, global REAL* out, global const REAL* t, int pairs, int k, int end,
                       int mirrored, REAL scale, long xs, long xi, long ys, long yi) {
  if (k == 0) {
    const REAL a = in[0], b = in[xi];
    out[0] = (a + b) * scale, out[yi] = 0;
    out[pairs * ys] = (a - b) * scale, out[pairs * ys + yi] = 0;
    k = 1;
  }
  const REAL h = scale * C(0.5);
  DLB_SIMD for (int e = k; e < end; ++e) {
    const int l = pairs - e;
    const REAL ar = in[e * xs], ai = in[e * xs + xi], br = in[l * xs], bi = in[l * xs + xi];
    const REAL sr = ar + br, si = ai - bi, dr = ar - br, di = ai + bi;
    const REAL ur = t[2 * e] * dr - t[2 * e + 1] * di, ui = t[2 * e] * di + t[2 * e + 1] * dr;
    out[e * ys] = (sr + ui) * h, out[e * ys + yi] = (si - ur) * h;
    out[l * ys] = (sr - ui) * h, out[l * ys + yi] = (-si - ur) * h;
  }
  if (!mirrored) return;
  for (int e = k; e < end; ++e) {
    const int l = pairs - e;
    out[(pairs + l) * ys] = out[e * ys], out[(pairs + l) * ys + yi] = -out[e * ys + yi];
    out[(pairs + e) * ys] = out[l * ys], out[(pairs + e) * ys + yi] = -out[l * ys + yi];
  }
}

kernel void fft_unpack_edge(global const REAL* input, global REAL* output, global const REAL* table, const FftEdge p,
                            const REAL scale) {
  const int mirrored = p.flags & FFT_MIRROR ? 1 : 0;
  FOR_RUNS(p.points / 2 + 1) {
    LOCATE
    if (IS_DENSE) unpack_run(in, out, table + p.table, p.points, k, end, mirrored, scale, DENSE_STEPS);
    else unpack_run(in, out, table + p.table, p.points, k, end, mirrored, scale, STEPS);
  }
}
