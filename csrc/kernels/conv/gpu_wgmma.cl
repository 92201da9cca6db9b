// clang-format off
// Convolutions on the tensor cores of NVIDIA's Hopper GPUs: the forward pass and both gradients as products of matrices
// (common/wgmma_loop.clh) whose operands the copy engine gathers.
//
// The image that is gathered lies with its channels together. A stage of the reduction is one tap and 128 bytes of
// channels: the tensor map has the axes of the image, so one copy brings a box of pixels as that tap sees them; what is
// outside the image, its padding, the copy engine fills with zeros, and a convolution's stride is the map's own. The
// other operand are the weights as lines [output channel][tap][channel]. The input gradient is the same with the taps
// turned round, for each phase of its stride by itself. In the weight gradient of 16 bits the reduction runs over pixels:
// a stage is a box of at most 64 of them, of y and of x, both with lines along the rows. That of float32 comes as a
// forward pass in which images and channels have changed places.
//
// A tile has the pixels of one box, or for the weight gradient 64 channels of x at one tap after another (FORM,
// gpu_wgmma.h); rows of it that no box fills are zeros. As in gemm/gpu_wgmma.cl work-groups stay, and their last warp
// copies as far ahead as there are stages. After common/operands.clh: images and weights have elements of one size.
#include "kernels/conv/gpu_wgmma.h"

#define WEIGHTS (FORM == CONV_WGMMA_WEIGHTS)
#define BLOCKS (WEIGHTS ? TILE_N / CONV_WGMMA_BLOCK : 1)  // of 64 columns of the weight gradient
#define PIXELS (FORM == CONV_WGMMA_PIXEL_ROWS ? WGMMA_ROWS : WEIGHTS ? WGMMA_LINE_ELEMENTS : TILE_N)  // of a box, at most
#define PLACES (FORM == CONV_WGMMA_PIXEL_ROWS ? WGMMA_ROWS : TILE_N)  // rows or columns whose place a table holds

// --- Copies -----------------------------------------------------------------------------------------------------------

INLINE void make_map_of(uint map, global const A_T* start, ConvWgmmaMap m, const long* strides) {
  make_map5(map, (ulong)start, m.size, strides, m.box, m.step);
}

// The maps of the image and of the other operand: weights, or y of the weight gradient.
INLINE void make_maps(uint maps, global const A_T* image, global const A_T* lines, const ConvWgmma* p) {
  make_map_of(maps, image + p->image_offset, conv_wgmma_image_map(p, WGMMA_LINE_ELEMENTS), p->image_strides);
  make_map_of(maps + WGMMA_MAP, lines + p->lines_offset,
              WEIGHTS ? conv_wgmma_y_map(p)
                      : conv_wgmma_weight_map(p, WGMMA_LINE_ELEMENTS,
                                              FORM == CONV_WGMMA_PIXEL_ROWS ? TILE_N : WGMMA_ROWS),
              p->lines_strides);
}

INLINE void copy_box_to(uint to, ulong map, ConvWgmmaBox box, uint barrier) { copy_box5(to, map, box.x, barrier); }

INLINE void copy_stage(uint to, ulong map, const ConvWgmma* p, const ConvWgmmaTile* t, const ConvWgmmaReach* r,
                       const ConvWgmmaStages* s, const ConvWgmmaColumns* columns, uint ready) {
  const uint second = to + A_BYTES;
  if (!WEIGHTS) {
    copy_box_to(FORM == CONV_WGMMA_PIXEL_ROWS ? to : second, map,
                conv_wgmma_image_box(p, t, r, s, WGMMA_LINE_ELEMENTS), ready);
    copy_box_to(FORM == CONV_WGMMA_PIXEL_ROWS ? second : to, map + WGMMA_MAP,
                conv_wgmma_weight_box(p, t, r, s, WGMMA_LINE_ELEMENTS), ready);
    return;
  }
#pragma unroll
  for (int i = 0; i < WGMMA_ROWS; i += CONV_WGMMA_BLOCK)
    copy_box_to(to + i * WGMMA_LINE, map + WGMMA_MAP, conv_wgmma_y_box(p, t, s, t->channel + i), ready);
#pragma unroll
  for (int i = 0; i < BLOCKS; i++)
    copy_box_to(second + i * CONV_WGMMA_BLOCK * WGMMA_LINE, map, conv_wgmma_x_box(p, t, s, columns + i), ready);
}

