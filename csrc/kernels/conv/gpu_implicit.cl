// Convolution as an implicit matrix product for GPU-class devices, every size at run time: forward and input gradient
// (WGRAD 0), weight gradient (WGRAD 1); 1 to 3 spatial axes, groups, strides, dilation, padding, any strides in memory.
//
// Three tensors meet: x is gathered through the taps; y holds the pixels that the taps are centred on; w the weights.
//   forward         y[n,m,pixel]  = sum over (c, tap)     w[m,c,tap] * x[n,c,pixel moved by tap]
//   input gradient  the same with x = dL/dy, y = dL/dx and the roles of w's channels exchanged. The pixels of dL/dx
//                   fall into stride phases; inside a phase only every stride-th tap counts, and the sum is again
//                   a forward one of stride 1: no multiplication by an inserted zero, and no test for divisibility.
//   weight gradient w[m,(c,tap)]  = sum over (n, pixel)   y[n,m,pixel] * x[n,c,pixel moved by tap]
//
// The address of a gathered element is the sum of a pixel's and a tap's part, and so is the test whether it lies inside
// x. Both parts live in tables in local memory: one is fixed for the tile's columns, the other is filled for a block
// of k at a time by all work-items, so the divisions by run-time sizes cost next to nothing.
#include "kernels/conv/params.h"

#ifndef WGRAD
#define WGRAD 0
#endif
#ifndef X_VECTOR  // 1: x's channels are contiguous and aligned in fours, and c_fastest; 0: x lies in any way
#define X_VECTOR 0
#endif
#ifndef WIDE  // 1: kernels with more taps than the validity masks of 30 bits hold
#define WIDE 0
#endif

// With CONSTANTS(p), which sets all of ConvImplicit but the offsets, the program is for one problem: its axes and tables are
// computed from constants, and of the ways to load and store the others fall away.
#ifdef CONSTANTS
#define AXIS_SPACE private
#else
#define AXIS_SPACE local
#endif

// One axis inside a phase: pixel o and tap t meet at x coordinate o * step + origin + t * tap_step.
typedef struct {
  int pixels, step, origin;
  int taps, tap_step;
  int tap_first, tap_inc;  // tap t is tap tap_first + t * tap_inc of w
  int y_first, y_step;     // pixel o is pixel y_first + o * y_step of y
  int x_size, x_stride, y_stride, w_stride, bit;
} Axis;

#if WIDE
typedef int4 Entry;        // offset in x, then x coordinate along each axis
#define FAR (INT_MIN / 2)  // the coordinate of absent entries: inside nothing, even when two of them meet
#define INSIDE(a, b)                                                                         \
  ((uint)((a).y + (b).y) < (uint)p.x_size[0] && (uint)((a).z + (b).z) < (uint)p.x_size[1] && \
   (uint)((a).w + (b).w) < (uint)p.x_size[2])
#else
typedef int2 Entry;  // offset in x; mask: for a pixel the taps that leave x, for a tap its own bits
#define INSIDE(a, b) (((a).y & (b).y) == 0)
#define PIXEL_BIT INT_MIN  // these two keep absent entries, whose mask is -1, from matching anything
#define TAP_BIT (1 << 30)
#endif

static inline int gcd(int a, int b) {
  while (b) {
    const int r = a % b;
    a = b, b = r;
  }
  return a;
}

// Stride phases of an axis, and the i-th of them; where phases without taps are left out, the i-th is tap i's.
static inline int phases_of(const ConvImplicit* p, int d) {
  const int stride = p->stride[d];
  return !p->phased ? 1 : p->phased == 1 ? stride : min(p->taps[d], stride / gcd(stride, p->dilation[d]));
}

static inline int phase_at(const ConvImplicit* p, int d, int i) {
  if (p->phased != 2) return i;
  const int phase = (i * p->dilation[d] - p->pad[d]) % p->stride[d];
  return phase < 0 ? phase + p->stride[d] : phase;
}

