// clang-format off
// Implicit-GEMM convolution for CPU-like devices, run-time sizes. One gathering kernel serves the forward pass and,
// once per stride phase, the input gradient; another the weight gradient. A work-item copies the part of the gathered
// image that its block of positions needs into scratch, padded and with channels innermost; from then on every
// operand of the register tile is an affine walk through scratch, and nothing is ever unfolded per filter tap.
TILES(global)
TILES(local)

// Packs weights of one group: of 16 columns, `jn` of which there are, `count` channels and all taps, to
// to[tap][channel][column] with rows of `width`. Columns that there are not become zeros.
#define LOAD_WEIGHTS(n, h) x##h = load16(s + n * p->wcol);
#define STORE_WEIGHTS(n, h)                              \
  vstore16(x##h, 0, to + ((long)tap * count + c) * width); \
  if (++tap == taps) tap = 0, c++;
#define STORE_CHANNEL(n, h) vstore16(x##h, 0, to + ((long)tap * count + c + n) * width);
#define PACK(SPACE)                                                                                                   \
  inline void pack_##SPACE(const Gather* p, global const T* weights, int count, int jn, SPACE float* to, int width) { \
    const int taps = p->taps[0] * p->taps[1] * p->taps[2];                                                            \
    const int plane = p->taps[1] * p->taps[2];                                                                        \
    int done = 0; /* pairs of channel and tap */                                                                      \
    if (jn == 16 && p->wtap[2] == 1 && p->wtap[1] == p->taps[2] && p->wtap[0] == plane && p->wred == taps) {          \
      /* they are one contiguous run per column */                                                                    \
      int tap = 0, c = 0;                                                                                             \
      for (; done + 16 <= count * taps; done += 16) {                                                                 \
        VECTORS16(x) VECTORS16(y)                                                                                     \
        global const T* s = weights + done;                                                                           \
        EACH16(LOAD_WEIGHTS) TRANSPOSE(x, y) EACH16(STORE_WEIGHTS)                                                    \
      }                                                                                                               \
    } else if (jn == 16 && p->wred == 1) {                                                                            \
      /* channels are one contiguous run per column and tap */                                                        \
      done = (count & ~15) * taps;                                                                                    \
      for (int tap = 0; tap < taps; tap++) {                                                                          \
        global const T* of_tap = weights + tap / plane * p->wtap[0] + tap / p->taps[2] % p->taps[1] * p->wtap[1] +    \
                                 tap % p->taps[2] * p->wtap[2];                                                       \
        for (int c = 0; c + 16 <= count; c += 16) {                                                                   \
          VECTORS16(x) VECTORS16(y)                                                                                   \
          global const T* s = of_tap + c;                                                                             \
          EACH16(LOAD_WEIGHTS) TRANSPOSE(x, y) EACH16(STORE_CHANNEL)                                                  \
        }                                                                                                             \
      }                                                                                                               \
    }                                                                                                                 \
    for (int c = done / taps; c < count; c++)                                                                         \
      for (int tap = 0; tap < taps; tap++) {                                                                          \
        if (c * taps + tap < done) continue;                                                                          \
        global const T* s = weights + c * p->wred + tap / plane * p->wtap[0] +                                        \
                            tap / p->taps[2] % p->taps[1] * p->wtap[1] + tap % p->taps[2] * p->wtap[2];               \
        SPACE float* d = to + ((long)tap * count + c) * width;                                                        \
        if (jn == 16 && p->wcol == 1) vstore16(load16(s), 0, d);                                                      \
        else                                                                                                          \
          for (int i = 0; i < 16; i++) d[i] = i < jn ? load1(s + i * p->wcol) : 0.f;                                  \
      }                                                                                                               \
  }
PACK(global)
PACK(local)

// The same for a panel of `width` columns, `left` of which there are.
static inline void pack_panel(const Gather* p, global const T* weights, int count, int left, local float* to, int width) {
  for (int i = 0; i < width; i += 16) pack_local(p, weights + i * p->wcol, count, min(16, left - i), to + i, width);
}

