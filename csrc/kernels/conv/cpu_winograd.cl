// clang-format off
// Winograd convolution with 3x3 filters for CPU-like devices; see conv/winograd.clh for the algorithm. Fused: a work-item
// takes a block of m x m output tiles through scratch: pixels -> transformed tiles -> one small product per tile
// element -> outputs. Everything runs in vectors of 16 channels.
TILES(local)

// Both dimensions of a transformation of a t x t tile, from `from` to `to` vectors that lie as a matrix of pitches.
#define TRANSFORM(NAME, FROM, TO, STEP)                                                                      \
  inline void NAME##_tile(local const float* from, int row, int column, local float* to, int step) {        \
    float16 x[(FROM > TO ? FROM : TO) * STEP];                                                               \
    _Pragma("unroll") for (int i = 0; i < FROM; i++)                                                         \
      _Pragma("unroll") for (int j = 0; j < FROM; j++) x[i * STEP + j] = vload16(0, from + i * row + j * column); \
    _Pragma("unroll") for (int j = 0; j < FROM; j++) NAME(x + j, STEP);                                      \
    _Pragma("unroll") for (int i = 0; i < TO; i++) {                                                         \
      NAME(x + i * STEP, 1);                                                                                 \
      _Pragma("unroll") for (int j = 0; j < TO; j++) vstore16(x[i * STEP + j], 0, to + (i * TO + j) * step); \
    }                                                                                                        \
  }
TRANSFORM(input4, 4, 4, 4)
TRANSFORM(input6, 6, 6, 6)
TRANSFORM(output4, 4, 2, 4)
TRANSFORM(output6, 6, 4, 6)
TRANSFORM(grads4, 2, 4, 4)
TRANSFORM(grads6, 4, 6, 6)
TRANSFORM(taps4, 4, 3, 4)
TRANSFORM(taps6, 6, 3, 6)

// Steps of an odd number of cache lines spread the elements of a tile over all cache sets.
inline int odd_lines(int floats) { return floats / 16 % 2 ? floats : floats + 16; }

// The tiles of a block: to[t * t][tile][channel] (steps of tile elements: step; of tiles: p.pitch) from pixels lo..lo +
// size of its images, through `pixels`.
inline void transform_images(const Gather* p, const Block* b, int m, global const T* in, const int* lo, const int* size,
                             int count, local float* pixels, local float* to, int step) {
  const int row_pitch = size[2] * p->pitch, padded = padded16(count);
  for (int n = 0; n < b->size[0]; n++) {
    load_pixels(in + (b->begin[0] + n) * p->is[0], p->is, p->in, lo, size, count, padded, pixels, p->pitch);
    for (int h = 0; h + 2 < size[1]; h += m)
      for (int w = 0; w + 2 < size[2]; w += m, to += p->pitch)
        for (int i = 0; i < padded; i += 16) {
          local const float* from = pixels + h * row_pitch + w * p->pitch + i;
          if (m == 2) input4_tile(from, row_pitch, p->pitch, to + i, step);
          else input6_tile(from, row_pitch, p->pitch, to + i, step);
        }
  }
}

// The same for the output's gradient: to[t * t][tile][column] of `size` pixels from the block's first on.
static inline void transform_grads(const Gather* p, const Block* b, int m, global const T* grad, const int* size, int jn,
                                   local float* pixels, local float* to, int step) {
  const int pitch = padded16(jn), row_pitch = size[2] * pitch;
  for (int n = 0; n < b->size[0]; n++) {
    load_pixels(grad + (b->begin[0] + n) * p->os[0], p->os, p->q, b->begin + 1, size, jn, pitch, pixels, pitch);
    for (int h = 0; h < size[1]; h += m)
      for (int w = 0; w < size[2]; w += m, to += pitch)
        for (int j = 0; j < pitch; j += 16) {
          local const float* from = pixels + h * row_pitch + w * pitch + j;
          if (m == 2) grads4_tile(from, row_pitch, pitch, to + j, step);
          else grads6_tile(from, row_pitch, pitch, to + j, step);
        }
  }
}