static inline Axis make_axis(const ConvImplicit* p, int d, int phase) {
  Axis a;
  const int stride = p->stride[d], dilation = p->dilation[d];
  a.x_size = p->x_size[d], a.x_stride = p->x_s[d], a.y_stride = p->y_s[d], a.w_stride = p->w_s[d];
  a.bit = p->bit[d];
  if (!p->phased) {
    a.pixels = p->y_size[d], a.step = stride, a.origin = -p->pad[d];
    a.taps = p->taps[d], a.tap_step = dilation, a.tap_first = 0, a.tap_inc = 1;
    a.y_first = 0, a.y_step = 1;
    return a;
  }
  const int at = phase + p->pad[d], limit = min(stride, p->taps[d]);
  int first = 0;
  while (first < limit && (at - first * dilation) % stride != 0) first++;
  a.pixels = max((p->y_size[d] - phase + stride - 1) / stride, 0), a.step = 1;
  a.origin = (at - first * dilation) / stride;
  a.tap_first = first, a.tap_inc = stride / gcd(stride, dilation);
  a.taps = first < limit ? (p->taps[d] - first + a.tap_inc - 1) / a.tap_inc : 0;
  a.tap_step = -(a.tap_inc * dilation / stride);
  a.y_first = phase, a.y_step = stride;
  return a;
}

// The axes inside a phase, by its number among the phases of all axes.
static inline void find_axes(const ConvImplicit* p, int phase, AXIS_SPACE Axis* axis) {
  for (int d = 2; d >= 0; d--) {
    const int phases = phases_of(p, d);
    axis[d] = make_axis(p, d, phase_at(p, d, phase % phases));
    phase /= phases;
  }
}

// Table entry of pixel q of the phase, and its offset in y; absent and -1 from `limit` on.
static inline Entry pixel_entry(const ConvImplicit* p, AXIS_SPACE const Axis* axis, uint q, uint limit,
                                local int* y_offset) {
  const bool absent = q >= limit;
  const uint n = q / (uint)max(axis[0].pixels * axis[1].pixels * axis[2].pixels, 1);
  int x_at = n * p->x_n, y_at = n * p->y_n, invalid = 0, coordinate[3];
  for (int d = 2; d >= 0; d--) {
    const uint rest = q / (uint)max(axis[d].pixels, 1);
    const int o = q - rest * axis[d].pixels;
    q = rest;
    coordinate[d] = o * axis[d].step + axis[d].origin;
    x_at += coordinate[d] * axis[d].x_stride;
    y_at += (axis[d].y_first + o * axis[d].y_step) * axis[d].y_stride;
#if !WIDE
    if (axis[d].bit >= 0)
      for (int t = 0; t < axis[d].taps; t++)
        if ((uint)(coordinate[d] + t * axis[d].tap_step) >= (uint)axis[d].x_size) invalid |= 1 << (axis[d].bit + t);
#endif
  }
  *y_offset = absent ? -1 : y_at;
#if WIDE
  return (int4)(x_at, absent ? FAR : coordinate[0], coordinate[1], coordinate[2]);
#else
  return (int2)(x_at, absent ? -1 : invalid | PIXEL_BIT);
#endif
}

// Table entry of the k-th (channel, tap), and its offset in w; absent and -1 from `limit` on.
static inline Entry tap_entry(const ConvImplicit* p, AXIS_SPACE const Axis* axis, uint k, uint limit,
                              local int* w_offset) {
  const bool absent = k >= limit;
  const uint taps = max(axis[0].taps * axis[1].taps * axis[2].taps, 1);
  const uint c = p->c_fastest ? k % p->channels : k / taps;
  uint tap = p->c_fastest ? k / p->channels : k - c * taps;
  int x_at = c * p->x_c, w_at = c * p->w_c, bits = 0, moved[3];
  for (int d = 2; d >= 0; d--) {
    const uint rest = tap / (uint)max(axis[d].taps, 1);
    const int t = tap - rest * axis[d].taps;
    tap = rest;
    moved[d] = t * axis[d].tap_step;
    x_at += moved[d] * axis[d].x_stride;
    w_at += (axis[d].tap_first + t * axis[d].tap_inc) * axis[d].w_stride;
#if !WIDE
    if (axis[d].bit >= 0) bits |= 1 << (axis[d].bit + t);
#endif
  }
  *w_offset = absent ? -1 : w_at;
#if WIDE
  return (int4)(x_at, absent ? FAR : moved[0], moved[1], moved[2]);
#else
  return (int2)(x_at, absent ? -1 : bits | TAP_BIT);
#endif
}

