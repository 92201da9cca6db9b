// Arguments of conv/gpu_wgmma.cl, and where its tiles and stages lie: the kernel, its solver and the test
// that simulates both read the same functions.
#pragma once
#include "kernels/common/divider.h"
#include "kernels/common/wgmma.h"

PARAMS_BEGIN

// The rows and columns of a tile.
enum {
  CONV_WGMMA_PIXEL_ROWS,     // pixels of the result; its channels
  CONV_WGMMA_PIXEL_COLUMNS,  // channels of the result; its pixels
  CONV_WGMMA_WEIGHTS,        // of the weight gradient: channels of y; 64 channels of x at one tap, then the next 64
  CONV_WGMMA_BLOCK = 64,     // those 64
  CONV_WGMMA_STRIDE = 8      // the largest that tensor maps know
};

// An axis, in the order width, height, depth.
typedef struct {
  dlb_int image;                  // size of the image that is gathered: x, or y of the input gradient
  dlb_int out;                    // positions of the result; of the weight gradient those of y
  dlb_int stride, pad, dilation;  // of the convolution
  dlb_int box;                    // positions that one copy brings
  dlb_int tap_step, jump;         // input gradient: from a phase's tap to its next, and positions of y back
  Divider taps;
  Divider boxes;   // that cover the axis, of one phase
  Divider phases;  // residues of the result's positions: the input gradient's stride, else 1
  dlb_int unused;
} ConvWgmmaAxis;
ASSERT_SIZE(ConvWgmmaAxis, 72);

// Offsets and strides of results in elements; results within bounds.
typedef struct {
  dlb_long image_offset, lines_offset, out_offset, bias_offset;
  dlb_long image_strides[4];  // bytes, multiples of 16: of width, height, depth or group, images
  dlb_long lines_strides[4];  // the same of y in the weight gradient; else of taps and of output channels
  dlb_long partial_offset;    // of sums that another kernel adds, in floats
  dlb_long part_size;         // elements of one part of them
  dlb_long maps_offset;       // of the tensor maps, two for each work-group, in floats
  ConvWgmmaAxis axis[3];
  dlb_int images, image_box;  // and how many of them one copy brings
  dlb_int red, cols;          // channels per group: of the image; of the result (weight gradient: of y)
  Divider image_boxes;        // copies that cover the images
  Divider groups;
  Divider chunks;                      // lines of 128 bytes that hold `red` channels
  Divider channel_tiles, block_tiles;  // tiles of `cols`; weight gradient: tiles of columns
  dlb_int grouped;                     // the maps have groups in place of depth
  dlb_int splits, part;                // parts of the reduction, and the stages of each
  dlb_int input_grad, has_bias;
  // Results by image, axis, channel and group; weight gradient: tap, channel of y, channel of x, group. Those
  // of partial results where there are splits.
  dlb_int out_image, out_axis[3], out_channel, out_red, out_group;
  dlb_int runs;     // eight columns whose first and last are seven elements apart are contiguous and in order
  float low, high;  // what results are brought to
} ConvWgmma;
ASSERT_SIZE(ConvWgmma, 472);

static inline dlb_uint conv_wgmma_divide(dlb_uint n, Divider d) {
#ifdef __OPENCL_VERSION__
  return (mul_hi(n, d.magic) + n) >> d.shift;
#else
  return static_cast<dlb_uint>(((dlb_ulong{n} * d.magic >> 32) + n) >> d.shift);
#endif
}

// The last digit of a number whose digits count differently; leaves the others.
static inline dlb_int conv_wgmma_digit(dlb_uint* number, Divider d) {
  const dlb_uint all = *number;
  *number = conv_wgmma_divide(all, d);
  return (dlb_int)(all - *number * d.divisor);
}

// --- Tensor maps -----------------------------------------------------------------------------------------

// Elements of each dimension; of a box, those included that are passed over because of the steps.
typedef struct {
  dlb_int size[5], box[5], step[5];
} ConvWgmmaMap;

static inline void conv_wgmma_channels_by_axes(ConvWgmmaMap* m, const ConvWgmma* p, int channels, int line) {
  m->size[0] = channels, m->box[0] = line, m->step[0] = 1;
  m->size[4] = p->images, m->box[4] = p->image_box, m->step[4] = 1;
  if (p->grouped) m->size[3] = (dlb_int)p->groups.divisor, m->box[3] = m->step[3] = 1;
}

