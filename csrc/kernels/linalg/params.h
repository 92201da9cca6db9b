// Constants and arguments that host code and kernels of dense linear algebra share.
#pragma once
#include "kernels/common/params.h"

PARAMS_BEGIN

enum {
  LINALG_TILE_CPU = 64,  // rows and columns of the largest matrix that one launch factors in local memory
  LINALG_TILE_GPU = 32,
  LINALG_LANES_CPU = 16,  // right-hand sides that a work-group solves side by side
  LINALG_LANES_GPU = 32,
  LINALG_PANEL = 32,        // columns of a block of larger matrices on CPUs
  LINALG_STRIP = 96,        // right-hand sides of which a work-item keeps a block at hand
  LINALG_GROUP = 256,       // work-items of a GPU's work-group, at most
  LINALG_BLOCK = 64,        // rows and columns of the blocks that GPUs factor in float32 where a matrix has several
  LINALG_BLOCK_WIDE = 32,   // the same of elements of eight bytes and more
  LU_COLUMNS = 16,          // columns that a GPU's work-group factors with all their rows in registers
  LU_MOST_ROWS = 8,         // rows that a work-item holds then, at most
  LINALG_SMALL = 16,        // rows and columns of matrices of which a GPU's work-group takes several
  LINALG_SMALL_GROUP = 64,  // its work-items
  JACOBI_MOST = 64,         // columns of a matrix that one work-group diagonalises in local memory, at most
  JACOBI_EDGE = 32          // columns of the two blocks that larger matrices pair, together
};

// The steps of a kernel that solves with a tile, in this order.
enum {
  SOLVE_SWAP_FIRST = 1,  // the pivots' row exchanges, forward
  SOLVE_LOWER = 2,
  SOLVE_LOWER_UNIT = 4,
  SOLVE_MIRROR = 8,  // the upper triangle is the conjugate transpose of the lower one, the diagonal too
  SOLVE_UPPER = 16,
  SOLVE_UPPER_UNIT = 32,
  SOLVE_SWAP_LAST = 64  // the exchanges, backward
};

// Matrices of one size: element strides, the offset from the start of the buffer first.
typedef struct {
  dlb_long offset, batch, row, column;
} Matrix;
ASSERT_SIZE(Matrix, 32);

// Work-groups on GPUs take one job each, work-items on CPUs a run of them.
typedef struct {
  dlb_uint count, per_item;
} Jobs;
ASSERT_SIZE(Jobs, 8);

PARAMS_END