#if WGRAD
#define k_entry pixel_entry
#define column_entry tap_entry
#else
#define k_entry tap_entry
#define column_entry pixel_entry
#endif

// How the work-items share the copying of x's tile.
#if X_VECTOR
#define B_KFAST (!WGRAD)  // neighbouring work-items read neighbouring k, else neighbouring columns
#define B_VEC 4
#else
#define B_KFAST WGRAD
#define B_VEC 1
#endif
#if B_VEC == 4
#define B_ELEM ELEM4
#else
#define B_ELEM ELEM
#endif
#define B_LOADS (TN * TK / B_VEC / ITEMS)
#define B_FAST ((B_KFAST ? TK : TN) / B_VEC)
#if TN * TK % (4 * ITEMS)
#error "every work-item takes the same number of elements of x"
#endif
#define B_COLS ((B_FAST + ITEMS - 1) / ITEMS)  // columns of one work-item when those are the fast direction

// Along columns a work-item takes consecutive k of one column: one pixel entry in registers, consecutive tap entries.
static inline int b_column(int item, int i) {
  return B_KFAST ? item / B_FAST + i * (ITEMS / B_FAST) : (item % B_FAST + i % B_COLS * ITEMS) * B_VEC;
}

static inline int b_k(int item, int i) {
  return B_KFAST ? item % B_FAST * B_VEC : item / B_FAST * (B_LOADS / B_COLS) + i / B_COLS;
}

INLINE void a_load(ELEM4* reg, global const T* a, const int* row_offset, local const int* k_offset, int item,
                   const ConvImplicit* p, int rows_left) {
#pragma unroll
  for (int i = 0; i < GROUPS(TM); i++) {
    const int row = group_row(item, i, TM, p->a_k_fast);
    local const int* k = k_offset + group_k(item, i, TM, p->a_k_fast);
    if (p->a_vector) {
      reg[i] = (ELEM4)(0);  // no vector in a conditional expression: compilers differ on what selects
      const int at = group_exists(item, i, TM) && (p->a_k_fast || row < rows_left) ? *k : -1;
      if (at >= 0) reg[i] = fetch4(a + (row_offset[i] + at));
    } else {
      ELEM v[4];
#pragma unroll
      for (int e = 0; e < 4; e++) {
        const int at = !group_exists(item, i, TM)       ? -1
                       : p->a_k_fast                    ? k[e]
                       : row + e < rows_left && *k >= 0 ? *k + e * p->a_row
                                                        : -1;
        v[e] = at >= 0 ? fetch1(a + (row_offset[i] + at)) : 0;
      }
      reg[i] = four(v[0], v[1], v[2], v[3]);
    }
  }
}

INLINE void b_load(B_ELEM* reg, global const T* x, local const Entry* columns, local const Entry* ks, int item,
                   const ConvImplicit* args) {
#if WIDE
  const ConvImplicit p = *args;
#endif
#pragma unroll
  for (int i = 0; i < B_LOADS; i++) {
    const Entry c = columns[b_column(item, i)], k = ks[b_k(item, i)];
#if B_VEC == 4
    reg[i] = (ELEM4)(0);
    if (INSIDE(c, k)) {
      global const T* at = x + (c.x + k.x);
      reg[i] = args->x_aligned ? fetch4(at) : four(fetch1(at), fetch1(at + 1), fetch1(at + 2), fetch1(at + 3));
    }
#else
    reg[i] = INSIDE(c, k) ? fetch1(x + (c.x + k.x)) : 0;
#endif
  }
}

