// Arguments of epilogues: the rows that a product or a convolution applies to its results while they are in
// registers.
#pragma once
#include "kernels/common/params.h"

PARAMS_BEGIN

enum { EPILOGUE_EXTRAS = 4 };  // operands besides the result, at most

// Where the extra operands and the second result begin, in elements.
typedef struct {
  dlb_long extra[EPILOGUE_EXTRAS];
  dlb_long second;
} EpilogueOffsets;
ASSERT_SIZE(EpilogueOffsets, 40);

PARAMS_END
