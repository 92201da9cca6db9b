// Arguments of the kernels of recurrent networks.
#pragma once
#include "kernels/common/params.h"

PARAMS_BEGIN

enum { RNN_BUFFERS = 8 };  // of one kernel of cells, at most

typedef struct {
  dlb_long offset[RNN_BUFFERS];  // in the order of the buffers; -1: not there
  dlb_int size, unused;          // hidden size
} RnnParams;
ASSERT_SIZE(RnnParams, 72);

// Kernels of whole sequences (cpu_sequence.cl). Weights are packed as panels of so many columns.
enum { RNN_PANEL = 64, RNN_SEQUENCE_BUFFERS = 13 };

// Rows are those of the layer's gates and results: that of a step t and a sample n is starts[t] + n where samples have
// lengths of their own, of which row_starts holds steps + 1, else t * step_rows + n * sample_rows.
typedef struct {
  dlb_long offset[RNN_SEQUENCE_BUFFERS];  // in the order of the buffers; -1: not there
  dlb_long step_rows, sample_rows;
  dlb_int steps, samples, size, per_item;  // samples of a work-item
  dlb_int reversed;                        // the last step comes first
  dlb_int state_pitch, gates_pitch;        // in scratch, multiples of RNN_PANEL
  dlb_int unused;
} RnnSequence;
ASSERT_SIZE(RnnSequence, 152);

PARAMS_END