#ifdef MMA
INLINE void b_store(const B_ELEM* reg, local CELL* tile, int item) {
#if B_KFAST && B_VEC == 1
#pragma unroll
  for (int i = 0; i < B_LOADS; i++) {
    const int k = b_k(item, i), word = cell(k / K_WORD, b_column(item, i), TN);
#if K_WORD == 1
    tile[word] = word_of(reg[i]);
#else
    ((local ushort*)tile)[2 * word + k % 2] = reg[i];
#endif
  }
#elif B_KFAST
#pragma unroll
  for (int i = 0; i < B_LOADS; i++) store_along_k(tile, reg[i], b_k(item, i), b_column(item, i), TN);
#elif B_VEC == 4  // consecutive loads are consecutive k of the same columns
#pragma unroll
  for (int i = 0; i < B_LOADS; i += K_WORD) store_along_rows(tile, reg + i, b_k(item, i), b_column(item, i), TN);
#else
#pragma unroll
  for (int i = 0; i < B_LOADS; i += K_WORD) {
    local CELL* o = tile + cell(b_k(item, i) / K_WORD, b_column(item, i), TN);
#if K_WORD == 1
    *o = word_of(reg[i]);
#else
    *o = word_of(reg[i], reg[i + 1]);
#endif
  }
#endif
}
#if !B_KFAST && (B_COLS != 1 || B_LOADS % K_WORD)
#error "a word's elements are loaded one after the other"
#endif
#else
INLINE void b_store(const B_ELEM* reg, local CELL* tile, int item) {
#pragma unroll
  for (int i = 0; i < B_LOADS; i++) {
    local ACC* o = tile + b_k(item, i) * PITCH_N + b_column(item, i);
#if B_VEC == 4 && !B_KFAST
    *(local ACC4*)o = reg[i];
#elif B_VEC == 4
    o[0] = reg[i].x, o[PITCH_N] = reg[i].y, o[2 * PITCH_N] = reg[i].z, o[3 * PITCH_N] = reg[i].w;
#else
    *o = reg[i];
#endif
  }
}
#endif

// A 4 x 4 piece of the result; at[e] is the offset of column e, negative where there is none.
INLINE void store_piece(global T* out, const ACC4* v, const local int* at, int rows, int row_stride, int out_vector) {
  if (out_vector == 2 && rows >= 4) {
    if (at[0] >= 0) store4(out + at[0], (ACC4)(v[0].x, v[1].x, v[2].x, v[3].x));
    if (at[1] >= 0) store4(out + at[1], (ACC4)(v[0].y, v[1].y, v[2].y, v[3].y));
    if (at[2] >= 0) store4(out + at[2], (ACC4)(v[0].z, v[1].z, v[2].z, v[3].z));
    if (at[3] >= 0) store4(out + at[3], (ACC4)(v[0].w, v[1].w, v[2].w, v[3].w));
    return;
  }
#pragma unroll
  for (int r = 0; r < 4; r++) {
    if (r >= rows) continue;
    global T* o = out + r * row_stride;
    if (out_vector == 1 && at[3] >= 0) {
      store4(o + at[0], v[r]);
    } else {
      if (at[0] >= 0) store1(o + at[0], v[r].x);
      if (at[1] >= 0) store1(o + at[1], v[r].y);
      if (at[2] >= 0) store1(o + at[2], v[r].z);
      if (at[3] >= 0) store1(o + at[3], v[r].w);
    }
  }
}

#if !WGRAD
// A 4 x 4 piece, whose rows from m on are channels behind `channel`; its first row begins at `base`.
INLINE void finish_piece(ACC4* v, const ConvImplicit* p, const local int* at, long base, int m,
                         int channel EPILOGUE_PARAMETERS) {
#pragma unroll
  for (int r = 0; r < 4; r++) {
    ACC w[4] = {v[r].x, v[r].y, v[r].z, v[r].w};
    long places[4];
#pragma unroll
    for (int e = 0; e < 4; e++) places[e] = at[e] >= 0 && m + r < p->rows ? base + r * p->out_row + at[e] : -1;
    finish4(w, p->low, p->high, places, 0, channel + min(m + r, p->rows - 1), 0 EPILOGUE_ARGUMENTS);
    v[r] = (ACC4)(w[0], w[1], w[2], w[3]);
  }
}
#endif

