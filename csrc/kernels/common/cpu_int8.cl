// Convolutions and products of integers of 8 bits on CPUs, with sums of 32 bits and rows behind them: implicit products of
// weights, packed into the tiles of common/cpu_int8.clh, with a gathered image (conv/params.h). Weights are signed; the image
// is unsigned in scratch: with -DSIGNED_INPUT 128 is added to it there, and 128 times the weights' sum taken from the results.
// k runs over (tap, channel), with channels padded to four.
//
// Where the channels of the result are neighbours in memory (q.across), positions are rows and their channels are copied
// along k. Otherwise channels are rows, and 16 positions at a time are gathered from four channels' planes.
#define FLIP 0x80808080u
#ifdef SIGNED_INPUT
#define FLIPPED FLIP
#else
#define FLIPPED 0u
#endif

inline long steps_of(const Int8Product* q) { return q->depth / INT8_DEPTH; }
inline int padded_columns(const Gather* p) { return (p->cols + 15) & ~15; }

#define EACH16TH _Pragma("unroll") for (int i = 0; i < 16; i++)

// x[r][c] = x[c][r]: rounds that interleave rows i and i + 8.
inline void transpose(uint16* x) {
  uint16 y[16];
#pragma unroll
  for (int round = 0; round < 4; round++) {
#pragma unroll
    for (int i = 0; i < 8; i++) {
      y[2 * i].even = x[i].lo, y[2 * i].odd = x[i + 8].lo;
      y[2 * i + 1].even = x[i].hi, y[2 * i + 1].odd = x[i + 8].hi;
    }
    EACH16TH x[i] = y[i];
  }
}

// The sums of the four bytes of each number.
inline int16 sum_of_quads(uint16 x) {
  const int16 v = as_int16(x);
  return (v << 24 >> 24) + (v << 16 >> 24) + (v << 8 >> 24) + (v >> 24);
}

// A tile of weights with one tap, whose 16 columns and 64 elements along k all exist, and of which either are neighbours
// in memory. Returns the sums of its columns.
inline int16 pack_whole(global const char* weights, long wcol, long wred, int across, global char* to) {
  uint16 x[16];
  int16 sum = 0;
  if (wred == 1) {
    EACH16TH x[i] = vload16(0, (global const uint*)(weights + i * wcol));
    if (!across) EACH16TH vstore16(x[i], i, (global uint*)to);
    transpose(x);
  } else {
    EACH16TH {
      global const uchar* row = (global const uchar*)weights + 4 * i * wred;
      x[i] = convert_uint16(vload16(0, row)) | convert_uint16(vload16(0, row + wred)) << 8 |
             convert_uint16(vload16(0, row + 2 * wred)) << 16 | convert_uint16(vload16(0, row + 3 * wred)) << 24;
    }
  }
  EACH16TH sum += sum_of_quads(x[i]);
  if (!across && wred == 1) return sum;
  if (!across) transpose(x);
  EACH16TH vstore16(x[i], i, (global uint*)to);
  return sum;
}

// Elements k .. end of 16 columns of weights, of which `count` exist, one by one.
inline void pack_rest(global const char* weights, const Gather* p, const Int8Product* q, int count, int k,
                      global char* to, int* sums) {
  const int taps = p->taps[0] * p->taps[1] * p->taps[2];
  for (; k < q->depth; k++) {
    const int tap = k / q->red, c = k % q->red, in_tile = k % INT8_DEPTH, there = tap < taps && c < p->red;
    const long from = c * p->wred + tap / (p->taps[1] * p->taps[2]) * p->wtap[0] +
                      tap / p->taps[2] % p->taps[1] * p->wtap[1] + tap % p->taps[2] * p->wtap[2];
    global char* tile = to + k / INT8_DEPTH * TILE_BYTES + (q->across ? in_tile / 4 * 64 + in_tile % 4 : in_tile);
    for (int j = 0; j < 16; j++) {
      const char w = there && j < count ? weights[from + j * p->wcol] : 0;
      tile[j * (q->across ? 4 : 64)] = w;
      sums[j] += w;
    }
  }
}

