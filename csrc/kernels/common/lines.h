// How kernels walk tensors of N, C, D, H, W by lines of neighbours in memory (common/lines.clh).
#pragma once
#include "kernels/common/divider.h"

PARAMS_BEGIN

// Neighbours that a work-item takes together: of CPUs at most, and of GPUs' wide kernels.
enum { MOST_LINE_BLOCK = 256, GPU_LINE_BLOCK = 4 };

typedef struct {
  dlb_long xs[5], ys[5];  // element strides of N, C, D, H, W: input and output
  dlb_int samples, channels;
  dlb_int line, block;      // neighbours of a line, and of a piece of one
  dlb_int channels_inner;   // lines are along the channels, else along the width
  Divider blocks, axes[3];  // of a line; what follows it, from the inside: W, H, D or H, D, C
  dlb_int unused;
} Lines;
ASSERT_SIZE(Lines, 152);

PARAMS_END
