// Arguments of the normalisation kernels, and the constants that host code shares with them. Host code makes
// them with `{}`, so that what has no default is 0.
#pragma once
#include "kernels/common/divider.h"
#include "kernels/common/params.h"

PARAMS_BEGIN

enum {
  NORM_MOST_COLUMNS = 256,  // columns that a CPU's work-item takes together, at most
  NORM_NEIGHBOURS = 4,      // elements that a work-item of pass_rows_wide takes together
  NORM_HELD = 16,           // elements of a row in the registers of a work-item of layer_norm_rows_held
};

// A double as the sum of two floats, because not every device has doubles. REAL_OF() reads it.
typedef struct NormReal {
  float high, low;
} NormReal;
ASSERT_SIZE(NormReal, 8);

// norm/pass_*.cl. Row r starts at r / inner_rows * outer_stride + r % inner_rows * inner_stride.
typedef struct NormPass {
  dlb_long x, dy, mean, rstd, results;  // offsets
  dlb_long outer_stride, inner_stride, segment_stride;
  dlb_uint inner_rows HOST_DEFAULT(1);
  dlb_uint rows HOST_DEFAULT(1);        // columns: how many are interleaved
  dlb_uint length HOST_DEFAULT(1);      // of a run; columns: unused
  dlb_uint count HOST_DEFAULT(1);       // elements of a row
  dlb_uint per_split HOST_DEFAULT(1);   // elements of a row in one split
  dlb_uint mean_group HOST_DEFAULT(1);  // rows that share mean and rstd; 0: those belong to the position
  dlb_uint block HOST_DEFAULT(1);       // columns taken together (GPU: a power of two)
  Divider length_divider;
} NormPass;
ASSERT_SIZE(NormPass, 104);

// The kernels that come behind a pass. Offsets of -1: the tensor is not there.
typedef struct NormFinish {
  dlb_long mean HOST_DEFAULT(-1), rstd HOST_DEFAULT(-1), weight HOST_DEFAULT(-1), bias HOST_DEFAULT(-1);
  dlb_long running_mean HOST_DEFAULT(-1), running_var HOST_DEFAULT(-1);
  dlb_long grad_weight HOST_DEFAULT(-1), grad_bias HOST_DEFAULT(-1);
  dlb_long partial HOST_DEFAULT(-1);  // the pass's results, [splits][2][rows]
  dlb_long results HOST_DEFAULT(-1);  // merged ones, the coefficients that norm/apply_*.cl take, or batch norm's y
  dlb_long x, dy;                     // batch_norm_apply.cl
  NormReal eps, momentum;
  dlb_uint rows, splits HOST_DEFAULT(1), count HOST_DEFAULT(1), per_split HOST_DEFAULT(1);
  dlb_uint groups HOST_DEFAULT(1), channels, samples HOST_DEFAULT(1);  // group norm
  dlb_uint length HOST_DEFAULT(1);                                     // of a channel
  dlb_int training;                                                    // batch norm
  dlb_int sums;  // pass_merge: the pass gave two sums, not means and variances
} NormFinish;
ASSERT_SIZE(NormFinish, 152);

// norm/apply_*.cl. x: [outer][rows][inner].
typedef struct NormApply {
  dlb_long x, dy, y, coefficients;  // offsets
  dlb_uint outer HOST_DEFAULT(1), rows HOST_DEFAULT(1), inner HOST_DEFAULT(1);
  dlb_uint unused;
} NormApply;
ASSERT_SIZE(NormApply, 48);

// norm/batch_norm_apply.cl. A work-group takes `channels` neighbours, of which there are so many blocks, and
// of those per_group items: pieces of one sample's run of these channels, or, where channels are interleaved,
// positions.
typedef struct NormTiles {
  dlb_uint channels;  // a power of two where they are interleaved
  dlb_uint blocks, items, per_group;
  dlb_uint lanes;        // work-items that merge the splits of a channel, a power of two
  dlb_uint length;       // of a channel in a sample; 1: channels are interleaved
  dlb_uint tile, tiles;  // elements of a piece, and pieces of a run
  Divider length_divider, tiles_divider;
} NormTiles;
ASSERT_SIZE(NormTiles, 56);

// norm/layer_norm_*.cl. Offsets of weight and bias are -1 where they are not there.
typedef struct LayerNorm {
  dlb_long x, y, dy, mean;
  dlb_long rstd, weight HOST_DEFAULT(-1), bias HOST_DEFAULT(-1);
  NormReal eps;
  dlb_int length, padding;
} LayerNorm;
ASSERT_SIZE(LayerNorm, 72);

PARAMS_END