// Packed weights: for each group's padded columns what is added to the results, as int, then the tiles [group][column / 16]
// [step]. Where positions are rows the weights are B, else A. One work-item packs 16 columns.
kernel __attribute__((reqd_work_group_size(1, 1, 1))) void cpu_int8_pack(
    global const char* weights, long ow, global uchar* packed, long op, Gather p, Int8Product q) {
  const int tile = get_global_id(0), g = get_global_id(1), columns = padded_columns(&p);
  const int count = min(16, p.cols - tile * 16);
  global int* add = (global int*)(packed + op) + (long)g * columns + tile * 16;
  global char* to = (global char*)(packed + op) + (long)p.groups * columns * 4 +
                    ((long)g * (columns / 16) + tile) * steps_of(&q) * TILE_BYTES;
  weights += ow + g * p.wgroup + tile * 16 * p.wcol;
  int sums[16] = {0}, k = 0;
  if (p.taps[0] * p.taps[1] * p.taps[2] == 1 && count == 16 && (p.wred == 1 || p.wcol == 1)) {
    int16 sum = 0;
    for (; k + INT8_DEPTH <= p.red; k += INT8_DEPTH)
      sum += pack_whole(weights + k * p.wred, p.wcol, p.wred, q.across, to + k / INT8_DEPTH * TILE_BYTES);
    vstore16(sum, 0, sums);
  }
  pack_rest(weights, &p, &q, count, k, to, sums);
  for (int j = 0; j < 16; j++) add[j] = FLIPPED ? -128 * sums[j] : 0;
}

// The part of the image that a block of positions sees.
typedef struct {
  global const uchar* in;
  long image, readable;  // where the group begins, and how much may be read, from `in`
  int taps, tiles;
  local const int *at, *tap_at;
  local const ushort* inside;  // [tap][tile]
} Image;

// 16 elements `step` apart, of which those in `mask` are there.
inline uint16 sixteen(const Image* s, long from, int step, uint bits, uint16 mask) {
  if (from >= 0 && from + 16 * step <= s->readable && (step == 1 || step == 2)) {
    const uchar16 first = vload16(0, s->in + from);
    if (step == 1) return convert_uint16(first) & mask;
    return convert_uint16((uchar16)(first.even, vload16(1, s->in + from).even)) & mask;
  }
  uint lanes[16];
#pragma clang loop vectorize(disable)
  for (int r = 0; r < 16; r++) lanes[r] = bits >> r & 1 ? s->in[from + r * step] : 0;
  return vload16(0, lanes);
}