// The image's; a line has so many elements.
static inline ConvWgmmaMap conv_wgmma_image_map(const ConvWgmma* p, int line) {
  ConvWgmmaMap m;
  for (int i = 0; i < 3; i++) {
    m.size[1 + i] = p->axis[i].image, m.step[1 + i] = p->input_grad ? 1 : p->axis[i].stride;
    m.box[1 + i] = p->axis[i].box * m.step[1 + i];
  }
  conv_wgmma_channels_by_axes(&m, p, p->red, line);
  return m;
}

// Weight gradient: y's.
static inline ConvWgmmaMap conv_wgmma_y_map(const ConvWgmma* p) {
  ConvWgmmaMap m;
  for (int i = 0; i < 3; i++) m.size[1 + i] = p->axis[i].out, m.box[1 + i] = p->axis[i].box, m.step[1 + i] = 1;
  conv_wgmma_channels_by_axes(&m, p, p->cols, CONV_WGMMA_BLOCK);
  return m;
}

// The weights', of which a copy brings `lines`.
static inline ConvWgmmaMap conv_wgmma_weight_map(const ConvWgmma* p, int line, int lines) {
  const dlb_int taps = (dlb_int)(p->axis[0].taps.divisor * p->axis[1].taps.divisor * p->axis[2].taps.divisor);
  const ConvWgmmaMap m = {
      {p->red, taps, (dlb_int)p->groups.divisor * p->cols, 1, 1}, {line, 1, lines, 1, 1}, {1, 1, 1, 1, 1}};
  return m;
}

static inline dlb_int conv_wgmma_box_pixels(const ConvWgmma* p) {
  return p->axis[0].box * p->axis[1].box * p->axis[2].box * p->image_box;
}

// --- Tiles -----------------------------------------------------------------------------------------------

typedef struct {
  dlb_int channel;   // the first of the result in its group (weight gradient: of y)
  dlb_int block;     // weight gradient: the first 64 columns
  dlb_int at[3], n;  // box: its first position of each axis in the phase, and its first image
  dlb_int phase[3], group, part;
} ConvWgmmaTile;

static inline dlb_int conv_wgmma_tiles(const ConvWgmma* p, int form) {
  dlb_int tiles = p->channel_tiles.divisor * p->groups.divisor * p->splits;
  if (form == CONV_WGMMA_WEIGHTS) return tiles * p->block_tiles.divisor;
  for (int i = 0; i < 3; i++) tiles *= p->axis[i].boxes.divisor * p->axis[i].phases.divisor;
  return tiles * p->image_boxes.divisor;
}

// Tiles that run together read the same pixels; phases with most taps come first.
static inline ConvWgmmaTile conv_wgmma_tile(const ConvWgmma* p, int form, int columns, dlb_uint index) {
  ConvWgmmaTile t = {0, 0, {0, 0, 0}, 0, {0, 0, 0}, 0, 0};
  const dlb_int channels = form == CONV_WGMMA_PIXEL_ROWS ? columns : (dlb_int)WGMMA_ROWS;
  t.channel = conv_wgmma_digit(&index, p->channel_tiles) * channels;
  if (form == CONV_WGMMA_WEIGHTS) {
    t.block = conv_wgmma_digit(&index, p->block_tiles) * (columns / CONV_WGMMA_BLOCK);
    t.group = conv_wgmma_digit(&index, p->groups), t.part = (dlb_int)index;
    return t;
  }
  for (int i = 0; i < 3; i++) t.at[i] = conv_wgmma_digit(&index, p->axis[i].boxes) * p->axis[i].box;
  t.n = conv_wgmma_digit(&index, p->image_boxes) * p->image_box;
  t.group = conv_wgmma_digit(&index, p->groups);
  for (int i = 0; i < 3; i++) t.phase[i] = conv_wgmma_digit(&index, p->axis[i].phases);
  t.part = (dlb_int)index;
  return t;
}

// A phase of an axis: which taps reach it, and what they read. Results are at first + q * step, and the tap
// of number j, which is first_tap + j * tap_step, reads the image at q * image_step + image_first + j * jump.
typedef struct {
  dlb_int taps, first_tap, tap_step;
  dlb_int first, step;
  dlb_int image_first, image_step, jump;
} ConvWgmmaReach;