#define WEIGHT_CHANNELS 16  // transformed at a time

// weights[column][channel][3][3] (strides of p) to w[channel][tap][16 columns], zero beyond jn columns.
inline void load_weights(const Gather* p, global const T* weights, int count, int jn, float* w) {
  const int reversed = p->wtap[2] == -1 && p->wtap[1] == -3;
  if (jn == 16 && p->wcol >= 9 && (reversed || (p->wtap[2] == 1 && p->wtap[1] == 3))) {
    // the taps of a column are one run, read with the 7 elements that follow, or precede where there may be none
    for (int c = 0; c < count; c++) {
      VECTORS16(x) VECTORS16(y)
      global const T* s = weights + c * p->wred - (reversed ? 8 : 0);
#define LOAD_TAPS(n, h) x##h = load16(s + n * p->wcol - (n == 15 ? 7 : 0));
#define STORE_TAP(n, h) \
  if (n < 9) vstore16(x##h, c * 9 + (reversed ? 8 - n : n), w);
      EACH16(LOAD_TAPS)
      xf = xf.s789abcdeffffffff;
      TRANSPOSE(x, y)
      EACH16(STORE_TAP)
    }
    return;
  }
  for (int tap = 0; tap < 9; tap++) {
    global const T* s = weights + tap / 3 * p->wtap[1] + tap % 3 * p->wtap[2];
    if (jn == 16 && p->wcol == 1) {
      for (int c = 0; c < count; c++) vstore16(load16(s + c * p->wred), c * 9 + tap, w);
    } else if (jn == 16 && count == 16 && p->wred == 1) {
      VECTORS16(x) VECTORS16(y)
#define LOAD_COLUMN(n, h) x##h = load16(s + n * p->wcol);
#define STORE_CHANNEL(n, h) vstore16(x##h, n * 9 + tap, w);
      EACH16(LOAD_COLUMN)
      TRANSPOSE(x, y)
      EACH16(STORE_CHANNEL)
    } else {
      for (int c = 0; c < count; c++)
        for (int i = 0; i < 16; i++)
          w[(c * 9 + tap) * 16 + i] = i < jn ? load1(s + c * p->wred + i * p->wcol) : 0.f;
    }
  }
}

// Transforms the weights of `count` channels and 16 columns to to[t * t][channel][column] of these pitches.
inline void transform_weights(const Gather* p, int m, global const T* weights, int count, int jn, local float* to,
                              int step, int width) {
  float w[WEIGHT_CHANNELS * 9 * 16];
  for (int c0 = 0; c0 < count; c0 += WEIGHT_CHANNELS) {
    const int n = min(WEIGHT_CHANNELS, count - c0);
    load_weights(p, weights + c0 * p->wred, n, jn, w);
    for (int c = 0; c < n; c++, to += width) {
      float16 x[36];
#define WEIGHTS_TILE(N)                                                                                \
  _Pragma("unroll") for (int i = 0; i < 3; i++)                                                        \
    _Pragma("unroll") for (int k = 0; k < 3; k++) x[i * N + k] = vload16(c * 9 + i * 3 + k, w);        \
  _Pragma("unroll") for (int k = 0; k < 3; k++) weights##N(x + k, N);                                  \
  _Pragma("unroll") for (int i = 0; i < N; i++) {                                                      \
    weights##N(x + i * N, 1);                                                                          \
    _Pragma("unroll") for (int k = 0; k < N; k++) vstore16(x[i * N + k], 0, to + (i * N + k) * step);  \
  }
      if (m == 2) { WEIGHTS_TILE(4) } else { WEIGHTS_TILE(6) }
    }
  }
}

// A tile's outputs y[m * m][16 columns] the direct way; d, h, w is where the first one's filter begins in the image.
inline void direct_tile(const Gather* p, int m, global const T* in, global const T* weights, int jn, int d, int h, int w,
                        local float* y) {
  float taps[WEIGHT_CHANNELS * 9 * 16];
  for (int c0 = 0; c0 < p->red; c0 += WEIGHT_CHANNELS) {
    const int n = min(WEIGHT_CHANNELS, p->red - c0);
    load_weights(p, weights + c0 * p->wred, n, jn, taps);
    for (int i = 0; i < m * m; i++) {
      float16 sum = c0 ? vload16(i, y) : (float16)0.f;
      for (int tap = 0; tap < 9; tap++) {
        const int ih = h + i / m + tap / 3, iw = w + i % m + tap % 3;
        if (d < 0 || d >= p->in[0] || ih < 0 || ih >= p->in[1] || iw < 0 || iw >= p->in[2]) continue;
        global const T* x = in + c0 * p->is[1] + d * p->is[2] + ih * p->is[3] + iw * p->is[4];
        for (int c = 0; c < n; c++) sum = fma((float16)(load1(x + c * p->is[1])), vload16(c * 9 + tap, taps), sum);
      }
      vstore16(sum, i, y);
    }
  }
}

// results[position][column] of the block from sums[t * t][tile][column]. Tiles whose sums are not finite are computed again
// the direct way; y is room for one tile.
static inline void transform_sums(const Gather* p, const Block* b, int m, global const T* in, global const T* weights,
                                  int jn, const int* lo, local const float* sums, int sum_step, local float* y,
                                  local float* results, int pitch) {
  local const float* from = sums;
  for (int n = 0; n < b->size[0]; n++)
    for (int h = 0; h < b->size[2]; h += m)
      for (int w = 0; w < b->size[3]; w += m, from += pitch)
        for (int j = 0; j < jn; j += 16) {
          if (m == 2) output4_tile(from + j, 4 * sum_step, sum_step, y, 16);
          else output6_tile(from + j, 6 * sum_step, sum_step, y, 16);
          float16 finite = 0.f;
          for (int i = 0; i < m * m; i++) finite += 0.f * vload16(i, y);
          if (any(isnan(finite)))
            direct_tile(p, m, in + (b->begin[0] + n) * p->is[0], weights + j * p->wcol, min(16, jn - j), lo[0], lo[1] + h,
                        lo[2] + w, y);
          for (int i = 0; i < m * m; i++) {
            const int row = h + i / m, column = w + i % m;
            if (row < b->size[2] && column < b->size[3])
              vstore16(vload16(i, y), 0, results + ((n * b->size[2] + row) * b->size[3] + column) * pitch + j);
          }
        }
}

// Range: blocks of positions (of whole tiles but for the image's end; one depth), blocks of columns, groups. Each
// work-item transforms the weights it needs: cheaper than to write and read t * t / 9 times as many through memory, which
// is only read faster where it stays in cache. Tiles whose sums are not finite are computed again the direct way:
// infinities and NaN must not spread to outputs that do not see them, nor may a transformed sum overflow.
kernel __attribute__((reqd_work_group_size(1, 1, 1))) void conv_cpu_winograd(global const T* in, long oi,
                                                                        global const T* weights, long ow, global T* out,
                                                                        long oo, global const T* bias, long ob, Gather p,
                                                                        int m, local float* scratch EPILOGUE_PARAMETERS) {
  const Block b = block_of(&p, get_global_id(0));
  const int j0 = get_global_id(1) * p.block_cols, g = get_global_id(2);
  const int jn = min(p.block_cols, p.cols - j0), pitch = padded16(jn);
  const int t = m + 2, tile = t * t;
  const int tiles_h = (b.size[2] + m - 1) / m, tiles_w = (b.size[3] + m - 1) / m, tiles = b.size[0] * tiles_h * tiles_w;
  const int size[3] = {1, tiles_h * m + 2, tiles_w * m + 2};
  const int tile_step = odd_lines(tiles * p.pitch), sum_step = odd_lines((tiles + MR - 1) / MR * MR * pitch);
  in += oi + (long)g * p.red * p.is[1];
  out += oo;
  global const T* first = out;
  out += ((long)g * p.cols + j0) * p.os[1];
  bias += ob + g * p.cols + j0;
  weights += ow + g * p.wgroup + j0 * p.wcol;

  local float* y = scratch;                      // [m * m][16 columns]
  local float* sums = y + 16 * 16;               // [t * t][tile][column]
  local float* panel = sums + tile * sum_step;   // [t * t][channel][column], weights
  local float* results = panel;                  // [position][column], once the sums are complete
  local float* pixels = panel + tile * odd_lines(p.channels * min(NR, pitch));  // [row][column][channel], one image
  local float* transformed = pixels + size[1] * size[2] * p.pitch;              // [t * t][tile][channel]
  const int lo[3] = {b.begin[1] + p.first[0], b.begin[2] + p.first[1], b.begin[3] + p.first[2]};
  for (int c = 0; c < p.red; c += p.channels) {
    const int count = min(p.channels, p.red - c);
    transform_images(&p, &b, m, in + c * p.is[1], lo, size, count, pixels, transformed, tile_step);
    const Walk walk = {count, 1, 1, 0, 1, 0};
    for (int j = 0; j < jn; j += NR) {
      const int width = min(NR, pitch - j), step = odd_lines(p.channels * width);
      for (int k = 0; k < width; k += 16)
        transform_weights(&p, m, weights + (j + k) * p.wcol + c * p.wred, count, min(16, jn - j - k), panel + k, step,
                          width);
      for (int e = 0; e < tile; e++)
        for (int i = 0; i < tiles; i += MR) {
          int row[MR];
          for (int r = 0; r < MR; r++) row[r] = min(i + r, tiles - 1) * p.pitch;
          tile_local(width / 16, transformed + e * tile_step, row, walk, panel + e * step,
                     sums + e * sum_step + i * pitch + j, pitch, c > 0);
        }
    }
  }

  transform_sums(&p, &b, m, in, weights, jn, lo, sums, sum_step, y, results, pitch);
  store_positions(&p, &b, results, pitch, jn, out, bias, first, g * p.cols + j0 EPILOGUE_ARGUMENTS);
}

// Taps y[9][16 columns] of one channel the direct way, over the positions of some blocks.
inline void direct_taps(const Gather* p, global const T* in, global const T* grad, int jn, int first_block,
                        int end_block, local float* y) {
  float16 sum[9];
  for (int tap = 0; tap < 9; tap++) sum[tap] = 0.f;
  for (int id = first_block; id < end_block; id++) {
    const Block b = block_of(p, id);
    for (int n = b.begin[0]; n < b.begin[0] + b.size[0]; n++)
      for (int h = b.begin[2]; h < b.begin[2] + b.size[2]; h++)
        for (int w = b.begin[3]; w < b.begin[3] + b.size[3]; w++) {
          float d[16];
          global const T* from = grad + n * p->os[0] + b.begin[1] * p->os[2] + h * p->os[3] + w * p->os[4];
          for (int i = 0; i < 16; i++) d[i] = i < jn ? load1(from + i * p->os[1]) : 0.f;
          const int id0 = b.begin[1] + p->first[0];
          for (int tap = 0; tap < 9; tap++) {
            const int ih = h + p->first[1] + tap / 3, iw = w + p->first[2] + tap % 3;
            if (id0 < 0 || id0 >= p->in[0] || ih < 0 || ih >= p->in[1] || iw < 0 || iw >= p->in[2]) continue;
            const float x = load1(in + n * p->is[0] + id0 * p->is[2] + ih * p->is[3] + iw * p->is[4]);
            sum[tap] = fma((float16)(x), vload16(0, d), sum[tap]);
          }
        }
  }
  for (int tap = 0; tap < 9; tap++) vstore16(sum[tap], tap, y);
}

// Weight gradient: partial[slice][k][(c, tap)], as conv_cpu_implicit_weight_grad() of conv/cpu_implicit.cl. Range: slices of the blocks of
// positions, blocks of at most 64 columns k, groups * blocks of p.channels input channels.
kernel __attribute__((reqd_work_group_size(1, 1, 1))) void conv_cpu_winograd_weight_grad(
    global const T* in, long oi, global const T* grad, long og, global float* partial, long op, Gather p, int m,
    int slices, int blocks, local float* scratch) {
  const int slice = get_global_id(0), j0 = get_global_id(1) * p.block_cols;
  const int c_blocks = (p.red + p.channels - 1) / p.channels;
  const int g = get_global_id(2) / c_blocks, c0 = get_global_id(2) % c_blocks * p.channels;
  const int jn = min(p.block_cols, p.cols - j0), count = min(p.channels, p.red - c0), pitch = padded16(jn);
  const int t = m + 2, tile = t * t, sum_step = odd_lines((count + MR - 1) / MR * MR * pitch);
  in += oi + ((long)g * p.red + c0) * p.is[1];
  grad += og + ((long)g * p.cols + j0) * p.os[1];
  local float* y = scratch;                          // [9][16 columns]
  local float* sums = y + 16 * 16;                   // [t * t][channel][column]
  local float* images = sums + tile * sum_step;      // [t * t][tile][channel]
  local float* results = images;                     // [(channel, tap)][column], once the sums are complete
  const int first_block = (long)blocks * slice / slices, end_block = (long)blocks * (slice + 1) / slices;
  for (int id = first_block; id < end_block; id++) {
    const Block b = block_of(&p, id);
    const int tiles_h = (b.size[2] + m - 1) / m, tiles_w = (b.size[3] + m - 1) / m;
    const int tiles = b.size[0] * tiles_h * tiles_w, image_step = odd_lines(tiles * p.pitch);
    const int size[3] = {1, tiles_h * m + 2, tiles_w * m + 2}, grad_size[3] = {1, tiles_h * m, tiles_w * m};
    const int lo[3] = {b.begin[1] + p.first[0], b.begin[2] + p.first[1], b.begin[3] + p.first[2]};
    const int grad_step = odd_lines(tiles * pitch);
    local float* grads = images + tile * image_step;  // [t * t][tile][column]
    local float* pixels = grads + tile * grad_step;   // of one image, then of one gradient
    transform_images(&p, &b, m, in, lo, size, count, pixels, images, image_step);
    transform_grads(&p, &b, m, grad, grad_size, jn, pixels, grads, grad_step);
    const Walk walk = {tiles, p.pitch, 1, 0, 1, 0};
    for (int e = 0; e < tile; e++)
      for (int i = 0; i < count; i += MR) {
        int row[MR];
        for (int r = 0; r < MR; r++) row[r] = min(i + r, count - 1);
        tile_local(pitch / 16, images + e * image_step, row, walk, grads + e * grad_step,
                   sums + e * sum_step + i * pitch, pitch, id > first_block);
      }
  }

  for (int c = 0; c < count; c++)
    for (int j = 0; j < jn; j += 16) {
      local const float* from = sums + c * pitch + j;
      if (m == 2) taps4_tile(from, 4 * sum_step, sum_step, y, 16);
      else taps6_tile(from, 6 * sum_step, sum_step, y, 16);
      float16 finite = 0.f;
      for (int i = 0; i < 9; i++) finite += 0.f * vload16(i, y);
      if (any(isnan(finite)))
        direct_taps(&p, in + c * p.is[1], grad + j * p.os[1], min(16, jn - j), first_block, end_block, y);
      for (int i = 0; i < 9; i++) vstore16(vload16(i, y), 0, results + (c * 9 + i) * pitch + j);
    }
  const long total = (long)p.red * 9;
  store_taps(results, pitch, count * 9, jn, partial + op + (((long)slice * p.groups + g) * p.cols + j0) * total + c0 * 9L,
             total);
}
