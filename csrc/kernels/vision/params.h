// Arguments of the kernels that sample images.
#pragma once
#include "kernels/common/divider.h"

PARAMS_BEGIN

enum { GRID_BILINEAR, GRID_NEAREST, GRID_BICUBIC };
enum { GRID_ZEROS, GRID_BORDER, GRID_REFLECTION };

// vision/grid.cl. Sizes and strides of N, C, D, H, W; of the grid those of N, D, H, W and the coordinate.
typedef struct {
  dlb_long x, y, grid, grid_grad;  // offsets of the input (or its gradient), the output (or its) and the grid
  dlb_long xs[5], ys[5], gs[5];
  dlb_int in[3];   // D, H, W
  Divider out[3];  // W, H, D
  dlb_uint positions, per_item;
  dlb_int channels, channel_parts;
  dlb_int padding, align;
} GridParams;
ASSERT_SIZE(GridParams, 224);

// vision/roi.clh: boxes of rois [count, 5] (image, x1, y1, x2, y2) in the input or its gradient, pooled to
// bins.
typedef struct {
  dlb_long x, y, rois, places;               // offsets; places: of the maxima, or the map of channels
  dlb_long xs[4], ys[4];                     // strides of N, C, H, W; ys: of boxes, C, H, W
  float scale[2];                            // of the boxes, a double as a sum of floats
  Divider bins, blocks;                      // of a box, and of the output's channels
  dlb_int samples, channels, height, width;  // of the input
  dlb_int pooled_height, pooled_width, pooled_channels, count;
  dlb_int sampling_ratio, aligned;
  dlb_int by_position;  // position-sensitive: every bin has channels of its own
  dlb_int unused;
} RoiParams;
ASSERT_SIZE(RoiParams, 176);

// vision/deform.clh. x: the input or its gradient, offset, mask: what moves and weighs its places, columns
// [n, c * taps, out]: what the places held, or its gradient.
typedef struct {
  dlb_long x, offset, mask, columns, offset_grad, mask_grad;         // offsets
  dlb_long xs[4];                                                    // strides of N, C, H, W; all others are contiguous
  dlb_int in[2], out[2], filter[2], stride[2], pad[2], dilation[2];  // H, W
  Divider width, height, taps, groups;                               // width, height: of the output
  dlb_int channels, use_mask;
  dlb_uint positions, per_item;
} DeformParams;
ASSERT_SIZE(DeformParams, 192);

// vision/columns.cl: a contiguous column matrix [n, channels * taps, out] of an image.
typedef struct {
  dlb_long image, columns;                                           // offsets
  dlb_long xs[4];                                                    // strides of the image's N, C, H, W
  dlb_int in[2], out[2], filter[2], stride[2], pad[2], dilation[2];  // H, W
  Divider pieces, height, taps, channels;  // of a row of what is written; its rows; of the filter; channels
  dlb_uint rows, per_item;
} ColumnParams;
ASSERT_SIZE(ColumnParams, 152);

// unfold_backward: gradient [outer, windows, inner, size] of windows along a dimension of `length`.
typedef struct {
  dlb_long grad, out;  // offsets
  dlb_int windows, size, step;
  Divider inner, length;
  dlb_uint count, per_item, unused;
} WindowParams;
ASSERT_SIZE(WindowParams, 64);

PARAMS_END
