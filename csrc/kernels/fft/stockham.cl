// clang-format off
// Transforms that fit a tile, by Stockham's passes of radices 2 to 13 between the tile's two halves, and what goes
// before and after: real numbers packed in pairs, Bluestein's chirp, the roots of unity of a longer transform.
// Wants fft/common.clh, butterfly.clh and tile.clh.

// One pass: `s` interleaved transforms of length R * m each become R * s of length m. w: R - 1 roots for each p.
#define FFT_PASS(R)                                                                                        \
  case R:                                                                                                  \
    FOR_BUTTERFLIES(k, q, m, s)                                                                            \
      V re[R], im[R];                                                                                      \
      _Pragma("unroll") for (int i = 0; i < R; ++i) {                                                      \
        re[i] = RE(x, q + s * (k + m * i)), im[i] = IM(x, q + s * (k + m * i));                            \
      }                                                                                                    \
      fft_##R(re, im);                                                                                     \
      RE(y, q + s * R * k) = re[0], IM(y, q + s * R * k) = im[0];                                          \
      if (k == 0) { /* all roots are 1 here, and the last pass has no other k */                           \
        _Pragma("unroll") for (int i = 1; i < R; ++i) RE(y, q + s * i) = re[i], IM(y, q + s * i) = im[i];  \
      } else {                                                                                             \
        _Pragma("unroll") for (int i = 1; i < R; ++i) {                                                    \
          const REAL c = w[2 * (k * (R - 1) + i - 1)], d = w[2 * (k * (R - 1) + i - 1) + 1];               \
          RE(y, q + s * (R * k + i)) = re[i] * c - im[i] * d;                                              \
          IM(y, q + s * (R * k + i)) = re[i] * d + im[i] * c;                                              \
        }                                                                                                  \
      }                                                                                                    \
    END                                                                                                    \
    break;

#ifdef DLB_CPU
#define TILE_SIZES
#define TILE_ARGS
#define WORK_OFFSET , const long work_offset
#define TILE_BUFFERS                                                    \
  TILE first = work + work_offset + get_global_id(0) * 4 * p.capacity;    \
  TILE second = first + 2 * p.capacity;                                 \
  const int tile_lanes = WIDTH, begin = get_global_id(0) * p.per_item, end = min(begin + p.per_item, p.tiles);
#define FOR_TILES(tile) for (int tile = begin; tile < end; ++tile)
#else
#define TILE_SIZES , const int capacity, const int width
#define TILE_ARGS , capacity, width
#define WORK_OFFSET
#define TILE_BUFFERS                                                     \
  const int capacity = p.capacity, width = p.width, tile_lanes = 1 << width; \
  TILE first = work;                                                     \
  TILE second = work + (2 * capacity << width);
#define FOR_TILES(tile) for (int tile = get_group_id(0), more = 1; more; more = 0)
#endif

// All passes; the result is in x or in y, which is returned.
inline TILE fft_passes(TILE x, TILE y, global const REAL* w, ulong radices, int passes, int n TILE_SIZES) {
  int s = 1;
  for (int pass = 0; pass < passes; ++pass) {
    const int radix = radices & 15, m = n / (s * radix);
    switch (radix) {
      FFT_PASS(2)
      FFT_PASS(3)
      FFT_PASS(4)
      FFT_PASS(5)
      FFT_PASS(8)
#ifdef FFT_SEVEN
      FFT_PASS(7)
#endif
#ifdef FFT_LARGE_RADICES
      FFT_PASS(11)
      FFT_PASS(13)
#endif
    }
    TILE_BARRIER
    w += 2 * m * (radix - 1);
    s *= radix, radices >>= 4;
    TILE t = x;
    x = y, y = t;
  }
  return x;
}

// n / 2 + 1 numbers of the spectrum of n real ones become the spectrum of their n / 2 pairs, which would be
// transformed backward: parts are swapped. t: roots of order n.
inline void fft_pack(TILE x, global const REAL* t, int pairs TILE_SIZES) {
  FOR_NUMBERS(k, pairs / 2 + 1)
    const int l = pairs - k;
    const V ar = RE(x, k), ai = k ? IM(x, k) : (V)(0), br = RE(x, l), bi = k ? -IM(x, l) : (V)(0);
    const V sr = ar + br, si = ai + bi, dr = ar - br, di = ai - bi;
    const V ur = t[2 * k] * dr + t[2 * k + 1] * di, ui = t[2 * k] * di - t[2 * k + 1] * dr;
    IM(x, k) = sr - ui, RE(x, k) = si + ur;
    if (k) IM(x, l) = sr + ui, RE(x, l) = ur - si;
  END
}

// The spectrum of pairs of real numbers becomes the first n / 2 + 1 of theirs.
inline void fft_unpack(TILE x, global const REAL* t, int pairs TILE_SIZES) {
  FOR_NUMBERS(k, pairs / 2 + 1)
    const int l = pairs - k, from = k ? l : 0;
    const V ar = RE(x, k), ai = IM(x, k), br = RE(x, from), bi = -IM(x, from);
    const V sr = (ar + br) * C(0.5), si = (ai + bi) * C(0.5), dr = (ar - br) * C(0.5), di = (ai - bi) * C(0.5);
    const V ur = t[2 * k] * dr - t[2 * k + 1] * di, ui = t[2 * k] * di + t[2 * k + 1] * dr;
    RE(x, k) = sr + ui, IM(x, k) = si - ur;
    RE(x, l) = sr - ui, IM(x, l) = -si - ur;
  END
}

