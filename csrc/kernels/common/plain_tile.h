// Sizes of common/plain_tile.clh.
#pragma once
#include "kernels/common/params.h"

PARAMS_BEGIN

enum { PLAIN = 64, PLAIN_DEPTH = 16, PLAIN_ITEMS = 256 };

PARAMS_END