INLINE int stage_bytes(const ConvWgmma* p) {
  const int pixels = conv_wgmma_box_pixels(p), weights = FORM == CONV_WGMMA_PIXEL_ROWS ? TILE_N : WGMMA_ROWS;
  return (WEIGHTS ? (WGMMA_ROWS / CONV_WGMMA_BLOCK + BLOCKS) * pixels : pixels + weights) * WGMMA_LINE;
}

// The tile's phases, from the table of all.
INLINE void reaches_of(ConvWgmmaReach* r, local const ConvWgmmaReach* all, const ConvWgmmaTile* t) {
#pragma unroll
  for (int i = 0; i < 3; i++) r[i] = all[i * CONV_WGMMA_STRIDE + t->phase[i]];
}

// The work of the copying warp.
INLINE void copy_tiles(local uchar* memory, global const A_T* image, global const A_T* lines, global ACC* workspace,
                       const ConvWgmma* p, local const ConvWgmmaReach* all) {
  const int lane = get_local_id(0) % 32;
  const uint maps = local_address(memory) + MAPS;
  const ulong published = (ulong)(workspace + p->maps_offset) + get_group_id(0) * 2 * WGMMA_MAP;
  for (int i = lane; i < 2 * WGMMA_MAP / 4; i += 32) *(local uint*)(memory + MAPS + i * 4) = 0;
  asm volatile("bar.warp.sync -1;" ::: "memory");
  if (lane == 0) make_maps(maps, image, lines, p);
  publish_map(published, maps);
  publish_map(published + WGMMA_MAP, maps + WGMMA_MAP);
  if (lane != 0) return;
  const uint full = local_address(memory) + BARRIERS, empty = full + 8 * STAGES;
  const uint bytes = stage_bytes(p);
  uint stage = 0, parity = 1;
  const int tiles = conv_wgmma_tiles(p, FORM);
  for (int index = get_group_id(0); index < tiles; index += get_num_groups(0)) {
    const ConvWgmmaTile t = conv_wgmma_tile(p, FORM, TILE_N, index);
    ConvWgmmaReach reach[3];
    ConvWgmmaColumns columns[BLOCKS];
    reaches_of(reach, all, &t);
    if (WEIGHTS) {
#pragma unroll
      for (int i = 0; i < BLOCKS; i++) columns[i] = conv_wgmma_columns(p, t.block + i);
    }
    ConvWgmmaStages s = conv_wgmma_stages(p, FORM, reach);
    const int count = conv_wgmma_part(p, &t, &s);
    if (count > 0 && t.part > 0) conv_wgmma_go_to(&s, t.part * p->part);
    for (int i = 0; i < count; i++) {
      const uint to = local_address(memory) + stage * STAGE_BYTES, ready = full + 8 * stage;
      wait_for(empty + 8 * stage, parity);
      expect(ready, bytes);
      copy_stage(to, published, p, &t, reach, &s, columns, ready);
      conv_wgmma_next(&s);
      if (++stage == STAGES) stage = 0, parity ^= 1;
    }
  }
}

// --- Results ----------------------------------------------------------------------------------------------------------

INLINE int place_of(const ConvWgmma* p, local const int* places, int channel, int row, int column) {
  return conv_wgmma_result(p, FORM, places[FORM == CONV_WGMMA_PIXEL_ROWS ? row : column], channel, row, column);
}

INLINE ACC bias_of(const ConvWgmma* p, global const T* bias, int group, int channel) {
  return channel < p->cols ? load1(bias + p->bias_offset + group * p->cols + channel) : 0;
}

// Of the functions that follow `sums` is a piece of a work-item's sums, from the i-th of them on.

