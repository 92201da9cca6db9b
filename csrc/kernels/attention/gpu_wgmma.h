// Sizes of attention/gpu_wgmma.clh.
#pragma once
#include "kernels/common/params.h"

PARAMS_BEGIN

enum {
  ATTENTION_WGMMA_KEPT = 128,             // rows that a work-group keeps: 64 for each of two warpgroups
  ATTENTION_WGMMA_ITEMS = 384,            // of a work-group: those two warpgroups, and the one that copies
  ATTENTION_WGMMA_MAPS = 4,               // tensor maps of a work-group, at most
  ATTENTION_WGMMA_UNIT = 8,               // elements, to whose multiple the copy engine wants rows and strides aligned
  ATTENTION_WGMMA_STEP_BYTES = 128 << 10  // of local memory for the rows that are gone through, at most
};

// Arguments that the kernels take beside AttentionParams.
typedef struct {
  dlb_long maps;  // where the tensor maps are in the workspace, in bytes
  dlb_int batch;
  dlb_int together;  // heads whose blocks run together, so that the rows which they share stay in the cache
} AttentionWgmma;
ASSERT_SIZE(AttentionWgmma, 16);

PARAMS_END