INLINE void store_partial_piece(global ACC* out, const ACC4* v, const local int* at, int rows, int row_stride) {
#pragma unroll
  for (int r = 0; r < 4; r++) {
    if (r >= rows) continue;
    global ACC* o = out + r * row_stride;
    if (at[0] >= 0) o[at[0]] = v[r].x;
    if (at[1] >= 0) o[at[1]] = v[r].y;
    if (at[2] >= 0) o[at[2]] = v[r].z;
    if (at[3] >= 0) o[at[3]] = v[r].w;
  }
}

// acc += the products of a tile for k from k0 to k1. The tables have the columns and the first ITEMS of k.
INLINE void multiply_part(ACCUMULATORS(acc), local CELL* tiles, Place place, global const T* x, global const T* a,
                          const int* row_offset, const local Entry* column_table, local Entry* k_table,
                          local int* a_table, const ConvImplicit* p, AXIS_SPACE const Axis* axis, int k0, int k1,
                          int tile_m, int item) {
  ELEM4 a_reg[GROUPS(TM)];
  B_ELEM b_reg[B_LOADS];
  a_load(a_reg, a, row_offset, a_table, item, p, p->rows - tile_m);
  b_load(b_reg, x, column_table, k_table, item, p);
  store_groups(a_reg, tiles, item, TM, p->a_k_fast);
  b_store(b_reg, tiles + 2 * A_TILE, item);
  barrier(CLK_LOCAL_MEM_FENCE);

  int buffer = 0;
  for (int k = k0; k < k1; k += TK) {
    const int next = k - k0 + TK;
    const bool more = k + TK < k1;
    // The other half of the tables is last read a k-tile ago and next read in ITEMS / TK - 1 >= 1 k-tiles.
    if ((k - k0) % ITEMS == 0 && k + ITEMS < k1) {
      const int slot = (k - k0 + ITEMS + item) % (2 * ITEMS);
      k_table[slot] = k_entry(p, axis, k + ITEMS + item, k1, a_table + slot);
    }
    if (more) {
      a_load(a_reg, a, row_offset, a_table + next % (2 * ITEMS), item, p, p->rows - tile_m);
      b_load(b_reg, x, column_table, k_table + next % (2 * ITEMS), item, p);
    }
    tile_multiply_add(acc, tiles, buffer, place);
    buffer ^= 1;
    if (more) {
      store_groups(a_reg, tiles + buffer * A_TILE, item, TM, p->a_k_fast);
      b_store(b_reg, tiles + 2 * A_TILE + buffer * B_TILE, item);
    }
    barrier(CLK_LOCAL_MEM_FENCE);
  }
}

// The work-item's pieces of a tile, whose first row is tile_m and whose columns lie at out_table: as sums where the product
// has several parts of k, else as results.
INLINE void store_tile(ACCUMULATORS(acc), local CELL* tiles, Place place, const local int* out_table,
                       const ConvImplicit* p, global T* out, global const T* bias, global ACC* partial, int tile_m,
                       int group, int split EPILOGUE_PARAMETERS) {
  const long out_base = (long)group * p->out_group;
  const int along_column = p->out_vector == 2;  // as the results lie in memory
#pragma unroll
  for (int i = 0; i < PIECES_M; i++) {
    const int m = tile_m + piece_row(place, i, along_column);
    // Leaving before a piece is taken, not behind, keeps the large tile within 128 registers on NVIDIA.
    if (!TAKEN_TOGETHER && m >= p->rows) continue;
#pragma unroll
    for (int j = 0; j < PIECES_N; j++) {
      local const int* at = out_table + piece_column(place, j, along_column);
      ACC4 v[4];
      take_piece(v, acc, i, j, tiles, place, along_column);
      if (TAKEN_TOGETHER && m >= p->rows) continue;
      const long base = out_base + (long)m * p->out_row;
      if (p->splits > 1) {
        store_partial_piece(
            partial + p->partial_offset + split * p->part_stride + base, v, at, p->rows - m, p->out_row);
        continue;
      }
      if (p->has_bias) {
        global const T* b = bias + p->bias_offset + group * p->rows;
#pragma unroll
        for (int r = 0; r < 4; r++) v[r] += (ACC4)(load1(b + min(m + r, p->rows - 1)));
      }
#if !WGRAD
      if (FINISHING(p->low, p->high)) finish_piece(v, p, at, base, m, group * p->rows EPILOGUE_ARGUMENTS);
#endif
      store_piece(out + p->out_offset + base, v, at, p->rows - m, p->out_row, p->out_vector);
    }
  }
}