static inline ConvWgmmaReach conv_wgmma_reach(const ConvWgmma* p, int axis, int phase) {
  const ConvWgmmaAxis* a = p->axis + axis;
  const dlb_int taps = (dlb_int)a->taps.divisor;
  ConvWgmmaReach r = {taps, 0, 1, 0, 1, -a->pad, a->stride, a->dilation};
  if (!p->input_grad) return r;
  // x at i was read for y at (i + pad - tap * dilation) / stride; the phase is (i + pad) modulo the stride
  dlb_int tap = 0;
  while (tap < a->tap_step && (tap * a->dilation - phase) % a->stride != 0) tap++;
  const bool reached = tap < a->tap_step && tap < taps;
  r.taps = reached ? (taps - tap + a->tap_step - 1) / a->tap_step : 0;
  r.first_tap = tap, r.tap_step = a->tap_step;
  r.first = (phase - a->pad) % a->stride, r.step = a->stride;
  if (r.first < 0) r.first += a->stride;
  r.image_first = (r.first + a->pad - tap * a->dilation) / a->stride, r.image_step = 1, r.jump = -a->jump;
  return r;
}

// --- Stages ----------------------------------------------------------------------------------------------

// Where a reduction is: line of channels, then taps by axis; of the weight gradient boxes by axis, then by
// image.
typedef struct {
  dlb_int at[4], most[4];
} ConvWgmmaStages;

static inline dlb_int conv_wgmma_stage_count(const ConvWgmmaStages* s) {
  return s->most[0] * s->most[1] * s->most[2] * s->most[3];
}

// How many stages a tile's part of the reduction has: none where its phase has no taps.
static inline dlb_int conv_wgmma_part(const ConvWgmma* p, const ConvWgmmaTile* t, const ConvWgmmaStages* s) {
  const dlb_int left = conv_wgmma_stage_count(s) - t->part * p->part;
  return left < 0 ? 0 : left < p->part ? left : p->part;
}

static inline ConvWgmmaStages conv_wgmma_stages(const ConvWgmma* p, int form, const ConvWgmmaReach* r) {
  ConvWgmmaStages s = {{0, 0, 0, 0}, {(dlb_int)p->chunks.divisor, r[0].taps, r[1].taps, r[2].taps}};
  if (form == CONV_WGMMA_WEIGHTS) {
    for (int i = 0; i < 3; i++) s.most[i] = (dlb_int)p->axis[i].boxes.divisor;
    s.most[3] = (dlb_int)p->image_boxes.divisor;
  }
  return s;
}

// To the stage of that number, which there must be.
static inline void conv_wgmma_go_to(ConvWgmmaStages* s, int stage) {
  for (int i = 0; i < 4; i++) s->at[i] = stage % s->most[i], stage /= s->most[i];
}

static inline void conv_wgmma_next(ConvWgmmaStages* s) {
  for (int i = 0; i < 4; i++) {
    if (++s->at[i] < s->most[i]) return;
    s->at[i] = 0;
  }
}

// The coordinates of a copy: channel, width, height, depth or group, image.
typedef struct {
  dlb_int x[5];
} ConvWgmmaBox;

// The pixels that a stage needs.
static inline ConvWgmmaBox conv_wgmma_image_box(const ConvWgmma* p, const ConvWgmmaTile* t, const ConvWgmmaReach* r,
                                                const ConvWgmmaStages* s, int line) {
  ConvWgmmaBox b = {{s->at[0] * line, 0, 0, 0, t->n}};
  for (int i = 0; i < 3; i++) b.x[1 + i] = t->at[i] * r[i].image_step + r[i].image_first + s->at[1 + i] * r[i].jump;
  if (p->grouped) b.x[3] = t->group;
  return b;
}

// The weights that a stage needs: channel, tap, channel of the result.
static inline ConvWgmmaBox conv_wgmma_weight_box(const ConvWgmma* p, const ConvWgmmaTile* t, const ConvWgmmaReach* r,
                                                 const ConvWgmmaStages* s, int line) {
  dlb_int tap = 0;
  for (int i = 2; i >= 0; i--)
    tap = tap * (dlb_int)p->axis[i].taps.divisor + r[i].first_tap + s->at[1 + i] * r[i].tap_step;
  const ConvWgmmaBox b = {{s->at[0] * line, tap, t->group * p->cols + t->channel, 0, 0}};
  return b;
}

