// Arguments of the losses' kernels.
#pragma once
#include "kernels/common/params.h"

PARAMS_BEGIN

enum { NLL_NONE, NLL_MEAN, NLL_SUM };  // reductions, as at::Reduction numbers them

typedef struct {
  dlb_long x, target, weight, out, total, partial;       // offsets; weight -1: not there
  dlb_long sample_stride, class_stride, spatial_stride;  // elements of the scores, or of their gradient
  dlb_long ignore_index;
  dlb_int spatial, classes, count;  // count: samples * spatial, targets in all
  dlb_int per_part;                 // targets that a team adds up
  dlb_int reduction, site;
} NllParams;
ASSERT_SIZE(NllParams, 104);

typedef struct {
  dlb_long x, target, lengths, alpha, beta, loss, grad, out;  // offsets
  dlb_long xs[3];                                             // of the probabilities: time, sample, class
  dlb_long target_stride, grad_stride, blank;
  dlb_int times, samples, classes, states;  // states: 2 * the longest target + 1
  dlb_int zero_infinity, unused;
} CtcParams;
ASSERT_SIZE(CtcParams, 136);

PARAMS_END
