// Transforms of 8 to 4096 numbers, a power of two, on GPUs: Stockham's passes of radix 8 in registers, of which each
// work-item has 8 numbers. Between passes the numbers change work-items through local memory, where they lie once. So a
// tile needs half the local memory of fft/stockham.cl, and loops, indices and radices are known to the compiler. As in V.
// Volkov and B. Kazian, "Fitting FFT onto the G80 architecture" (2008).
//
// FFT_LOG2: log2 of the numbers. FFT_WIDTH: log2 of the transforms of a tile. IN_ACROSS, OUT_ACROSS: 1 where the
// transforms of a tile lie next to each other in memory, 0 where the numbers of one do. FFT_PAIRS: both sides are complex.
// Wants fft/common.clh.
typedef REAL V;
#include "fft/butterfly.clh"

#define POINTS (1 << FFT_LOG2)
#define ITEMS_LOG2 (FFT_LOG2 - 3)  // of the work-items of a transform
#define FULL_PASSES (FFT_LOG2 / 3)
#define REST_LOG2 (FFT_LOG2 % 3)  // the last pass has radix 2 or 4, or there is none
#define PASSES (FULL_PASSES + (REST_LOG2 > 0))

#define ITEM(id, across) ((across) ? (id) >> FFT_WIDTH : (id) & ((1 << ITEMS_LOG2) - 1))
#define LANE(id, across) ((across) ? (id) & ((1 << FFT_WIDTH) - 1) : (id) >> ITEMS_LOG2)

// Number e of a lane in local memory, with a gap in every 32 so that strides of 8 meet different banks.
inline int place_of(int e, int lane) {
  const int at = IN_ACROSS ? (e << FFT_WIDTH) + lane : (lane << FFT_LOG2) + e;
  return at + (at >> 5);
}
#define HALF_TILE ((POINTS << FFT_WIDTH) + (POINTS << FFT_WIDTH >> 5))

inline REAL2 multiply(REAL2 a, REAL2 b) { return (REAL2)(a.x * b.x - a.y * b.y, a.x * b.y + a.y * b.x); }

// Multiplies numbers 1 to 7 by the powers of a root.
inline void turn(REAL* re, REAL* im, REAL2 root) {
  REAL2 powers[8];
  powers[1] = root;
  powers[2] = multiply(root, root);
  powers[3] = multiply(powers[2], root);
  powers[4] = multiply(powers[2], powers[2]);
  powers[5] = multiply(powers[4], root);
  powers[6] = multiply(powers[4], powers[2]);
  powers[7] = multiply(powers[4], powers[3]);
#pragma unroll
  for (int i = 1; i < 8; ++i) {
    const REAL2 product = multiply((REAL2)(re[i], im[i]), powers[i]);
    re[i] = product.x, im[i] = product.y;
  }
}

// exp(-2 pi i power / points), from a table of 1 << bits low powers and one of high ones.
inline REAL2 root_of(global const REAL* t, uint power, int bits) {
  const uint low = power & ((1u << bits) - 1), high = power >> bits;
  return multiply(vload2(low, t), vload2(high, t + (2 << bits)));
}

// Pass number `PASS` of radix 8. After it the numbers that the next one wants change hands, if there is a next one.
#define FFT_FULL_PASS(PASS)                                                               \
  {                                                                                       \
    fft_8(re, im);                                                                        \
    if ((PASS) + 1 < PASSES) {                                                            \
      const int k = item >> 3 * (PASS), q = item & ((1 << 3 * (PASS)) - 1);               \
      turn(re, im, vload2(k << 3 * (PASS), roots));                                       \
      if ((PASS) > 0) barrier(CLK_LOCAL_MEM_FENCE);                                       \
      _Pragma("unroll") for (int i = 0; i < 8; ++i) {                                     \
        const int at = place_of(q + ((8 * k + i) << 3 * (PASS)), lane);                   \
        tile[at] = re[i], tile[HALF_TILE + at] = im[i];                                   \
      }                                                                                   \
      barrier(CLK_LOCAL_MEM_FENCE);                                                       \
      if ((PASS) + 2 == PASSES) item = ITEM(id, OUT_ACROSS), lane = LANE(id, OUT_ACROSS); \
      _Pragma("unroll") for (int i = 0; i < 8; ++i) {                                     \
        const int at = place_of(item + (i << ITEMS_LOG2), lane);                          \
        re[i] = tile[at], im[i] = tile[HALF_TILE + at];                                   \
      }                                                                                   \
    }                                                                                     \
  }