INLINE void finish(Result* results, ACC* sums, int i, const ConvWgmma* p, int item, int group, int channel,
                   global const T* bias, local const int* places EPILOGUE_PARAMETERS) {
  if (!WEIGHTS && p->has_bias) {
#pragma unroll
    for (int j = 0; j < PIECE; j++)
      sums[j] += bias_of(p, bias, group,
                         channel + (FORM == CONV_WGMMA_PIXEL_ROWS ? wgmma_column(item, i + j) : wgmma_row(item, i + j)));
  }
#ifdef EPILOGUE
  EpilogueExtras extras[PIECE];
  int places_of[PIECE];
  const int first = group * p->cols + channel;
#pragma unroll
  for (int j = 0; j < PIECE; j++) {
    const int row = wgmma_row(item, i + j), column = wgmma_column(item, i + j);
    const int at = places_of[j] = place_of(p, places, channel, row, column);
    extras[j] = dlb_epilogue_extras(
        max(at, 0), 0, at < 0 ? 0 : first + (FORM == CONV_WGMMA_PIXEL_ROWS ? column : row) EPILOGUE_ARGUMENTS);
  }
#pragma unroll
  for (int j = 0; j < PIECE; j++)
    results[j] = dlb_epilogue_of(sums[j], extras[j], places_of[j] >= 0, places_of[j] EPILOGUE_ARGUMENTS);
#else
  if (FINISHING(p->low, p->high)) {
#pragma unroll
    for (int j = 0; j < PIECE; j++) sums[j] = bounded1(sums[j], p->low, p->high);
  }
#pragma unroll
  for (int j = 0; j < PIECE; j++) results[j] = sums[j];
#endif
}

// Results or sums of four bytes.
INLINE void store_words(const uint* words, int i, const ConvWgmma* p, int item, local const int* places, int channel,
                        global uint* out) {
#pragma unroll
  for (int j = 0; j < PIECE; j += 2) {
    const int row = wgmma_row(item, i + j), column = wgmma_column(item, i + j);
    const int first = place_of(p, places, channel, row, column), second = place_of(p, places, channel, row, column + 1);
    global uint* o = out + first;
    if (first >= 0 && second == first + 1 && ((ulong)o & 7) == 0) {
      *(global uint2*)o = (uint2)(words[j], words[j + 1]);
    } else {
      if (first >= 0) *o = words[j];
      if (second >= 0) out[second] = words[j + 1];
    }
  }
}

#if RESULT_BYTES < 4
INLINE void store_narrow(const Result* results, int i, const ConvWgmma* p, int item, local const int* places,
                         int channel, global C_T* out) {
#pragma unroll
  for (int half_ = 0; half_ < 4; half_ += 2) {
    uint w[4];
#pragma unroll
    for (int j = 0; j < 4; j++) w[j] = pair_of(results + 4 * j + half_);
    gather_words(w, item);
    const int row = wgmma_row(item, half_), column = i / 4 * 8 + item % 4 * 8;
    const int first = place_of(p, places, channel, row, column), last = place_of(p, places, channel, row, column + 7);
    global C_T* o = out + first;
    if (p->runs && first >= 0 && last == first + 7 && ((ulong)o & (8 * RESULT_BYTES - 1)) == 0) {
#if RESULT_BYTES == 2
      *(global uint4*)o = (uint4)(w[0], w[1], w[2], w[3]);
#else
      *(global uint2*)o = (uint2)(w[0] | w[1] << 16, w[2] | w[3] << 16);
#endif
    } else {
#pragma unroll
      for (int j = 0; j < 8; j++) {
        const int place = place_of(p, places, channel, row, column + j);
        if (place >= 0) out[place] = (C_T)(w[j / 2] >> j % 2 * 8 * RESULT_BYTES);
      }
    }
  }
}
#endif

INLINE void store(const Result* results, int i, const ConvWgmma* p, int item, local const int* places, int channel,
                  global C_T* out) {
#if RESULT_BYTES == 4
  uint words[PIECE];
#pragma unroll
  for (int j = 0; j < PIECE; j++) words[j] = BITS_OF(results[j]);
  store_words(words, i, p, item, places, channel, (global uint*)out);
#else
  store_narrow(results, i, p, item, places, channel, out);
#endif
}

