// Constants of random/random.cl that the host must know.
#pragma once
#include "kernels/common/params.h"

PARAMS_BEGIN

// Elements of one Philox block: of 32 random bits each, or of 64 (WIDE).
enum { RANDOM_LANES = 4, RANDOM_WIDE_LANES = 2 };

PARAMS_END
