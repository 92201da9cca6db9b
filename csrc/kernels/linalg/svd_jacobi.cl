// Singular values and vectors by Jacobi's rotations from one side (Hestenes 1958), for GPUs. A_T: the element type.
#include "kernels/linalg/jacobi.clh"

// Columns with smaller squares, beside a largest element of 1 to 2, count as zero.
#define LEAST_SQUARE (EPSILON * EPSILON * (REAL)0x1p-20)

inline void rotate(local T* x, local T* y, int n, int lane, int lanes, Rotation r) {
  for (int i = lane; i < n; i += lanes) {
    const T f = x[i], g = y[i];
    x[i] = r.c * f - MUL(CONJ(r.s), g);
    y[i] = r.c * g + MUL(r.s, f);
  }
}

// The columns of `left` [m, size], and with them those of `right` [n, size] where there are `vectors`, in local memory.
// A pair of columns has `lanes` work-items. products, squares: an element and two for each work-item.
typedef struct {
  local T *left, *right, *products;
  local REAL* squares;
  local int* rotated;  // [2]; whether a sweep rotated, of sweeps with even and odd numbers
  int ldw, ldv, size, lanes;
} Columns;

// Rotates until the columns are orthogonal to each other. Returns after how many sweeps they were: MOST_SWEEPS where they
// may not be.
static inline int orthogonalise(Columns c, int m, int n, int vectors) {
  const int pair = ITEM / c.lanes, lane = ITEM % c.lanes, used = pair < c.size / 2;
  const REAL tolerance = EPSILON * sqrt((REAL)m);
  int sweep = 0, round = 0;
  for (;;) {
    const int2 columns = pair_of(used ? pair : 0, round, c.size);
    local T* const x = c.left + columns.x * c.ldw;
    local T* const y = c.left + columns.y * c.ldw;
    T product = OF(0);
    REAL alpha = 0, beta = 0;
    for (int i = lane; i < m; i += c.lanes) {
      const T f = x[i], g = y[i];
      product += MUL(CONJ(f), g), alpha += NORM2(f), beta += NORM2(g);
    }
    c.products[ITEM] = product, c.squares[2 * ITEM] = alpha, c.squares[2 * ITEM + 1] = beta;
    LOCAL_SYNC;
    if (ITEM == 0 && round == 0) c.rotated[(sweep + 1) & 1] = 0;
    product = OF(0), alpha = beta = 0;
    for (int i = ITEM - lane; i < ITEM - lane + c.lanes; ++i)
      product += c.products[i], alpha += c.squares[2 * i], beta += c.squares[2 * i + 1];
    const Rotation r = find_rotation(product, alpha, beta, 0, tolerance, LEAST_SQUARE);
    if (used && r.needed) {
      if (lane == 0) c.rotated[sweep & 1] = 1;
      rotate(x, y, m, lane, c.lanes, r);
      if (vectors) rotate(c.right + columns.x * c.ldv, c.right + columns.y * c.ldv, n, lane, c.lanes, r);
    }
    LOCAL_SYNC;
    if (++round < c.size - 1) continue;
    if (!c.rotated[sweep & 1] || ++sweep == MOST_SWEEPS) return sweep;
    round = 0;
  }
}

