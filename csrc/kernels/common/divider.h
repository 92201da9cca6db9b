// Division by a run-time constant d, for n < 2^31: q = (mul_hi(n, magic) + n) >> shift (Granlund and
// Montgomery, "Division by invariant integers using multiplication", PLDI 1994). codegen::make_divider()
// makes one.
#pragma once
#include "kernels/common/params.h"

PARAMS_BEGIN

typedef struct {
  dlb_uint divisor, magic, shift;
} Divider;
ASSERT_SIZE(Divider, 12);

PARAMS_END
