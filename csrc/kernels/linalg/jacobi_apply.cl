// Rotations of pairs of blocks, applied to matrices too large for local memory. A_T: the element type.
#include "kernels/linalg/jacobi.clh"

// The columns that are the pairs of a round become themselves times their factors (eigh_pairs, svd_pairs), and where
// `both` the rows of a square x become the factors' conjugate transposes times themselves; what lies where a pair meets
// itself has been done already. x [batch, ., blocks * HALF_EDGE], rows contiguous and a multiple of JACOBI_EDGE. Group ids:
// JACOBI_EDGE rows, or a pair of blocks of rows; a pair of blocks of columns; a matrix.
kernel void apply_pairs(global T* x, const Matrix mx, global const T* factors, const Matrix mf,
                        global const int* active, const Matrix mc, const int blocks, const int round, const int both) {
  local T tile[JACOBI_EDGE * JACOBI_EDGE], factor[JACOBI_EDGE * (JACOBI_EDGE + 1)];
  const int above = get_group_id(0), pair = get_group_id(1), jobs = get_group_id(2) * (blocks / 2);
  active += mc.offset + jobs * mc.batch, factors += mf.offset + jobs * mf.batch;
  const int right = active[pair * mc.batch], left = both && active[above * mc.batch];
  if ((!right && !left) || (both && above == pair)) return;
  const int2 columns = pair_of(pair, round, blocks), rows = pair_of(above, round, blocks);
  const int i = ITEM % JACOBI_EDGE, first = ITEM / JACOBI_EDGE;
  x += mx.offset + get_group_id(2) * mx.batch + (both ? column_of(rows, i) : above * JACOBI_EDGE + i);
  T sums[EDGE_SHARE];
  for (int k = 0; k < EDGE_SHARE; ++k) {
    const int j = first + k * EDGE_TEAMS;
    sums[k] = x[column_of(columns, j) * mx.column];
    tile[i + j * JACOBI_EDGE] = sums[k];
    if (right) factor[i + j * (JACOBI_EDGE + 1)] = factors[pair * mf.batch + i + j * JACOBI_EDGE];
  }
  LOCAL_SYNC;
  if (right) {
    for (int k = 0; k < EDGE_SHARE; ++k) sums[k] = OF(0);
    for (int r = 0; r < JACOBI_EDGE; ++r) {
      const T f = tile[i + r * JACOBI_EDGE];
      for (int k = 0; k < EDGE_SHARE; ++k) sums[k] += MUL(f, factor[r + (first + k * EDGE_TEAMS) * (JACOBI_EDGE + 1)]);
    }
  }
  LOCAL_SYNC;
  if (left)
    for (int k = 0; k < EDGE_SHARE; ++k) {
      const int j = first + k * EDGE_TEAMS;
      tile[i + j * JACOBI_EDGE] = sums[k];
      factor[i + j * (JACOBI_EDGE + 1)] = factors[above * mf.batch + i + j * JACOBI_EDGE];
    }
  LOCAL_SYNC;
  if (left) {
    for (int k = 0; k < EDGE_SHARE; ++k) sums[k] = OF(0);
    for (int r = 0; r < JACOBI_EDGE; ++r) {
      const T f = CONJ(factor[r + i * (JACOBI_EDGE + 1)]);
      for (int k = 0; k < EDGE_SHARE; ++k) sums[k] += MUL(f, tile[r + (first + k * EDGE_TEAMS) * JACOBI_EDGE]);
    }
  }
  for (int k = 0; k < EDGE_SHARE; ++k) x[column_of(columns, first + k * EDGE_TEAMS) * mx.column] = sums[k];
}