// Numbers n - k become the conjugates of k, 0 < k < n / 2. Swapped: for what is transformed backward.
inline void fft_mirror(TILE x, int n, int swapped TILE_SIZES) {
  FOR_NUMBERS(k, n / 2 + 1)
    const V re = RE(x, k), im = swapped && k == 0 ? (V)(0) : IM(x, k);
    if (swapped) RE(x, k) = im, IM(x, k) = re;
    if (k && 2 * k < n) {
      RE(x, n - k) = swapped ? -im : re;
      IM(x, n - k) = swapped ? re : -im;
    }
  END
}

inline void fft_fill(TILE x, int begin, int n TILE_SIZES) {
  FOR_NUMBERS(e, n - begin)
    RE(x, begin + e) = 0, IM(x, begin + e) = 0;
  END
}

// Multiplies by a table, and swaps parts then if told; numbers from `points` to n become zero.
inline void fft_multiply(TILE x, global const REAL* t, int points, int n, int swap TILE_SIZES) {
  FOR_NUMBERS(e, n)
    V a = 0, b = 0;
    if (e < points) {
      const V re = RE(x, e), im = IM(x, e);
      a = re * t[2 * e] - im * t[2 * e + 1], b = re * t[2 * e + 1] + im * t[2 * e];
    }
    RE(x, e) = swap ? b : a, IM(x, e) = swap ? a : b;
  END
}

// Swaps parts and multiplies by a table.
inline void fft_unchirp(TILE x, global const REAL* t, int points TILE_SIZES) {
  FOR_NUMBERS(e, points)
    const V re = IM(x, e), im = RE(x, e);
    RE(x, e) = re * t[2 * e] - im * t[2 * e + 1], IM(x, e) = re * t[2 * e + 1] + im * t[2 * e];
  END
}

// Multiplies number e of column c by the root of unity to the power e * c, from a table of 1 << bits low powers
// and one of high powers. CPUs take those of the columns of a tile from a third.
inline void fft_steps(TILE x, global const REAL* t, int n, int points, int bits, int column,
                      int columns TILE_SIZES) {
  const int mask = (1 << bits) - 1, lows = 2 << bits;
#ifdef DLB_CPU
  global const REAL* within = t + lows + 2 * ((points >> bits) + 1);
#endif
  FOR_NUMBERS(e, n)
#ifdef DLB_CPU
    const uint power = (uint)e * (uint)column;
#else
    const uint power = (uint)e * (uint)min(column + lane, columns - 1);
#endif
    const REAL lr = t[2 * (power & mask)], li = t[2 * (power & mask) + 1];
    const REAL hr = t[lows + 2 * (power >> bits)], hi = t[lows + 2 * (power >> bits) + 1];
    const REAL wr = lr * hr - li * hi, wi = lr * hi + li * hr;
    const V re = RE(x, e), im = IM(x, e);
    const V a = re * wr - im * wi, b = re * wi + im * wr;
#ifdef DLB_CPU
    const V c = LOAD_V(2 * e, within), d = LOAD_V(2 * e + 1, within);
    RE(x, e) = a * c - b * d, IM(x, e) = a * d + b * c;
#else
    RE(x, e) = a, IM(x, e) = b;
#endif
  END
}

kernel void fft_stockham(global const REAL* input, global REAL* output, global const REAL* twiddle,
                         global const REAL* real_table, global const REAL* chirp, global const REAL* spectrum,
                         global const REAL* steps, const FftTiles p, const REAL scale,
                         TILE work WORK_OFFSET) {
  TILE_BUFFERS
  FOR_TILES(tile) {
    const int index = tile / p.blocks, column = (tile - index * p.blocks) * tile_lanes;
    const int lanes = min(tile_lanes, p.lanes - column), flags = p.flags;
    long from = p.in.offset + column * p.in.lane, to = p.out.offset + column * p.out.lane;
    fft_locate(&p.in, &p.out, p.sizes, index + p.first, &from, &to);
    global const REAL* in = input + from;
    global REAL* out = output + to;
    TILE x = first;
    TILE y = second;
    LOAD_TILE(x, p.in_count, flags & FFT_SWAP_IN ? 1 : 0)
    TILE_BARRIER
    if (flags & FFT_PACK) fft_pack(x, real_table + p.real, p.points TILE_ARGS);
    if (flags & FFT_HERMITIAN) fft_mirror(x, p.points, 1 TILE_ARGS);
    if (flags & FFT_FILL) fft_fill(x, p.in_count, p.n TILE_ARGS);
    TILE_BARRIER
    const int rounds = flags & FFT_CHIRP ? 2 : 1;
    for (int round = 0; round < rounds; ++round) {
      if (flags & FFT_CHIRP)
        fft_multiply(x, round ? spectrum + p.spectrum : chirp + p.chirp, round ? p.n : p.points, p.n, round TILE_ARGS);
      TILE_BARRIER
      TILE z = fft_passes(x, y, twiddle + p.twiddle, p.radices, p.passes, p.n TILE_ARGS);
      y = z == x ? y : x, x = z;
    }
    if (flags & FFT_CHIRP) fft_unchirp(x, chirp + p.chirp, p.points TILE_ARGS);
    if (flags & FFT_STEPS) {
      const int of_batch = flags & FFT_STEPS_OF_BATCH, c = of_batch ? (index + p.first) % p.sizes[0] : column;
      fft_steps(x, steps + p.steps, p.n, p.step_points, p.step_bits, c, of_batch ? c + 1 : p.lanes TILE_ARGS);
    }
    TILE_BARRIER
    if (flags & FFT_UNPACK) fft_unpack(x, real_table + p.real, p.points TILE_ARGS);
    TILE_BARRIER
    if (flags & FFT_MIRROR) fft_mirror(x, p.out_count, 0 TILE_ARGS);
    TILE_BARRIER
    STORE_TILE(x, p.out_count, flags & FFT_SWAP_OUT ? 1 : 0)
  }
}
