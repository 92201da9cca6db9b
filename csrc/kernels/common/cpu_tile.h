// The register tile of common/cpu_tile.clh.
#pragma once
#include "kernels/common/params.h"

PARAMS_BEGIN

// Six rows of 64 columns are 24 accumulators of 16 floats, which with four vectors of columns and a broadcast
// fit 32 registers of 512 bits; six rows of 16 are 12 of 8 floats, for 16 registers of 256 (NARROW_TILE).
enum { TILE_ROWS = 6, TILE_COLUMNS = 64, NARROW_TILE_COLUMNS = 16 };

PARAMS_END