// Weights into panels [group][block of channels][64 columns][tap][channel][column], columns padded to 16 by zeros.
// One work-item packs 16 columns of a block of channels.
kernel __attribute__((reqd_work_group_size(1, 1, 1))) void conv_cpu_implicit_pack(global const T* weights, long ow,
                                                                         global float* packed, long op, Gather p) {
  CONSTANTS(p)
  const int j = get_global_id(0) * 16, c0 = get_global_id(1) * p.channels, g = get_global_id(2);
  const int cols = padded16(p.cols), count = min(p.channels, p.red - c0), taps = p.taps[0] * p.taps[1] * p.taps[2];
  const int panel = j & ~(NR - 1), width = min(NR, cols - panel);
  pack_global(&p, weights + ow + g * p.wgroup + j * p.wcol + c0 * p.wred, count, min(16, p.cols - j),
              packed + op + ((long)g * p.red + c0) * taps * cols + (long)panel * taps * count + (j - panel), width);
}

// results[row][column] = or += the sums over the walk of the rows at slab[offsets[row]], with nv vectors of columns of
// `weights`. As many offsets as a tile has rows are read behind the last.
#define MULTIPLY(SPACE)                                                                                                 \
  static inline void multiply_##SPACE(int rows, local const float* slab, local const int* offsets, Walk walk,          \
                                      SPACE const float* weights, int nv, local float* results, int pitch, int add) {  \
    for (int i = 0; i < rows; i += MR) {                                                                               \
      int row[MR];                                                                                                     \
      for (int r = 0; r < MR; r++) row[r] = offsets[i + r];                                                            \
      tile_##SPACE(nv, slab, row, walk, weights, results + i * pitch, pitch, add);                                     \
    }                                                                                                                  \
  }
MULTIPLY(global)
MULTIPLY(local)

// Pixels of the block's images from `lo` on, through `in`, to pixels[image][d][h][w][channel]: a number of planes, rows
// and columns as in `size`, and `count` channels.
static inline void load_images(const Gather* p, const Block* b, global const T* in, const int* lo, const int* size,
                               int count, local float* pixels, int image_pitch) {
  for (int n = 0; n < b->size[0]; n++)
    load_pixels(in + (b->begin[0] + n) * p->is[0], p->is, p->in, lo, size, count, count, pixels + n * image_pitch,
                p->pitch);
}

// Where each position of the block begins in scratch. As many as a tile has rows follow that repeat the last one.
static inline void find_offsets(const Gather* p, const Block* b, int image_pitch, int plane_pitch, int row_pitch,
                                local int* offsets) {
  int at = 0;
  for (int n = 0; n < b->size[0]; n++)
    for (int d = 0; d < b->size[1]; d++)
      for (int h = 0; h < b->size[2]; h++)
        for (int w = 0; w < b->size[3]; w++)
          offsets[at++] = n * image_pitch + d * p->step[0] * plane_pitch + h * p->step[1] * row_pitch +
                          w * p->step[2] * p->pitch;
  for (int r = 0; r < MR; r++) offsets[at + r] = offsets[at - 1];
}