INLINE void store_partial(const ACC* sums, int i, const ConvWgmma* p, int item, local const int* places, int channel,
                          global ACC* part) {
  uint words[PIECE];
#pragma unroll
  for (int j = 0; j < PIECE; j++) words[j] = as_uint(sums[j]);
  store_words(words, i, p, item, places, channel, (global uint*)part);
}

#if SPLIT
// The sum of one result by multiply-adds; a NaN ends it.
INLINE float sum_again(global const T* image, global const T* lines, const ConvWgmma* p, local const ConvWgmmaReach* all,
                const ConvWgmmaTile* t, uint pixel, int channel) {
  ConvWgmmaReach reach[3];
  reaches_of(reach, all, t);
  ConvWgmmaStages s = conv_wgmma_stages(p, FORM, reach);
  const int count = conv_wgmma_part(p, t, &s);
  if (count > 0 && t->part > 0) conv_wgmma_go_to(&s, t->part * p->part);
  float sum = 0;
  for (int i = 0; i < count && !isnan(sum); i++, conv_wgmma_next(&s)) {
    const ConvWgmmaBox box = conv_wgmma_image_box(p, t, reach, &s, WGMMA_LINE_ELEMENTS);
    const ConvWgmmaBox weights = conv_wgmma_weight_box(p, t, reach, &s, WGMMA_LINE_ELEMENTS);
    long x = p->image_offset * sizeof(T) + (box.x[4] + (pixel >> 24)) * p->image_strides[3];
    bool inside = true;
    for (int d = 0; d < 3; d++) {
      const bool group = p->grouped && d == 2;
      const int at = box.x[1 + d] + (group ? 0 : (int)(pixel >> 8 * d & 255) * reach[d].image_step);
      inside = inside && at >= 0 && at < (group ? (int)p->groups.divisor : p->axis[d].image);
      x += at * p->image_strides[d];
    }
    if (!inside) continue;
    global const T* a = image + x / (long)sizeof(T) + box.x[0];
    global const T* b = lines + p->lines_offset + weights.x[0] +
                        (weights.x[1] * p->lines_strides[0] + (weights.x[2] + channel) * p->lines_strides[1]) / (long)sizeof(T);
    for (int c = 0; c < min(WGMMA_LINE_ELEMENTS, p->red - box.x[0]); c++) sum = fma(a[c], b[c], sum);
  }
  return sum;
}

INLINE void store_again(global const T* image, global const T* lines, global const T* bias, const ConvWgmma* p,
                 local const ConvWgmmaReach* all, const ConvWgmmaTile* t, int item, local const int* places,
                 global float* out EPILOGUE_PARAMETERS) {
  for (int i = 0; i < SUMS; i++) {
    const int row = wgmma_row(item, i), column = wgmma_column(item, i);
    const int place = place_of(p, places, t->channel, row, column);
    if (place < 0) continue;
    const int channel = FORM == CONV_WGMMA_PIXEL_ROWS ? column : row;
    const uint pixel = conv_wgmma_pixel(p, FORM == CONV_WGMMA_PIXEL_ROWS ? row : column);
    float sum = sum_again(image, lines, p, all, t, pixel, channel);
    if (p->has_bias && p->splits == 1) sum += bias_of(p, bias, t->group, t->channel + channel);
    const int c = t->group * p->cols + t->channel + channel;
    out[place] = p->splits == 1 ? FINISH(sum, p->low, p->high, place, 0, c) : sum;
  }
}
#endif

// --- The kernel -------------------------------------------------------------------------------------------------------

// The facts that a tile's end needs, kept in local memory because there are no registers for them beside the sums.
typedef struct {
  ConvWgmmaTile tile;
  int places[PLACES];
} Kept;

