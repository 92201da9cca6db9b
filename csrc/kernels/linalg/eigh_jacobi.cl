// Eigenvalues and vectors of Hermitian matrices by Jacobi's rotations from both sides, for GPUs. A_T: the element type.
#include "kernels/linalg/jacobi.clh"

// a: Hermitian matrices in one triangle; replaced by the vectors in columns where `vectors`. d: values, ascending. A
// work-group a matrix, which takes 2 ld (n rounded up to an even number) elements of `room`.
kernel void eigh_small(global T* a, const Matrix ma, global REAL* d, const Matrix md, global int* info, const Matrix mi,
                       const int n, const int upper, const int vectors, const int ld, const int lanes, local T* room) {
  local Rotation rotations[JACOBI_MOST / 2];
  local REAL partial[LINALG_GROUP];
  local int rotated[2], places[JACOBI_MOST];
  const int size = n + (n & 1);
  const Square w = {room, room + ld * size, ld, size, lanes, rotations, rotated};
  a += ma.offset + get_group_id(0) * ma.batch;
  d += md.offset + get_group_id(0) * md.batch;
  info += mi.offset + get_group_id(0) * mi.batch;
  REAL most = 0;
  FOR_ELEMENTS(i, size, j, size, lanes) {
    const int stored = upper ? i <= j : i >= j, row = stored ? i : j, column = stored ? j : i;
    T v = max(i, j) < n ? a[row * ma.row + column * ma.column] : OF(0);
    if (!stored) v = CONJ(v);
    if (i == j) v = OF(RE(v));
    most = ABS1(v) <= MAXIMUM ? fmax(most, ABS1(v)) : INFINITY;
    w.a[i + j * ld] = v;
    w.v[i + j * ld] = OF(i == j ? 1 : 0);
  }
  most = group_total(most, partial, 1);
  if (!(most <= MAXIMUM)) {
    FOR_ITEMS(i, 0, n) d[i * md.row] = NAN;
    if (ITEM == 0) *info = n;
    return;
  }
  const REAL scale = dlb_scale(most);
  REAL squares = 0;
  FOR_ELEMENTS(i, size, j, size, lanes) {
    const T v = w.a[i + j * ld] * scale;
    w.a[i + j * ld] = v;
    squares += NORM2(v);
  }
  squares = group_total(squares, partial, 0);
  const int sweeps = diagonalise(w, vectors, EPSILON * sqrt(squares) / n, 0, -MAXIMUM, MOST_SWEEPS);
  FOR_ITEMS(j, 0, n) {
    const REAL value = RE(w.a[j + j * ld]);
    int place = 0;
    for (int i = 0; i < n; ++i) {
      const REAL other = RE(w.a[i + i * ld]);
      place += other < value || (other == value && i < j);
    }
    places[j] = place;
    d[place * md.row] = value / scale;
  }
  if (ITEM == 0) *info = sweeps == MOST_SWEEPS ? n : 0;
  GLOBAL_SYNC;
  if (vectors) FOR_ELEMENTS(i, n, j, n, lanes) a[i * ma.row + places[j] * ma.column] = w.v[i + j * ld];
}

// Two sides of a round of blocks: each of the a [blocks * HALF_EDGE] squared, rows contiguous, gets the diagonal blocks of
// its pairs diagonalised, as far as `sweeps` do; their vectors become factors [batch * pairs, JACOBI_EDGE,
// JACOBI_EDGE]. `active` [batch * pairs, 1, 1]: whether a factor is not the identity; *moved becomes 1 where one is.
// least [batch, 1, 1]: what counts as zero.
kernel void eigh_pairs(global T* a, const Matrix ma, global T* factors, const Matrix mf, global const REAL* least,
                       const Matrix ml, global int* active, const Matrix mc, global int* moved, const Matrix mo,
                       const int blocks, const int round, const int sweeps) {
  local T room[2 * JACOBI_EDGE * EDGE_LD];
  local Rotation rotations[HALF_EDGE];
  local int rotated[2];
  const Square w = {room, room + JACOBI_EDGE * EDGE_LD, EDGE_LD, JACOBI_EDGE, HALF_EDGE, rotations, rotated};
  const int pairs = blocks / 2, job = get_group_id(0), b = job / pairs;
  const int2 pair = pair_of(job % pairs, round, blocks);
  a += ma.offset + b * ma.batch, factors += mf.offset + job * mf.batch;
  FOR_ELEMENTS(i, JACOBI_EDGE, j, JACOBI_EDGE, JACOBI_EDGE) {
    w.a[i + j * EDGE_LD] = a[column_of(pair, i) + column_of(pair, j) * ma.column];
    w.v[i + j * EDGE_LD] = OF(i == j ? 1 : 0);
  }
  const int done = diagonalise(w, 1, least[ml.offset + b * ml.batch], 0, -MAXIMUM, sweeps);
  if (ITEM == 0) {
    active[mc.offset + job * mc.batch] = done;
    if (done) moved[mo.offset] = 1;
  }
  GLOBAL_SYNC;
  if (done) FOR_ELEMENTS(i, JACOBI_EDGE, j, JACOBI_EDGE, JACOBI_EDGE) {
      a[column_of(pair, i) + column_of(pair, j) * ma.column] = w.a[i + j * EDGE_LD];
      factors[i + j * JACOBI_EDGE] = w.v[i + j * EDGE_LD];
    }
}
