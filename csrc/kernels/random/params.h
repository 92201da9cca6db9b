// What the host must know of the kernels of random/random.cl.
#pragma once
#include "kernels/common/params.h"

PARAMS_BEGIN

// Elements of one Philox block: of 32 random bits each, or of 64 (WIDE).
enum { RANDOM_LANES = 4, RANDOM_WIDE_LANES = 2 };

PARAMS_END