// Makes it, by the work-items that multiply; returns how many stages the tile has.
INLINE int prepare(local Kept* kept, const ConvWgmma* p, local const ConvWgmmaReach* all, int index, int item,
                   uint pixel) {
  const ConvWgmmaTile t = conv_wgmma_tile(p, FORM, TILE_N, index);
  ConvWgmmaReach reach[3];
  reaches_of(reach, all, &t);
  if (item == 0) kept->tile = t;
  if (item < PLACES)
    kept->places[item] = WEIGHTS ? conv_wgmma_weight_place(p, &t, item) : conv_wgmma_place(p, &t, reach, pixel);
  const ConvWgmmaStages s = conv_wgmma_stages(p, FORM, reach);
  asm volatile("bar.sync 2, 256;" ::: "memory");
  return conv_wgmma_part(p, &t, &s);
}

// Phases and barriers, and zeros where a stage has rows that no copy fills.
INLINE void begin(local uchar* memory, local ConvWgmmaReach* all, const ConvWgmma* p, int item) {
  if (item < 3 * CONV_WGMMA_STRIDE) all[item] = conv_wgmma_reach(p, item / CONV_WGMMA_STRIDE, item % CONV_WGMMA_STRIDE);
  if (item == 0) make_stage_barriers(local_address(memory));
  if (conv_wgmma_box_pixels(p) < PIXELS)
    for (int i = item; i < STAGES * STAGE_BYTES / 16; i += WGMMA_ITEMS) ((local uint4*)memory)[i] = (uint4)(0);
  asm volatile("fence.proxy.async;" ::: "memory");
  barrier(CLK_LOCAL_MEM_FENCE);
}

// Global size: {work-groups * WGMMA_ITEMS}, as many as there are compute units or tiles. image: what is gathered; lines:
// weights, or y of the weight gradient.
__attribute__((reqd_work_group_size(WGMMA_ITEMS, 1, 1))) kernel void conv_gpu_wgmma(
    global const A_T* image, global const A_T* lines, global C_T* out, global const T* bias, global ACC* workspace,
    ConvWgmma p EPILOGUE_PARAMETERS) {
  local uchar memory[LOCAL_BYTES] __attribute__((aligned(1024)));
  local ConvWgmmaReach reaches[3 * CONV_WGMMA_STRIDE];  // by axis and phase
  local Kept both[2];  // of this tile and the next, which others may have begun
  const int item = get_local_id(0);
  const uint base = local_address(memory);
  begin(memory, reaches, &p, item);
  if (item >= CONSUMERS) {
    copy_tiles(memory, image, lines, workspace, &p, reaches);
    return;
  }
  const ulong at_a = descriptor(base + item / 128 * 64 * WGMMA_LINE, A_ALONG_ROWS);
  const ulong at_b = descriptor(base + A_BYTES, B_ALONG_ROWS);
  const uint pixel = conv_wgmma_pixel(&p, item);
  Progress progress = {0, 0, 0};
  const int tiles = conv_wgmma_tiles(&p, FORM);
  int turn = 0;
  for (int index = get_group_id(0); index < tiles; index += get_num_groups(0), turn ^= 1) {
    const int stages = prepare(both + turn, &p, reaches, index, item, pixel);
    ACC sums[SUMS];
#pragma unroll
    for (int i = 0; i < SUMS; i++) sums[i] = 0;
    if (stages > 0) multiply(sums, base, at_a, at_b, stages, &progress);
    const ConvWgmmaTile t = both[turn].tile;
    local const int* places = both[turn].places;
    global ACC* part = workspace + p.partial_offset + t.part * p.part_size;
#if SPLIT
    if (any_infinite_or_nan(sums)) {
      store_again(image, lines, bias, &p, reaches, &t, item, places,
                  p.splits > 1 ? part : out + p.out_offset EPILOGUE_ARGUMENTS);
      continue;
    }
#endif
#pragma unroll 1
    for (int i = 0; i < SUMS; i += TURN) {
#pragma unroll
      for (int j = 0; j < TURN; j += PIECE) {
        if (p.splits > 1) {
          store_partial(sums + j, i + j, &p, item, places, t.channel, part);
        } else {
          Result results[PIECE];
          finish(results, sums + j, i + j, &p, item, t.group, t.channel, bias, places EPILOGUE_ARGUMENTS);
          store(results, i + j, &p, item, places, t.channel, out + p.out_offset);
        }
      }
      if (i + TURN < SUMS) move_up(sums);
    }
  }
}