// Several smaller transforms, of numbers as far apart.
#define FFT_REST(R)                                                                                   \
  _Pragma("unroll") for (int u = 0; u < 8 / R; ++u) {                                                 \
    REAL a[R], b[R];                                                                                  \
    _Pragma("unroll") for (int i = 0; i < R; ++i) a[i] = re[u + 8 / R * i], b[i] = im[u + 8 / R * i]; \
    fft_##R(a, b);                                                                                    \
    _Pragma("unroll") for (int i = 0; i < R; ++i) re[u + 8 / R * i] = a[i], im[u + 8 / R * i] = b[i]; \
  }

// A work-item's numbers from those of its transform. Where that does not exist nothing is read: another's numbers may
// change meanwhile, where a step is in place.
static inline void load_points(global const REAL* in, const FftTiles* p, int item, bool exists, REAL* re, REAL* im) {
  const int swap = p->flags & FFT_SWAP_IN;
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    global const REAL* at = in + (item + (i << ITEMS_LOG2)) * p->in.step;
#ifdef FFT_PAIRS
    const REAL2 x = exists ? *(global const REAL2*)at : (REAL2)(0);
#else
    const REAL2 x = exists ? (REAL2)(at[0], p->in.im ? at[p->in.im] : 0) : (REAL2)(0);
#endif
    re[i] = swap ? x.y : x.x, im[i] = swap ? x.x : x.y;
  }
}

// Multiplies number e of column c by the root to the power e * c.
static inline void turn_steps(global const REAL* t, int bits, int item, uint c, REAL* re, REAL* im) {
  const REAL2 base = root_of(t, item * c, bits), root = root_of(t, c << ITEMS_LOG2, bits);
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    const REAL2 product = multiply((REAL2)(re[i], im[i]), base);
    re[i] = product.x, im[i] = product.y;
  }
  turn(re, im, root);
}

// Writes a work-item's numbers to those of its transform.
static inline void store_points(global REAL* out, const FftTiles* p, int item, REAL scale, const REAL* re,
                                const REAL* im) {
  const int swap = p->flags & FFT_SWAP_OUT;
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    global REAL* at = out + (item + (i << ITEMS_LOG2)) * p->out.step;
    const REAL2 x = (REAL2)(swap ? im[i] : re[i], swap ? re[i] : im[i]) * scale;
#ifdef FFT_PAIRS
    *(global REAL2*)at = x;
#else
    at[0] = x.x;
    if (p->out.im) at[p->out.im] = x.y;
#endif
  }
}

// The arguments are those of fft_stockham; `roots` are those of order POINTS.
kernel void fft_registers(global const REAL* input, global REAL* output, global const REAL* roots,
                          global const REAL* unused_real, global const REAL* unused_chirp,
                          global const REAL* unused_spectrum, global const REAL* steps, const FftTiles p,
                          const REAL scale, local REAL* tile) {
  const int group = get_group_id(0), index = group / p.blocks, column = (group - index * p.blocks) << FFT_WIDTH;
  const int lanes = p.lanes - column, id = get_local_id(0);
  long from = p.in.offset + column * p.in.lane, to = p.out.offset + column * p.out.lane;
  fft_locate(&p.in, &p.out, p.sizes, index + p.first, &from, &to);
  roots += p.twiddle;
  int item = ITEM(id, IN_ACROSS), lane = LANE(id, IN_ACROSS);
  REAL re[8], im[8];
  load_points(input + from + lane * p.in.lane, &p, item, lane < lanes, re, im);
  FFT_FULL_PASS(0)
#if FULL_PASSES > 1
  FFT_FULL_PASS(1)
#endif
#if FULL_PASSES > 2
  FFT_FULL_PASS(2)
#endif
#if FULL_PASSES > 3
  FFT_FULL_PASS(3)
#endif
#if REST_LOG2 == 1
  FFT_REST(2)
#elif REST_LOG2 == 2
  FFT_REST(4)
#endif
  if (p.flags & FFT_STEPS) {
    const uint c =
        p.flags & FFT_STEPS_OF_BATCH ? (uint)(index + p.first) % (uint)p.sizes[0] : (uint)column + min(lane, lanes - 1);
    turn_steps(steps + p.steps, p.step_bits, item, c, re, im);
  }
  if (lane >= lanes) return;
  store_points(output + to + lane * p.out.lane, &p, item, scale, re, im);
}