// Forward pass, or one stride phase of the input gradient. Range: blocks of positions, blocks of columns, groups. The
// weights were packed before, or each work-item packs those that it needs: where hardly another one needs them, that
// saves writing them to memory and reading them again.
kernel __attribute__((reqd_work_group_size(1, 1, 1))) void conv_cpu_implicit(
    global const T* in, long oi, global const T* weights, long ow, global const float* packed, long op, global T* out,
    long oo, global const T* bias, long ob, Gather p, local float* scratch EPILOGUE_PARAMETERS) {
  CONSTANTS(p)
  const Block b = block_of(&p, get_global_id(0));
  const int j0 = get_global_id(1) * p.block_cols, g = get_global_id(2);
  const int jn = min(p.block_cols, p.cols - j0), cols = padded16(p.cols), pitch = padded16(jn);
  const int taps = p.taps[0] * p.taps[1] * p.taps[2];
  in += oi + (long)g * p.red * p.is[1];
  global const T* first = out + oo;
  out += oo + ((long)g * p.cols + j0) * p.os[1];
  bias += ob + g * p.cols + j0;
  packed += op + (long)g * p.red * taps * cols;
  weights += ow + g * p.wgroup;

  int inner[3], outer[3], size[3];  // taps walked in scratch, taps loaded one at a time, pixels in scratch
  for (int i = 0; i < 3; i++) {
    inner[i] = p.split[i] ? min(1, p.taps[i]) : p.taps[i];
    outer[i] = p.split[i] ? p.taps[i] : min(1, p.taps[i]);
    size[i] = (b.size[i + 1] - 1) * p.step[i] + (inner[i] - 1) * p.dilation[i] + 1;
  }
  const int row_pitch = size[2] * p.pitch, plane_pitch = size[1] * row_pitch, image_pitch = size[0] * plane_pitch;

  local int* offsets = (local int*)scratch;  // where each position begins in scratch
  local float* results = scratch + padded16(b.count + MR);
  local float* panel = results + (b.count + MR) * pitch;  // with p.packs
  local float* pixels = panel + (p.packs ? taps * p.channels * min(NR, cols) : 0);
  find_offsets(&p, &b, image_pitch, plane_pitch, row_pitch, offsets);
  if (taps == 0 || p.red == 0)
    for (int i = 0; i < b.count * pitch; i++) results[i] = 0.f;

  for (int c = 0; c < p.red; c += p.channels) {
    const int count = min(p.channels, p.red - c);
    for (int t0 = 0; t0 < outer[0]; t0++)
      for (int t1 = 0; t1 < outer[1]; t1++)
        for (int t2 = 0; t2 < outer[2]; t2++) {
          const int lo[3] = {b.begin[1] * p.step[0] + p.first[0] + t0 * p.dilation[0],
                             b.begin[2] * p.step[1] + p.first[1] + t1 * p.dilation[1],
                             b.begin[3] * p.step[2] + p.first[2] + t2 * p.dilation[2]};
          load_images(&p, &b, in + c * p.is[1], lo, size, count, pixels, image_pitch);
          Walk walk = {count, 1, inner[2], p.dilation[2] * p.pitch, inner[1], p.dilation[1] * row_pitch};
          if (p.dilation[2] == 1 && p.pitch == count) walk.n0 *= walk.n1, walk.n1 = 1;
          for (int j = j0; j < j0 + jn; j += NR) {
            const int width = min(NR, cols - j);
            if (p.packs) pack_panel(&p, weights + j * p.wcol + c * p.wred, count, p.cols - j, panel, width);
            for (int d = 0; d < inner[0]; d++) {
              const int tap = ((t0 + d) * p.taps[1] + t1) * p.taps[2] + t2, add = c + t0 + t1 + t2 + d > 0;
              local const float* slab = pixels + d * p.dilation[0] * plane_pitch;
              global const float* before = packed + (long)c * taps * cols + ((long)j * taps + tap * width) * count;
              local float* to = results + (j - j0);
              if (p.packs)
                multiply_local(b.count, slab, offsets, walk, panel + tap * width * count, width / 16, to, pitch, add);
              else
                multiply_global(b.count, slab, offsets, walk, before, width / 16, to, pitch, add);
            }
          }
        }
  }
  store_positions(&p, &b, results, pitch, jn, out, bias, first, g * p.cols + j0 EPILOGUE_ARGUMENTS);
}

