// Work distribution of row kernels: which work-items share a row (common/team.clh).
#pragma once
#include "kernels/common/params.h"

PARAMS_BEGIN

enum { TEAM_GROUP = 256 };  // work-items of a GPU's work-group

typedef struct {
  dlb_uint rows;
  dlb_uint per_item;  // CPU: consecutive rows of a work-item
  dlb_uint lanes;     // GPU: work-items that share a row, a power of two
  dlb_uint unused;
} Team;
ASSERT_SIZE(Team, 16);

PARAMS_END