// a is w, or y where WGRAD; out is y, or w where WGRAD. With splits > 1 the sums go to `partial`, laid out by out's
// strides, and common/split_reduce.cl finishes them (adds the bias, applies the bounds).
// Global size: {tiles of rows * tiles of columns (of phase 0) * ITEMS, phases, groups * splits}.
__attribute__((reqd_work_group_size(ITEMS, 1, 1))) kernel void conv_gpu_implicit(
    global const T* restrict x, global const T* restrict a, global T* out, global const T* restrict bias,
    global ACC* partial, ConvImplicit p EPILOGUE_PARAMETERS) {
  local CELL tiles[TILES] __attribute__((aligned(32)));
  local Entry column_table[TN], k_table[2 * ITEMS];
  local int out_table[TN], a_table[2 * ITEMS];
  AXIS_SPACE Axis axis[3];
  const int item = get_local_id(0);
#ifdef CONSTANTS
  CONSTANTS(p)
#endif
  const int tiles_m = (p.rows + TM - 1) / TM;
  const int tile_m = get_group_id(0) % tiles_m * TM, tile_n = get_group_id(0) / tiles_m * TN;
  const int split = get_group_id(2) % p.splits, group = get_group_id(2) / p.splits;

#ifndef CONSTANTS
  if (item == 0)
#endif
    find_axes(&p, get_group_id(1), axis);
#ifndef CONSTANTS
  barrier(CLK_LOCAL_MEM_FENCE);
#endif
  const int pixels = p.batch * axis[0].pixels * axis[1].pixels * axis[2].pixels;
  const int weights = p.channels * axis[0].taps * axis[1].taps * axis[2].taps;
  const int k_size = WGRAD ? pixels : weights, columns = WGRAD ? weights : pixels;
  const int k_part = ((k_size + p.splits - 1) / p.splits + TK - 1) / TK * TK;
  const int k0 = split * k_part, k1 = min(k0 + k_part, k_size);

  for (int i = item; i < TN; i += ITEMS) column_table[i] = column_entry(&p, axis, tile_n + i, columns, out_table + i);
  k_table[item] = k_entry(&p, axis, k0 + item, max(k1, 0), a_table + item);
  x += p.x_offset + (long)group * p.x_group;
  a += p.a_offset + (long)group * p.a_group + (long)tile_m * p.a_row;
  int row_offset[GROUPS(TM)];  // rows beyond the tensor repeat its last one: what they yield is never stored
#pragma unroll
  for (int i = 0; i < GROUPS(TM); i++)
    row_offset[i] = min(group_row(item, i, TM, p.a_k_fast), p.rows - tile_m - 1) * p.a_row;

  ACCUMULATORS(acc);
  clear(acc);
  barrier(CLK_LOCAL_MEM_FENCE);

  const Place place = place_of(item);
  multiply_part(acc, tiles, place, x, a, row_offset, column_table, k_table, a_table, &p, axis, k0, k1, tile_m, item);
  store_tile(acc, tiles, place, out_table, &p, out, bias, partial, tile_m, group, split EPILOGUE_ARGUMENTS);
}
