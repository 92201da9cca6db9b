// How work-items divide the adding of values into places that data say (common/owners.clh).
#pragma once
#include "kernels/common/params.h"

PARAMS_BEGIN

// The target has `samples` of `channels` of `rows`, of each of which work-items own parts. The values come
// from `positions`, `per_sample` for each sample in turn, or 0 where a position names its sample itself.
typedef struct {
  dlb_uint samples, channels, rows;
  dlb_uint sample_parts, channel_parts, row_parts;
  dlb_uint positions, per_sample;
} Owners;
ASSERT_SIZE(Owners, 32);

PARAMS_END
