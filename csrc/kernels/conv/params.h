// Arguments of the convolution kernels, and what their solvers must know of them. Strides are in elements;
// axes go depth, height, width.
#pragma once
#include "kernels/common/params.h"

PARAMS_BEGIN

enum {
  DIRECT_ROWS = 7,          // conv/cpu_direct.cl: rows of the image that are accumulated at once
  DEPTHWISE_ITEMS = 128,    // conv/gpu_depthwise.cl: work-items of the weight gradient's work-groups,
  DEPTHWISE_CHANNELS = 32,  // and their channels, where those are neighbours;
  DEPTHWISE_RUN = 4         // output rows of one work-item, which reads rows of x between them once
};

// A convolution's sizes and strides.
typedef struct {
  dlb_long xs[5], ws[5], ys[5];  // n, channel, then the axes
  dlb_int n, c, k, groups;
  dlb_int in[3], out[3], filter[3], stride[3], padding[3], dilation[3];
  dlb_int has_bias;
  float low, high;  // what results of the forward pass are brought to
  dlb_int unused;
} ConvShape;
ASSERT_SIZE(ConvShape, 224);

// conv/gpu_plain.cl, which says what rows, columns and lines are. Offsets are in elements.
enum { CONV_PLAIN_FORWARD, CONV_PLAIN_DATA, CONV_PLAIN_WEIGHTS };
typedef struct {
  dlb_long line_offset, image_offset, out_offset, bias_offset, partial_offset;
  dlb_int rows, columns, depth;  // of a group's product
  dlb_int part;                  // of the depth, which a work-group sums
} ConvPlain;
ASSERT_SIZE(ConvPlain, 56);

// A convolution, or one stride phase of its input gradient, as a gather: every output position q of axis i
// sums over taps t the gathered image at q * step + first + t * dilation.
//   out[n, col, q] = bias + sum over red, taps of weight * in[n, red, q * step + first + tap * dilation]
// per group, within bounds.
typedef struct {
  dlb_long is[5];                        // of the gathered image: n, channel, then the axes
  dlb_long os[5];                        // of the output, per position
  dlb_long wgroup, wcol, wred, wtap[3];  // of the weights; taps may run backwards
  dlb_int n, groups, red, cols;          // images, groups, channels per group to sum over, output channels per group
  dlb_int in[3], q[3];                   // gathered image, output positions
  dlb_int step[3], first[3], dilation[3], taps[3];
  dlb_int block[4];      // positions of one work-item: n, then the axes
  dlb_int channels;      // summed channels that are in scratch at a time
  dlb_int pitch;         // floats between pixels in scratch
  dlb_int block_cols;    // output channels of one work-item, a multiple of 64 or all
  dlb_int split[3];      // 1: scratch holds one tap of this axis at a time
  dlb_int block_groups;  // groups of one work-item (direct kernels)
  dlb_int has_bias;
  dlb_int packs;    // 1: work-items pack the weights that they need
  dlb_int keeps;    // 1: weights are packed once, not in every run
  float low, high;  // what results are brought to
} Gather;
ASSERT_SIZE(Gather, 280);

// conv/gpu_winograd.cl: the tiles of one run.
typedef struct {
  dlb_int tiles;                                // of this run: a chunk of all
  dlb_int first;                                // tile of the chunk in the image: image, depth, row, column
  dlb_int all;                                  // tiles there are; beyond them are zeros
  dlb_int rows, columns;                        // tiles of an image
  dlb_int in_channels_fast, out_channels_fast;  // matrices of tiles lie [tile][channel], not [channel][tile]
  dlb_int unused;
} WinogradTiles;
ASSERT_SIZE(WinogradTiles, 32);

// conv/gpu_depthwise.cl and conv/depthwise_windows.cl. x: input, y: output of the forward direction; each
// tensor spans less than 2^31 elements.
typedef struct {
  dlb_long x_offset, w_offset, y_offset, bias_offset, partial_offset;
  dlb_int batch;
  dlb_int channels, multiplier;  // of y; channels of y for each channel of x
  dlb_int splits;
  dlb_int x_size[4], y_size[4], taps[4], stride[4], pad[4], dilation[4];
  dlb_int x_n, x_c, x_s[3];
  dlb_int y_n, y_c, y_s[3];
  dlb_int w_c, w_s[3];
  dlb_int has_bias;
  float low, high;        // what results of the forward pass are brought to
  dlb_int channels_fast;  // neighbouring work-items take neighbouring channels (channels-last), else columns
  dlb_int segment;        // rows of y that a work-item of depthwise_windows.cl walks down
  dlb_int unused;
} ConvDepthwise;
ASSERT_SIZE(ConvDepthwise, 232);

// conv/gpu_implicit.cl, which says what x, y, w, a and out are; each tensor spans less than 2^31 elements.
typedef struct {
  dlb_long x_offset, a_offset, out_offset, bias_offset;
  dlb_long partial_offset, part_stride;   // of `partial`, and elements of one of its parts
  dlb_int batch, rows, channels, splits;  // rows: of w and m per group; channels: c per group
  dlb_int x_size[4], y_size[4], taps[4], stride[4], pad[4], dilation[4];
  dlb_int x_n, x_c, x_s[3], x_group;
  dlb_int y_n, y_s[3];
  dlb_int w_c, w_s[3];
  dlb_int a_row, a_group, out_row, out_group;
  dlb_int bit[3];      // place of each axis's taps in the validity masks, -1 where no tap can leave x
  dlb_int phased;      // input gradient: 1, or 2 when only phases with taps are computed
  dlb_int c_fastest;   // order of (c, tap): 1 when the channels of x or w are contiguous
  dlb_int out_vector;  // 1: four columns of out are contiguous and aligned; 2: four rows; 0: neither
  dlb_int has_bias;
  dlb_int a_k_fast;   // work-items read neighbours of a along k, else along the rows
  dlb_int a_vector;   // those neighbours are contiguous, aligned to four, and a multiple of four many
  dlb_int x_aligned;  // 0: x is not aligned as X_VECTOR says
  float low, high;    // what results are brought to; not those of the weight gradient
} ConvImplicit;
ASSERT_SIZE(ConvImplicit, 280);

// conv/fft.cl: how images, filters and their spectra lie in scratch memory.
typedef struct {
  dlb_long plane;           // floats of the real parts of one spectrum; those of the imaginary parts follow
  dlb_int rows, columns;    // of the transforms; a spectrum has columns / 2 + 1
  dlb_int image, images;    // the chunk: the first image and their number
  dlb_int per_item, items;  // what a CPU's work-item does of all
} FftChunk;
ASSERT_SIZE(FftChunk, 32);

enum { FFT_IMAGES = 2, FFT_COLUMNS = 4 };  // images and output channels whose products a work-item sums together

PARAMS_END