// Weight gradient: the pixels of y of a stage.
static inline ConvWgmmaBox conv_wgmma_y_box(const ConvWgmma* p, const ConvWgmmaTile* t, const ConvWgmmaStages* s,
                                            int channel) {
  ConvWgmmaBox b = {{channel, 0, 0, 0, s->at[3] * p->image_box}};
  for (int i = 0; i < 3; i++) b.x[1 + i] = s->at[i] * p->axis[i].box;
  if (p->grouped) b.x[3] = t->group;
  return b;
}

// A block of 64 columns of the weight gradient: their tap by axis, and their first channel of x. The channel
// lies beyond the last one where there are no such columns, so that zeros are copied.
typedef struct {
  dlb_int tap[3], channel;
} ConvWgmmaColumns;

static inline ConvWgmmaColumns conv_wgmma_columns(const ConvWgmma* p, dlb_uint block) {
  ConvWgmmaColumns c = {{0, 0, 0}, conv_wgmma_digit(&block, p->chunks) * CONV_WGMMA_BLOCK};
  for (int i = 0; i < 3; i++) c.tap[i] = conv_wgmma_digit(&block, p->axis[i].taps);
  if (block > 0) c.channel = (dlb_int)p->chunks.divisor * CONV_WGMMA_BLOCK;
  return c;
}

// Weight gradient: the pixels of x that meet those of y.
static inline ConvWgmmaBox conv_wgmma_x_box(const ConvWgmma* p, const ConvWgmmaTile* t, const ConvWgmmaStages* s,
                                            const ConvWgmmaColumns* c) {
  ConvWgmmaBox b = {{c->channel, 0, 0, 0, s->at[3] * p->image_box}};
  for (int i = 0; i < 3; i++) {
    const ConvWgmmaAxis* a = p->axis + i;
    b.x[1 + i] = s->at[i] * a->box * a->stride - a->pad + c->tap[i] * a->dilation;
  }
  if (p->grouped) b.x[3] = t->group;
  return b;
}

// --- Results ---------------------------------------------------------------------------------------------

// The place of a box's pixel in the box, a byte each: width, height, depth, image; all ones beyond the last.
static inline dlb_uint conv_wgmma_pixel(const ConvWgmma* p, int i) {
  const dlb_int w = p->axis[0].box, h = p->axis[1].box, d = p->axis[2].box;
  if (i >= w * h * d * p->image_box) return 0xffffffff;
  return (dlb_uint)(i % w | i / w % h << 8 | i / (w * h) % d << 16) | (dlb_uint)(i / (w * h * d)) << 24;
}

// Where the result of channel 0 at that pixel lies, -1 where there is none.
static inline dlb_int conv_wgmma_place(const ConvWgmma* p, const ConvWgmmaTile* t, const ConvWgmmaReach* r,
                                       dlb_uint pixel) {
  const dlb_int n = t->n + (dlb_int)(pixel >> 24);
  dlb_int place = n * p->out_image + t->group * p->out_group;
  bool exists = pixel != 0xffffffff && n < p->images;
  for (int i = 0; i < 3; i++) {
    const dlb_int at = r[i].first + (t->at[i] + (dlb_int)(pixel >> 8 * i & 255)) * r[i].step;
    exists = exists && at < p->axis[i].out;
    place += at * p->out_axis[i];
  }
  return exists ? place : -1;
}

// Weight gradient: the same of a column of the tile, for channel 0 of y.
static inline dlb_int conv_wgmma_weight_place(const ConvWgmma* p, const ConvWgmmaTile* t, int column) {
  const ConvWgmmaColumns c = conv_wgmma_columns(p, t->block + column / CONV_WGMMA_BLOCK);
  const dlb_int channel = c.channel + column % CONV_WGMMA_BLOCK;
  if (channel >= p->red) return -1;
  return t->group * p->out_group + channel * p->out_red + c.tap[0] * p->out_axis[0] + c.tap[1] * p->out_axis[1] +
         c.tap[2] * p->out_axis[2];
}

// Where the result of a tile's row and column lies, -1 where there is none; `place` is the row's where rows
// are pixels, else the column's.
static inline dlb_int conv_wgmma_result(const ConvWgmma* p, int form, int place, int channel, int row, int column) {
  channel += form == CONV_WGMMA_PIXEL_ROWS ? column : row;
  return place < 0 || channel >= p->cols ? -1 : place + channel * p->out_channel;
}

PARAMS_END