// The columns of tile j, in quads of channels: positions go in runs that are `step` apart in memory.
inline void gather_tile(const Gather* p, const Int8Product* q, const Image* s, int j, int count, local uchar* to) {
  const uint16 lane = (uint16)(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
  const int step = p->step[2] * (int)p->is[4], quads = q->red / 4;
  int starts[16], runs = 0;
  uint members[16];
  local const int* at = s->at + j * 16;
  for (int r = 0; r < count; r++) {
    if (r == 0 || at[r] - at[r - 1] != step) starts[runs] = at[r] - r * step, members[runs++] = 0;
    members[runs - 1] |= 1u << r;
  }
  const long channel = p->is[1];
  for (int tap = 0; tap < s->taps; tap++, to += quads * 64) {
    const uint inside = s->inside[tap * s->tiles + j];
    int first = 1;
    for (int run = 0; run < runs; run++) {
      const uint bits = inside & members[run];
      if (!bits) continue;
      const uint16 mask = (uint16)(0) - ((uint16)(bits) >> lane & 1u);
      long from = s->image + starts[run] + s->tap_at[tap];
      for (int c = 0; c < quads; c++, from += 4 * channel) {
        const int there = p->red - 4 * c;
        uint16 v = sixteen(s, from, step, bits, mask);
        if (there > 1) v |= sixteen(s, from + channel, step, bits, mask) << 8;
        if (there > 2) v |= sixteen(s, from + 2 * channel, step, bits, mask) << 16;
        if (there > 3) v |= sixteen(s, from + 3 * channel, step, bits, mask) << 24;
        local uint* quad = (local uint*)to + c * 16;
        vstore16(first ? v ^ FLIPPED : v ^ vload16(0, quad), 0, quad);
      }
      first = 0;
    }
    if (first)
      for (int c = 0; c < quads; c++) vstore16((uint16)(FLIPPED), 0, (local uint*)to + c * 16);
  }
}

// A row along k of one position. Up to 63 bytes behind it may change.
inline void gather_row(const Gather* p, const Int8Product* q, const Image* s, int r, local uchar* to) {
  const long channel = p->is[1];
  for (int tap = 0; tap < s->taps; tap++, to += q->red) {
    int c = 0;
    if (!(s->inside[tap * s->tiles + r / 16] >> (r & 15) & 1)) {
      for (; c < p->red; c += 16) vstore16((uchar16)((uchar)FLIPPED), 0, to + c);
      continue;
    }
    const long from = s->image + s->at[r] + s->tap_at[tap];
    if (channel == 1 || p->red == 1) {
      for (; c + 64 <= q->red && from + c + 64 <= s->readable; c += 64)
        vstore16(vload16(0, (global const uint*)(s->in + from + c)) ^ FLIPPED, 0, (local uint*)(to + c));
      for (; c < p->red && from + c + 16 <= s->readable; c += 16)
        vstore16(vload16(0, s->in + from + c) ^ (uchar)FLIPPED, 0, to + c);
    }
#pragma clang loop vectorize(disable)
    for (; c < p->red; c++) to[c] = s->in[from + c * channel] ^ (uchar)FLIPPED;
  }
}

// What is added to the columns of a block: the bias and, for signed input, its part of the packed weights.
inline void additions(const Gather* p, global const int* packed, global const int* bias, int count, local int* add) {
  for (int i = 0; i < count; i++) add[i] = packed[i] + (p->has_bias ? bias[i] : 0);
}

// Finish neighbouring results of one channel, or of one position. The first lies `at` elements behind `out`.
#define FINISH_LINE(NAME, ADD, ROW, COLUMN)                                                                      \
  inline void NAME(local const int* sums, int count, local const int* add, int alpha, global C_T* out, long at,  \
                   float low, float high, int row, int column EPILOGUE_PARAMETERS) {                             \
    _Pragma("clang loop vectorize(assume_safety)") for (int i = 0; i < count; i++)                               \
        STORE_C(FINISH(sums[i] * alpha + add[ADD], low, high, at + i, row + ROW, column + COLUMN), out, at + i); \
  }
FINISH_LINE(finish_channels, i, 0, i)
FINISH_LINE(finish_positions, 0, i, 0)

// Rows are positions, columns channels.
inline void store_across(const Gather* p, const Int8Product* q, local const int* sums, int pitch, int rows, int columns,
                         local const int* add, global C_T* out, long begin, local const int* out_at, int row,
                         int column EPILOGUE_PARAMETERS) {
  for (int r = 0; r < rows; r++, sums += pitch) {
    const long at = begin + out_at[r];
    if (p->os[1] == 1)
      finish_channels(sums, columns, add, q->alpha, out, at, p->low, p->high, row + r, column EPILOGUE_ARGUMENTS);
    else
      for (int c = 0; c < columns; c++)
        finish_channels(sums + c, 1, add + c, q->alpha, out, at + c * p->os[1], p->low, p->high, row + r,
                        column + c EPILOGUE_ARGUMENTS);
  }
}

// Rows are channels, columns positions, which are stored in runs of neighbours.
inline void store_along(const Gather* p, const Int8Product* q, local const int* sums, int pitch, int rows, int columns,
                        local const int* add, global C_T* out, long begin, local const int* out_at, int row,
                        int column EPILOGUE_PARAMETERS) {
  for (int j = 0, end; j < columns; j = end) {
    for (end = j + 1; end < columns && out_at[end] == out_at[end - 1] + 1;) end++;
    for (int r = 0; r < rows; r++)
      finish_positions(sums + r * pitch + j, end - j, add + r, q->alpha, out, begin + r * p->os[1] + out_at[j], p->low,
                       p->high, row + j, column + r EPILOGUE_ARGUMENTS);
  }
}

// Range: blocks of p.block[0] positions, blocks of p.block_cols channels, groups.
kernel __attribute__((reqd_work_group_size(1, 1, 1))) void cpu_int8(
    global const uchar* in, long oi, global const uchar* packed, long op, global C_T* out, long oo,
    global const int* bias, long ob, Gather p, Int8Product q, local uchar* scratch EPILOGUE_PARAMETERS) {
  const int first = get_global_id(0) * p.block[0], n0 = get_global_id(1) * p.block_cols, g = get_global_id(2);
  const int positions = min(p.block[0], p.n * p.q[0] * p.q[1] * p.q[2] - first);
  const int channels = min(p.block_cols, p.cols - n0), tiles = (positions + 15) / 16;
  const int taps = p.taps[0] * p.taps[1] * p.taps[2], columns = padded_columns(&p);
  const long steps = steps_of(&q), pitch = q.depth + 64;  // an odd number of cache lines
  local int* sums = (local int*)(scratch + INT8_CONFIG_BYTES);
  local int* add = sums + INT8_ROWS * 16 * q.tiles;
  local uchar* image = (local uchar*)(add + ((p.block_cols + 15) & ~15));
  local int* at = (local int*)(image + 64 + (q.across ? tiles * 16 * pitch : tiles * steps * TILE_BYTES));
  local int* out_at = at + tiles * 16;
  local int* step = out_at + tiles * 16;
  local int* tap_at = step + tiles + 1;
  local ushort* edge = (local ushort*)(tap_at + taps);  // [tap along one dimension][tile]
  local ushort* inside = edge + (p.taps[0] + p.taps[1] + p.taps[2]) * tiles;

  look(&p, first, positions, tiles, at, out_at, step, tap_at, edge, inside);
  const Image seen = {in, oi + g * q.in_group, q.readable, taps, tiles, at, tap_at, inside};
  if (q.across)
    for (int r = 0; r < positions; r++) gather_row(&p, &q, &seen, r, image + r * pitch);
  else
    for (int j = 0; j < tiles; j++)
      gather_tile(&p, &q, &seen, j, min(16, positions - j * 16), image + j * steps * TILE_BYTES);
  additions(&p, (global const int*)(packed + op) + (long)g * columns + n0, bias + ob + g * p.cols + n0, channels, add);

  const size_t weights =
      (size_t)(packed + op) + (long)p.groups * columns * 4 + ((long)g * columns + n0) / 16 * steps * TILE_BYTES;
  const size_t a = q.across ? (size_t)image : weights, b = q.across ? weights : (size_t)image;
  const long a_tile = q.across ? 16 * pitch : steps * TILE_BYTES, a_pitch = q.across ? pitch : 64;
  const long a_step = q.across ? INT8_DEPTH : TILE_BYTES, b_tile = steps * TILE_BYTES;
  const int rows = q.across ? positions : channels, cols = q.across ? channels : positions;
  const long begin = g * q.out_group + n0 * p.os[1];
  const int column = g * q.column_group + n0;
  int8_begin(scratch);
  for (int j = 0; j < cols; j += q.tiles * 16) {
    const int here = min(q.tiles * 16, cols - j), wide = (here + 15) / 16;
    for (int i = 0; i < rows; i += INT8_ROWS) {
      const int high = min(INT8_ROWS, rows - i);
      int8_multiply(a + i / 16 * a_tile, a_tile, a_pitch, a_step, steps, b + j / 16 * b_tile, b_tile, (size_t)sums,
                    high, wide, q.across);
      if (q.across)
        store_across(&p, &q, sums, wide * 16, high, here, add + j, out + oo, begin + j * p.os[1], out_at + i, first + i,
                     column + j EPILOGUE_ARGUMENTS);
      else
        store_along(&p, &q, sums, wide * 16, high, here, add + i, out + oo, begin + i * p.os[1], out_at + j, first + j,
                    column + i EPILOGUE_ARGUMENTS);
    }
  }
  int8_end();
}
