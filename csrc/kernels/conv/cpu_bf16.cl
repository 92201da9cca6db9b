// clang-format off
// Convolution by a CPU's instructions for bfloat16: the forward pass, or one stride phase of the input gradient.
// Weights are A, one row per output channel along k; the gathered image is B, one column per position, in pairs along
// k in scratch. k runs over (channel, tap) or, where p.split[0], over (tap, channel). p.block[0] positions,
// p.block_cols output channels and p.channels of k at a time are one work-item's; p.split[1] says whether to copy
// weights that lie along k.

// The part of the image that a block of positions sees. Tile: 16 positions.
typedef struct {
  size_t image;                 // of the group
  long channel;                 // stride
  int taps, red, channels_inner, tiles;
  local const int *at;          // of tap 0 of each position, from the image
  local const int *tap_at;      // of each tap, from there
  local const ushort *inside;   // [tap][tile]: which positions see the image there
  local const int *step;        // of each tile, then of all: 1 or 2 where positions are so many elements apart, else 0
} Seen;

// Element k of all positions of a tile.
#define FETCH(k, valid, v)                                                                                     \
  uint16 v = 0;                                                                                                \
  {                                                                                                            \
    const uint bits = valid ? s->inside[tap_##k * s->tiles + j] : 0;                                           \
    const size_t from = s->image + (at[0] + offset_##k) * 2;                                                   \
    if (step == 1) v = convert_uint16(MASKED16(from, bits));                                                   \
    else if (step == 2) v = as_uint16(MASKED32(from, __builtin_ia32_pdep_si(bits, 0x55555555u)));              \
    else if (bits) {                                                                                           \
      const uint16 index = as_uint16(*(local const Vector*)at) + (uint)(offset_##k + odd);                     \
      const uint16 pairs = __builtin_astype(                                                                   \
          __builtin_ia32_gathersiv16si(zeros, (const void*)(s->image - odd * 2),                               \
                                       __builtin_astype(as_int16(index) >> 1, v16i), (ushort)bits, 4),         \
          uint16);                                                                                             \
      v = (pairs >> ((index & 1) * 16)) & 0xffff;                                                              \
    }                                                                                                          \
  }

// Tiles k..k+32 of all positions to dst; zero from `count` on.
BF16 void gather_step(const Seen* s, int k, int count, local float* dst) {
  if (s->channels_inner && s->channel == 1 && s->red % TILE_K == 0) {
    const int tap = k / s->red;
    const size_t image = s->image + (s->tap_at[tap] + k % s->red) * 2;
    for (int j = 0; j < s->tiles; j++, dst += TILE_BYTES / 4) {
      const uint inside = s->inside[tap * s->tiles + j];
      local const int* at = s->at + j * 16;
      VECTORS16(x)
#define LOAD_POSITION(n, h) x##h = MASKED32(image + (long)at[n] * 2, inside >> n & 1 ? 0xffffffffu : 0);
      EACH16(LOAD_POSITION)
      TRANSPOSE_X
      EACH16(STORE_VECTOR)
    }
    return;
  }
  const int odd = s->image >> 1 & 1, inner = s->channels_inner ? s->red : s->taps;
  const v16i zeros = __builtin_astype((float16)(0.f), v16i);
  const int tiles = s->tiles;
  local const int* begins = s->at;
  int outer = k / inner, i = k % inner;
  for (int pair = 0; pair < 16; pair++, dst += 16) {
    long offset_even = 0, offset_odd = 0;
    int tap_even = 0, tap_odd = 0;
    const int even = 2 * pair < count, both = 2 * pair + 1 < count;
#define NEXT(k)                                                                            \
  tap_##k = s->channels_inner ? outer : i;                                                 \
  offset_##k = s->tap_at[tap_##k] + (s->channels_inner ? i : outer) * s->channel;          \
  if (++i == inner) i = 0, outer++;
    if (even) { NEXT(even) }
    if (both) { NEXT(odd) }
    if (s->step[tiles] == 1) {
      local const ushort *bits_even = s->inside + tap_even * tiles, *bits_odd = s->inside + tap_odd * tiles;
      const size_t from_even = s->image + offset_even * 2, from_odd = s->image + offset_odd * 2;
      for (int j = 0; j < tiles; j++) {
        const long begin = (long)begins[j * 16] * 2;
        *(local Vector*)(dst + j * (TILE_BYTES / 4)) = PAIRS(MASKED16(from_even + begin, even ? bits_even[j] : 0),
                                                  MASKED16(from_odd + begin, both ? bits_odd[j] : 0));
      }
      continue;
    }
    for (int j = 0; j < tiles; j++) {
      local const int* at = begins + j * 16;
      const int step = s->step[j];
      FETCH(even, even, a)
      FETCH(odd, both, b)
      *(local Vector*)(dst + j * (TILE_BYTES / 4)) = as_float16(a | b << 16);
    }
  }
}

// A tile of B whose columns are (channel, tap), or (tap, channel), from `column` on, and whose k are the positions of
// tiles j and j + 1.
BF16 void gather_taps(const Seen* s, int column, int columns, int j, local float* dst) {
  VECTORS16(x)
  if (s->channels_inner && s->channel == 1 && s->red % 16 == 0) {
    const int tap = column / s->red;
    const size_t image = s->image + (s->tap_at[tap] + column % s->red) * 2;
    const uint inside = s->inside[tap * s->tiles + j] | (uint)s->inside[tap * s->tiles + j + 1] << 16;
    local const int* at = s->at + j * 16;
#define LOAD_POSITIONS(n, h)                                                             \
  x##h = PAIRS(MASKED16(image + (long)at[2 * n] * 2, inside >> 2 * n & 1 ? 0xffff : 0),  \
               MASKED16(image + (long)at[2 * n + 1] * 2, inside >> (2 * n + 1) & 1 ? 0xffff : 0));
    EACH16(LOAD_POSITIONS)
    EACH16(STORE_VECTOR)
    return;
  }
  const int odd = s->image >> 1 & 1, inner = s->channels_inner ? s->red : s->taps;
  const v16i zeros = __builtin_astype((float16)(0.f), v16i);
  ushort rows[16 * TILE_K] __attribute__((aligned(64)));
  int outer = column / inner, i = column % inner;
  const int first = j;
  for (int c = 0; c < 16; c++) {
    long offset_this = 0;
    int tap_this = 0;
    const int there = c < columns;
    if (there) { NEXT(this) }
    for (j = first; j < first + 2; j++) {
      local const int* at = s->at + j * 16;
      const int step = s->step[j];
      FETCH(this, there, v)
      *(ushort16*)(rows + c * TILE_K + (j - first) * 16) = convert_ushort16(v);
    }
  }
#define LOAD_COLUMN_OF(n, h) x##h = ((const Vector*)rows)[n];
  EACH16(LOAD_COLUMN_OF)
  TRANSPOSE_X
  EACH16(STORE_VECTOR)
}

// 16 rows of A along k, `pitch` bytes apart: `rows` channels of the output's gradient at 32 positions, of which `count`
// are there.
BF16 void gather_grad(size_t grad, long channel, local const int* at, int count, int rows, size_t dst, long pitch) {
  if (channel != 1 && !consecutive(at, count)) {
    for (int r = 0; r < 16; r++)
      for (int q = 0; q < TILE_K; q++)
        ((ushort*)(dst + r * pitch))[q] = r < rows && q < count ? ((const ushort*)grad)[r * channel + at[q]] : 0;
    return;
  }
  VECTORS16(x)
  if (channel == 1) {
    const uint mask = low_bits(rows);
#define LOAD_GRADS(n, h)                                                           \
  x##h = PAIRS(MASKED16(grad + (long)at[2 * n] * 2, 2 * n < count ? mask : 0),     \
               MASKED16(grad + (long)at[2 * n + 1] * 2, 2 * n + 1 < count ? mask : 0));
    EACH16(LOAD_GRADS)
    TRANSPOSE_X
  } else {
    const uint mask = low_bits(count);
#define LOAD_GRAD_ROW(n, h) x##h = MASKED32(grad + (at[0] + n * channel) * 2, n < rows ? mask : 0);
    EACH16(LOAD_GRAD_ROW)
  }
#define STORE_GRAD_ROW(n, h) *(Vector*)(dst + n * pitch) = x##h;
  EACH16(STORE_GRAD_ROW)
}

kernel __attribute__((reqd_work_group_size(1, 1, 1))) void conv_cpu_bf16(global const T* in, long oi, global const T* weights,
                                                                    long ow, long weight_group, long weight_row,
                                                                    global T* out, long oo, global const T* bias,
                                                                    long ob, Gather p, local float* scratch) {
  const int positions = p.n * p.q[0] * p.q[1] * p.q[2], first = get_global_id(0) * p.block[0];
  const int m0 = get_global_id(1) * p.block_cols, g = get_global_id(2);
  const int taps = p.taps[0] * p.taps[1] * p.taps[2], K = taps * p.red, kc = p.channels;
  Bf16Block block = {min(p.block_cols, p.cols - m0), min(p.block[0], positions - first), K <= kc};
  const int tiles = (block.cols + 15) / 16, edges = p.taps[0] + p.taps[1] + p.taps[2];
  block.tail = scratch + 16, block.sums = scratch + BF16_HEAD / 4;
  block.b = block.sums + (block.whole ? 1 : (block.rows + 31) / 32 * ((block.cols + 31) / 32)) * TILE_BYTES;
  block.a = block.b + tiles * ((kc + TILE_K - 1) / TILE_K) * (TILE_BYTES / 4);
  local int* at = (local int*)(block.a + 2 * ((kc + TILE_K - 1) / TILE_K) * (TILE_BYTES / 4));
  local int* out_at = at + tiles * 16;
  local int* step = out_at + tiles * 16;
  local int* tap_at = step + tiles + 1;
  local ushort* edge = (local ushort*)(tap_at + taps);  // [tap along one dimension][tile]
  local ushort* inside = edge + edges * tiles;

  look(&p, first, block.cols, tiles, at, out_at, step, tap_at, edge, inside);
  const Seen seen = {(size_t)(in + oi + (long)g * p.red * p.is[1]), p.is[1], taps, p.red, p.split[0], tiles,
                     at, tap_at, inside, step};
  const Results results = {(size_t)(out + oo + ((long)g * p.cols + m0) * p.os[1]), (size_t)(bias + ob + g * p.cols + m0),
                           p.os[1], 0, 1, 0, 1.f, 1.f, p.low, p.high, p.has_bias, out_at};
  const size_t a = (size_t)(weights + ow + g * weight_group + m0 * weight_row);
  bf16_begin((local uchar*)scratch);
  for (int k = 0; k == 0 || k < K; k += kc) {
    const int count = min(kc, K - k), steps = (count + TILE_K - 1) / TILE_K;
    for (int s = 0; s < steps; s++)
      gather_step(&seen, k + s * TILE_K, min(TILE_K, count - s * TILE_K), block.b + s * tiles * (TILE_BYTES / 4));
    bf16_part(&block, &results, a + k * 2, weight_row, 1, count, p.split[1], k == 0, k + kc >= K);
  }
  bf16_end();
}

// `count` runs of `taps` elements, at most 16, `from_step` and `to_step` apart; backwards where they are to be reversed.
BF16 void copy_taps(size_t from, long from_step, size_t to, long to_step, int count, int taps, int backwards) {
  const uint mask = low_bits(taps);
  for (int i = 0; i < count; i++, from += from_step * 2, to += to_step * 2) {
    ushort16 x;
    if (backwards) x = MASKED16(from - (16 - taps) * 2, mask << (16 - taps)).sfedcba9876543210;
    else x = MASKED16(from, mask);
    __builtin_ia32_storedquhi256_mask((v16s*)to, __builtin_astype(x, v16s), (ushort)mask);
  }
}

// Weights in any layout to [group][column][k]. One work-item packs 16 columns.
kernel __attribute__((reqd_work_group_size(1, 1, 1))) void conv_cpu_bf16_pack(global const T* weights, long ow,
                                                                         global T* packed, long op, Gather p) {
  const int j = get_global_id(0) * 16, g = get_global_id(1), count = min(16, p.cols - j);
  const int taps = p.taps[0] * p.taps[1] * p.taps[2];
  const long K = (long)taps * p.red;
  weights += ow + g * p.wgroup + j * p.wcol;
  packed += op + ((long)g * p.cols + j) * K;
  int backwards = 0, forwards = 0;  // dimensions of the taps that lie otherwise
  for (int i = 2, dense = 1; i >= 0; dense *= p.taps[i--])
    if (p.taps[i] > 1) backwards += p.wtap[i] != -dense, forwards += p.wtap[i] != dense;
  if (!p.split[0] && taps <= 16 && (!backwards || !forwards)) {
    const size_t from = (size_t)weights - (forwards ? (taps - 1) * 2 : 0);
    for (int c = 0; c < p.red; c++)
      copy_taps(from + c * p.wred * 2, p.wcol, (size_t)(packed + (long)c * taps), K, count, taps, forwards);
    return;
  }
  for (int t0 = 0, tap = 0; t0 < p.taps[0]; t0++)
    for (int t1 = 0; t1 < p.taps[1]; t1++)
      for (int t2 = 0; t2 < p.taps[2]; t2++, tap++) {
        global const T* from = weights + t0 * p.wtap[0] + t1 * p.wtap[1] + t2 * p.wtap[2];
        for (int c = 0; c < p.red; c++) {
          global T* to = packed + (p.split[0] ? (long)tap * p.red + c : (long)c * taps + tap);
          for (int i = 0; i < count; i++) to[i * K] = from[c * p.wred + i * p.wcol];
        }
      }
}

// Weight gradient: rows are output channels, columns (channel, tap) or (tap, channel), and k are positions, p.channels
// of them at a time. One work-item computes p.block_cols rows and p.block[0] columns.
kernel __attribute__((reqd_work_group_size(1, 1, 1))) void conv_cpu_bf16_weight_grad(
    global const T* in, long oi, global const T* grad, long og, global T* weights, long ow, Gather p,
    local float* scratch) {
  const int m0 = get_global_id(0) * p.block_cols, n0 = get_global_id(1) * p.block[0], g = get_global_id(2);
  const int taps = p.taps[0] * p.taps[1] * p.taps[2], edges = p.taps[0] + p.taps[1] + p.taps[2];
  const int positions = p.n * p.q[0] * p.q[1] * p.q[2], kc = p.channels, most = kc / TILE_K;
  Bf16Block block = {min(p.block_cols, p.cols - m0), min(p.block[0], p.red * taps - n0), positions <= kc, 1};
  const int rows = (block.rows + 15) & ~15, columns = (block.cols + 15) & ~15;
  const long pitch = kc * 2 + 64;  // bytes between rows of A, an odd number of cache lines
  block.tail = scratch + 16, block.sums = scratch + BF16_HEAD / 4;
  block.b = block.sums + (block.whole ? 1 : (block.rows + 31) / 32 * ((block.cols + 31) / 32)) * TILE_BYTES;
  block.a = block.b + columns / 16 * most * (TILE_BYTES / 4);
  local int* column_at = (local int*)(block.a + rows * pitch / 4);
  local int* at = column_at + columns;
  local int* grad_at = at + most * 32;
  local int* step = grad_at + most * 32;
  local int* tap_at = step + most * 2 + 1;
  local ushort* edge = (local ushort*)(tap_at + taps);
  local ushort* inside = edge + edges * most * 2;
  for (int n = 0; n < columns; n++) {
    const int column = min(n0 + n, p.red * taps - 1), inner = p.split[0] ? p.red : taps;
    const int tap = p.split[0] ? column / inner : column % inner, c = p.split[0] ? column % inner : column / inner;
    column_at[n] = c * p.wred + tap / (p.taps[1] * p.taps[2]) * p.wtap[0] + tap / p.taps[2] % p.taps[1] * p.wtap[1] +
                   tap % p.taps[2] * p.wtap[2];
  }
  const Results results = {(size_t)(weights + ow + g * p.wgroup + m0 * p.wcol), 0, p.wcol, 0, 0, 0, 1.f, 0.f,
                           -INFINITY, INFINITY, 0, column_at};
  const size_t from = (size_t)(grad + og + ((long)g * p.cols + m0) * p.os[1]);
  bf16_begin((local uchar*)scratch);
  for (int k = 0; k == 0 || k < positions; k += kc) {
    const int count = min(kc, positions - k), steps = (count + TILE_K - 1) / TILE_K;
    look(&p, k, count, 2 * steps, at, grad_at, step, tap_at, edge, inside);
    const Seen seen = {(size_t)(in + oi + (long)g * p.red * p.is[1]), p.is[1], taps, p.red, p.split[0], 2 * steps,
                       at, tap_at, inside, step};
    for (int r = 0; r < rows; r += 16)
      for (int s = 0; s < steps; s++)
        gather_grad(from + r * p.os[1] * 2, p.os[1], grad_at + s * 32, min(TILE_K, count - s * TILE_K),
                    min(16, block.rows - r), (size_t)block.a + r * pitch + s * 64, pitch);
    for (int n = 0; n < columns; n += 16)
      for (int s = 0; s < steps; s++)
        gather_taps(&seen, n0 + n, min(16, block.cols - n), 2 * s, block.b + (s * (columns / 16) + n / 16) * (TILE_BYTES / 4));
    bf16_part(&block, &results, (size_t)block.a, pitch / 2, 1, steps * TILE_K, 0, k == 0, k + kc >= positions);
  }
  bf16_end();
}