// w [m, n] with m >= n, replaced by U; s [n] descending; v [n, n], w = U s V^H. Without `vectors` w and v are not
// written. lacking: whether columns of U are zero, for want of rank. info: -4 for numbers that are not finite, n where
// rotations did not end. A work-group a matrix, with `lanes` work-items for each pair of columns; with n rounded up to
// an even number, `room` has n (ldw + ldv) elements, one for each work-item and two real ones for each.
kernel void svd_small(global T* w, const Matrix mw, global T* v, const Matrix mv, global REAL* s, const Matrix ms,
                      global int* info, const Matrix mi, global int* lacking, const Matrix ml, const int m, const int n,
                      const int vectors, const int ldw, const int ldv, const int lanes, local T* room) {
  local int rotated[2], places[JACOBI_MOST];
  const int size = n + (n & 1);
  local T* const left = room;
  local T* const right = left + ldw * size;
  local T* const products = right + ldv * size;
  local REAL* const squares = (local REAL*)(products + ITEMS);
  const long b = get_group_id(0);
  w += mw.offset + b * mw.batch, v += mv.offset + b * mv.batch, s += ms.offset + b * ms.batch;
  info += mi.offset + b * mi.batch, lacking += ml.offset + b * ml.batch;
  REAL most = 0;
  FOR_ELEMENTS(i, m, j, size, lanes) {
    const T x = j < n ? w[i * mw.row + j * mw.column] : OF(0);
    most = ABS1(x) <= MAXIMUM ? fmax(most, ABS1(x)) : INFINITY;
    left[i + j * ldw] = x;
  }
  if (vectors) FOR_ELEMENTS(i, n, j, size, lanes) right[i + j * ldv] = OF(i == j ? 1 : 0);
  most = group_total(most, squares, 1);
  if (ITEM == 0) *lacking = 0, *info = most <= MAXIMUM ? 0 : -4, rotated[0] = 0;
  if (!(most <= MAXIMUM)) {
    FOR_ITEMS(i, 0, n) s[i * ms.row] = NAN;
    return;
  }
  const REAL scale = dlb_scale(most);
  FOR_ELEMENTS(i, m, j, n, lanes) left[i + j * ldw] *= scale;
  GLOBAL_SYNC;
  const Columns columns = {left, right, products, squares, rotated, ldw, ldv, size, lanes};
  const int sweep = orthogonalise(columns, m, n, vectors);
  FOR_ITEMS(j, 0, n) {
    REAL sum = 0;
    for (int i = 0; i < m; ++i) sum += NORM2(left[i + j * ldw]);
    squares[j] = sum;
  }
  LOCAL_SYNC;
  FOR_ITEMS(j, 0, n) {
    const REAL square = squares[j];
    int place = 0;
    for (int i = 0; i < n; ++i) place += squares[i] > square || (squares[i] == square && i < j);
    places[j] = place;
    s[place * ms.row] = sqrt(square) / scale;
    if (square <= LEAST_SQUARE) *lacking = 1;
  }
  if (ITEM == 0 && sweep == MOST_SWEEPS) *info = n;
  LOCAL_SYNC;
  if (!vectors) return;
  FOR_ELEMENTS(i, m, j, n, lanes) {
    const REAL square = squares[j], inverse = square > LEAST_SQUARE ? 1 / sqrt(square) : (REAL)0;
    w[i * mw.row + places[j] * mw.column] = left[i + j * ldw] * inverse;
  }
  FOR_ELEMENTS(i, n, j, n, lanes) v[i * mv.row + places[j] * mv.column] = right[i + j * ldv];
}

// A round of blocks from one side: rotations that make the columns of each pair of blocks of w [m, blocks * HALF_EDGE]
// orthogonal to each other, rows contiguous, are found from the columns' products and become factors. m is a multiple of
// JACOBI_EDGE. For `factors`, `active`, `moved` and `sweeps` see eigh_pairs.
kernel void svd_pairs(global const T* w, const Matrix mw, global T* factors, const Matrix mf, global int* active,
                      const Matrix mc, global int* moved, const Matrix mo, const int m, const int blocks,
                      const int round, const int sweeps) {
  local T room[2 * JACOBI_EDGE * EDGE_LD];
  local Rotation rotations[HALF_EDGE];
  local int rotated[2];
  const Square q = {room, room + JACOBI_EDGE * EDGE_LD, EDGE_LD, JACOBI_EDGE, HALF_EDGE, rotations, rotated};
  const int pairs = blocks / 2, job = get_group_id(0), b = job / pairs;
  const int2 pair = pair_of(job % pairs, round, blocks);
  w += mw.offset + b * mw.batch, factors += mf.offset + job * mf.batch;
  local T* const tile = q.v;  // until the products are found
  const int i = ITEM % JACOBI_EDGE, first = ITEM / JACOBI_EDGE;
  T sums[EDGE_SHARE];
  for (int k = 0; k < EDGE_SHARE; ++k) sums[k] = OF(0);
  for (int top = 0; top < m; top += JACOBI_EDGE) {
    LOCAL_SYNC;
    for (int k = 0; k < EDGE_SHARE; ++k) {
      const int j = first + k * EDGE_TEAMS;
      tile[i + j * (JACOBI_EDGE + 1)] = w[top + i + column_of(pair, j) * mw.column];
    }
    LOCAL_SYNC;
    for (int r = 0; r < JACOBI_EDGE; ++r) {
      const T x = CONJ(tile[r + i * (JACOBI_EDGE + 1)]);
      for (int k = 0; k < EDGE_SHARE; ++k) sums[k] += MUL(x, tile[r + (first + k * EDGE_TEAMS) * (JACOBI_EDGE + 1)]);
    }
  }
  LOCAL_SYNC;
  for (int k = 0; k < EDGE_SHARE; ++k) {
    const int j = first + k * EDGE_TEAMS;
    q.a[i + j * EDGE_LD] = sums[k];
    q.v[i + j * EDGE_LD] = OF(i == j ? 1 : 0);
  }
  const int done = diagonalise(q, 1, 0, EPSILON * sqrt((REAL)m), LEAST_SQUARE, sweeps);
  if (ITEM == 0) {
    active[mc.offset + job * mc.batch] = done;
    if (done) moved[mo.offset] = 1;
  }
  if (done) FOR_ELEMENTS(r, JACOBI_EDGE, j, JACOBI_EDGE, JACOBI_EDGE)
  factors[r + j * JACOBI_EDGE] = q.v[r + j * EDGE_LD];
}