// Weight gradient: partial[slice][k][(c, tap)] = sum over the slice's positions of out-gradient[k] * in[c], where p
// gathers the forward pass's input and p.os are the strides of the output's gradient. Range: slices of the blocks of
// positions, blocks of columns k, groups * blocks of p.channels input channels.
kernel __attribute__((reqd_work_group_size(1, 1, 1))) void conv_cpu_implicit_weight_grad(global const T* in, long oi,
                                                                                global const T* grad, long og,
                                                                                global float* partial, long op,
                                                                                Gather p, int slices, int blocks,
                                                                                local float* scratch) {
  CONSTANTS(p)
  const int slice = get_global_id(0), j0 = get_global_id(1) * p.block_cols;
  const int c_blocks = (p.red + p.channels - 1) / p.channels;
  const int g = get_global_id(2) / c_blocks, c0 = get_global_id(2) % c_blocks * p.channels;
  const int jn = min(p.block_cols, p.cols - j0), count = min(p.channels, p.red - c0), pitch = padded16(jn);
  const int taps = p.taps[0] * p.taps[1] * p.taps[2], rows = count * taps;
  in += oi + ((long)g * p.red + c0) * p.is[1];
  grad += og + ((long)g * p.cols + j0) * p.os[1];

  local int* offsets = (local int*)scratch;
  local float* results = scratch + padded16(rows + MR);
  local float* panels = results + (rows + MR) * pitch;
  local float* pixels = panels + p.block[0] * p.block[1] * p.block[2] * p.block[3] * NR;
  const int first_block = (long)blocks * slice / slices, end_block = (long)blocks * (slice + 1) / slices;
  int add = 0;
  for (int id = first_block; id < end_block; id++) {
    const Block b = block_of(&p, id);
    int size[3], lo[3];
    for (int i = 0; i < 3; i++) {
      size[i] = (b.size[i + 1] - 1) * p.step[i] + (p.taps[i] - 1) * p.dilation[i] + 1;
      lo[i] = b.begin[i + 1] * p.step[i] + p.first[i];
    }
    const int row_pitch = size[2] * p.pitch, plane_pitch = size[1] * row_pitch, image_pitch = size[0] * plane_pitch;
    int at = 0;
    for (int c = 0; c < count; c++)
      for (int t0 = 0; t0 < p.taps[0]; t0++)
        for (int t1 = 0; t1 < p.taps[1]; t1++)
          for (int t2 = 0; t2 < p.taps[2]; t2++)
            offsets[at++] = c + t0 * p.dilation[0] * plane_pitch + t1 * p.dilation[1] * row_pitch + t2 * p.dilation[2] * p.pitch;
    for (int r = 0; r < MR; r++) offsets[at + r] = offsets[at - 1];
    load_images(&p, &b, in, lo, size, count, pixels, image_pitch);

    const int positions = b.size[1] * b.size[2] * b.size[3];
    const Walk walk = {b.size[3], p.step[2] * p.pitch, b.size[2], p.step[1] * row_pitch, b.size[1], p.step[0] * plane_pitch};
    for (int j = 0; j < jn; j += NR) {
      const int width = padded16(min(NR, jn - j));
      for (int n = 0; n < b.size[0]; n++)
        load_pixels(grad + (b.begin[0] + n) * p.os[0] + j * p.os[1], p.os, p.q, b.begin + 1, b.size + 1,
                    min(NR, jn - j), width, panels + n * positions * width, width);
      for (int n = 0; n < b.size[0]; n++)
        multiply_local(rows, pixels + n * image_pitch, offsets, walk, panels + n * positions * width, width / 16,
                       results + j, pitch, add || n);
    }
    add = 1;
  }

  const long total = (long)p.red * taps;
  store_taps(results, pitch, rows, jn, partial + op + (((long)slice * p.groups + g) * p.cols + j0) * total + (long)c0 * taps,
             total);
}

// weights[k, c, taps] (strides ws) = sum over slices of partial[slice][k][c][tap], always in the same order. One
// work-item takes one k.
kernel __attribute__((reqd_work_group_size(1, 1, 1))) void conv_cpu_implicit_reduce(global const float* partial, long op,
                                                                           global T* weights, long ow, Gather p,
                                                                           int slices) {
  CONSTANTS(p)
  const int k = get_global_id(0), taps = p.taps[0] * p.taps[1] * p.taps[2], row = p.red * taps;
  const long slice_step = (long)p.groups * p.cols * row;
  partial += op + (long)k * row;
  weights += ow + k * p.wcol;
  const int dense = p.wtap[2] == 1 && p.wtap[1] == p.taps[2] && p.wtap[0] == p.taps[1] * p.taps[2] && p.wred == taps;
  int i = 0;
  if (dense)
    for (; i + 16 <= row; i += 16) {
      float16 sum = vload16(0, partial + i);
      for (int s = 1; s < slices; s++) sum += vload16(0, partial + s * slice_step + i);
      store16(weights + i, sum);
    }
  for (; i < row; i++) {
    float sum = partial[i];
    for (int s = 1; s < slices; s++) sum += partial[s * slice_step + i];
    const int t = i % taps;
    store1(weights + i / taps * p.wred + t / (p.taps[1] * p.taps[2]) * p.wtap[0] +
                    t / p.taps[2] % p.taps[1] * p.wtap[1] + t % p.taps[2] * p.wtap[2], sum);
  }
}
