// Convolution and its gradients by plain tiles, which run while better kernels are compiled. A result is a sum over
// products of a line's elements (of weights, or of y) and elements that are gathered from an image (x, or y):
//   DIRECTION     row             column         summed over     line      image
//   forward       channel of y    pixel of y     taps of x       w         x
//   input grad    channel of x    pixel of x     taps of y       w         y
//   weight grad   channel of y    tap of x       pixels of y     y         x
// per group, where a tap is a channel and a place in the filter.
#include "kernels/conv/params.h"

#define PIXELS_SUMMED (DIRECTION == CONV_PLAIN_WEIGHTS)

// A pixel: an image and a position; or a tap: a channel of the group and a place in the filter.
typedef struct {
  int outer, at[3];
} Place;

// The i-th place where the axes have these sizes.
INLINE void find_place(Place* place, uint i, const int* size) {
  place->at[2] = i % size[2], i /= size[2];
  place->at[1] = i % size[1], i /= size[1];
  place->at[0] = i % size[0], place->outer = i / size[0];
}

INLINE const int* pixels_of(const ConvShape* p) { return DIRECTION == CONV_PLAIN_DATA ? p->in : p->out; }

INLINE long along(const int* at, const long* strides) {
  return at[0] * strides[0] + at[1] * strides[1] + at[2] * strides[2];
}

// The element of the image that a tap sees from a pixel.
INLINE ACC gathered(global const T* image, const ConvShape* p, const Place* pixel, const Place* tap, int group) {
  const long* strides = DIRECTION == CONV_PLAIN_DATA ? p->ys : p->xs;
  const int channels = (DIRECTION == CONV_PLAIN_DATA ? p->k : p->c) / p->groups;
  int at[3];
  bool inside = true;
  for (int d = 0; d < 3; d++) {
    if (DIRECTION == CONV_PLAIN_DATA) {
      const int i = pixel->at[d] + p->padding[d] - tap->at[d] * p->dilation[d];
      at[d] = p->stride[d] == 1 ? i : i / p->stride[d];
      inside = inside && i >= 0 && at[d] * p->stride[d] == i && at[d] < p->out[d];
    } else {
      at[d] = pixel->at[d] * p->stride[d] - p->padding[d] + tap->at[d] * p->dilation[d];
      inside = inside && at[d] >= 0 && at[d] < p->in[d];
    }
  }
  if (!inside) return 0;
  return load1(
      image + pixel->outer * strides[0] + (group * channels + tap->outer) * strides[1] + along(at, strides + 2));
}

// The element of a row's line.
INLINE ACC line_element(global const T* line, const ConvShape* p, int group, int row, int rows, const Place* summed) {
  if (PIXELS_SUMMED)
    return load1(line + summed->outer * p->ys[0] + (group * rows + row) * p->ys[1] + along(summed->at, p->ys + 2));
  global const T* filter = line + along(summed->at, p->ws + 2);
  if (DIRECTION == CONV_PLAIN_FORWARD)
    return load1(filter + (group * rows + row) * p->ws[0] + summed->outer * p->ws[1]);
  return load1(filter + (group * (p->k / p->groups) + summed->outer) * p->ws[0] + row * p->ws[1]);
}

// Where a result is, behind the first one.
INLINE long result_at(const ConvShape* p, int channel, int column) {
  Place place;
  find_place(&place, column, PIXELS_SUMMED ? p->filter : pixels_of(p));
  if (PIXELS_SUMMED) return channel * p->ws[0] + place.outer * p->ws[1] + along(place.at, p->ws + 2);
  const long* strides = DIRECTION == CONV_PLAIN_DATA ? p->xs : p->ys;
  return place.outer * strides[0] + channel * strides[1] + along(place.at, strides + 2);
}

// Global size: {tiles of rows * tiles of columns * groups * PLAIN_ITEMS, splits}. With splits > 1 sums go to `partial`,
// dense, [split][group][row][column].
__attribute__((reqd_work_group_size(PLAIN_ITEMS, 1, 1))) kernel void conv_gpu_plain(
    global const T* line, global const T* image, global T* out, global const T* bias, global ACC* partial, ConvShape p,
    ConvPlain q) {
  PLAIN_MEMORY(memory);
  const int item = get_local_id(0), id = get_group_id(0);
  const int tiles_m = (q.rows + PLAIN - 1) / PLAIN, tiles_n = (q.columns + PLAIN - 1) / PLAIN;
  const int group = id / tiles_n / tiles_m, row = id / tiles_n % tiles_m * PLAIN, column = id % tiles_n * PLAIN;
  line += q.line_offset, image += q.image_offset;
  const int own_row = min(row + item % PLAIN, q.rows - 1), own_column = min(column + item % PLAIN, q.columns - 1);
  Place own, summed;
  find_place(&own, own_column, PIXELS_SUMMED ? p.filter : pixels_of(&p));
  ACC4 sums[4] = {0, 0, 0, 0};
  const int first = get_group_id(1) * q.part, end = min(first + q.part, q.depth);
  for (int k = first; k < end; k += PLAIN_DEPTH) {
#pragma unroll 1
    for (int i = item / PLAIN; i < PLAIN_DEPTH; i += PLAIN_ITEMS / PLAIN) {
      local ACC* to = memory + i * PLAIN_PITCH + item % PLAIN;
      to[0] = to[PLAIN_TILE] = 0;
      if (k + i >= end) continue;
      find_place(&summed, k + i, PIXELS_SUMMED ? pixels_of(&p) : p.filter);
      to[0] = line_element(line, &p, group, own_row, q.rows, &summed);
      to[PLAIN_TILE] = gathered(image, &p, PIXELS_SUMMED ? &summed : &own, PIXELS_SUMMED ? &own : &summed, group);
    }
    multiply_plain(sums, memory, item);
  }
  spread_plain(memory, sums, item);
#pragma unroll 1
  for (int i = item; i < PLAIN * PLAIN; i += PLAIN_ITEMS) {
    const int m = row + i / PLAIN, n = column + i % PLAIN, channel = group * q.rows + m;
    if (m >= q.rows || n >= q.columns) continue;
    if (get_num_groups(1) > 1) {
      partial[q.partial_offset + ((long)get_group_id(1) * p.groups * q.rows + channel) * q.columns + n] = memory[i];
      continue;
    }
    const ACC v = memory[i] + (p.has_bias ? load1(bias + q.bias_offset + channel) : 0);
    store1(out + q.out_offset + result_at(&p, channel, n), bounded1(v, p.low, p.high));
  }
}

// Adds the parts of weight gradients in a fixed order. Global size: at least as many as there are results.
kernel void conv_gpu_plain_add(global const ACC* partial, global T* out, ConvShape p, ConvPlain q, int splits) {
  const long i = get_global_id(0), size = (long)p.groups * q.rows * q.columns;
  if (i >= size) return;
  ACC sum = 0;
  for (int s = 0; s < splits; s++) sum += partial[q.partial_offset + s * size + i];
  store1(out + q.out_offset + result_at(&p, i / q.columns, i % q.columns), sum);
}
