// LU factors and solutions of many small matrices on GPUs: SIZE work-items, a power of two, have a matrix of at most as
// many rows and columns, and a work-group several matrices. A_T: the element type.
#define WIDTH SIZE
#include "kernels/linalg/lu_rows.clh"

#define TEAMS (LINALG_SMALL_GROUP / SIZE)

// a [m, n], replaced by its factors, a row in a work-item's registers. pivots and info as lu_panel's of lu.cl.
__attribute__((reqd_work_group_size(LINALG_SMALL_GROUP, 1, 1))) kernel void lu_small(
    global T* a, const Matrix ma, global int* pivots, const Matrix mp, global int* info, const Matrix mi, const int m,
    const int n, const int first, const int batches) {
  local REAL sizes[LINALG_SMALL_GROUP];
  local int places[LINALG_SMALL_GROUP];
  local T pivot_rows[TEAMS * SIZE];
  const int lane = ITEM % SIZE, own = ITEM - lane, batch = get_group_id(0) * TEAMS + ITEM / SIZE;
  local T* const pivot_row = pivot_rows + own;
  pivot_rows[ITEM] = OF(0);
  const int active = batch < batches && lane < m;
  a += ma.offset + batch * ma.batch, pivots += mp.offset + batch * mp.batch;
  T held[SIZE];
  int place = active ? lane : -1, failed = 0;
#pragma unroll
  for (int c = 0; c < SIZE; ++c) {
    held[c] = OF(0);
    if (active && c < n) held[c] = a[lane * ma.row + c * ma.column];
  }
  const int steps = min(m, n);
  for (int j = 0; j < steps; ++j) {
    sizes[ITEM] = ABS1(held[0]), places[ITEM] = place;
    barrier(CLK_LOCAL_MEM_FENCE);
    REAL most = -1;
    int at = m;
    for (int i = own; i < own + SIZE; ++i)
      if (places[i] >= j && COMES_BEFORE(sizes[i], places[i], most, at)) most = sizes[i], at = places[i];
    if (place == at) {
      place = j;
#pragma unroll
      for (int c = 0; c < SIZE; ++c) pivot_row[c] = held[c];
      pivots[j * mp.row] = first + at + 1;
    } else if (place == j) {
      place = at;
    }
    barrier(CLK_LOCAL_MEM_FENCE);
    if (!failed && IS_ZERO(pivot_row[0])) failed = first + j + 1;
    eliminate(held, pivot_row, place > j, SIZE - j);
  }
  for (int j = steps; j < SIZE; ++j) pass_over(held);
  SYNC;
#pragma unroll
  for (int c = 0; c < SIZE; ++c)
    if (active && c < n) a[place * ma.row + c * ma.column] = held[c];
  if (batch < batches && lane == 0 && failed) {
    global int* const to = info + mi.offset + batch * mi.batch;
    if (!*to) *to = failed;
  }
}

// b [n, columns], replaced by the solution of a x = b, in steps of SOLVE_*. Work-item `lane` has every SIZE-th column.
__attribute__((reqd_work_group_size(LINALG_SMALL_GROUP, 1, 1))) kernel void solve_small(
    global const T* a, const Matrix ma, global T* b, const Matrix mb, global const int* pivots, const Matrix mp,
    const int n, const int columns, const int what, const int batches) {
  local T tiles[TEAMS * (SIZE * SIZE + 1)];  // one more, so that matrices begin in other banks
  local int swaps[LINALG_SMALL_GROUP], sources[LINALG_SMALL_GROUP];
  const int lane = ITEM % SIZE, own = ITEM - lane, batch = get_group_id(0) * TEAMS + ITEM / SIZE;
  const int active = batch < batches, exchanges = what & (SOLVE_SWAP_FIRST | SOLVE_SWAP_LAST);
  local T* const tile = tiles + ITEM / SIZE * (SIZE * SIZE + 1);
  a += ma.offset + batch * ma.batch, b += mb.offset + batch * mb.batch, pivots += mp.offset + batch * mp.batch;
  // Rows and columns that there are not are the identity's.
#pragma unroll
  for (int k = 0; k < SIZE; ++k) {
    T value = OF(lane == k ? 1 : 0);
    if (active && lane < n && k < n)
      value =
          (what & SOLVE_MIRROR) && k > lane ? CONJ(a[k * ma.row + lane * ma.column]) : a[lane * ma.row + k * ma.column];
    tile[lane * SIZE + k] = value;
  }
  swaps[ITEM] = active && exchanges && lane < n ? pivots[lane * mp.row] - 1 : lane;
  barrier(CLK_LOCAL_MEM_FENCE);
  int source = lane;  // which row the exchanges bring here
  if (exchanges)
    for (int j = n - 1; j >= 0; --j) source = source == j ? swaps[own + j] : source == swaps[own + j] ? j : source;
  sources[ITEM] = source;
  barrier(CLK_LOCAL_MEM_FENCE);
  if (!active) return;
  for (int c = lane; c < columns; c += SIZE) {
    global T* const side = b + c * mb.column;
    T x[SIZE];
#pragma unroll
    for (int i = 0; i < SIZE; ++i) {
      x[i] = OF(0);
      if (i < n) x[i] = side[(what & SOLVE_SWAP_FIRST ? sources[own + i] : i) * mb.row];
    }
    if (what & SOLVE_LOWER) {
#pragma unroll
      for (int k = 0; k < SIZE; ++k) {
        if (!(what & SOLVE_LOWER_UNIT)) x[k] = DIV(x[k], tile[k * SIZE + k]);
#pragma unroll
        for (int i = k + 1; i < SIZE; ++i) x[i] -= MUL(tile[i * SIZE + k], x[k]);
      }
    }
    if (what & SOLVE_UPPER) {
#pragma unroll
      for (int k = SIZE - 1; k >= 0; --k) {
        const T pivot = what & SOLVE_MIRROR ? CONJ(tile[k * SIZE + k]) : tile[k * SIZE + k];
        if (!(what & SOLVE_UPPER_UNIT)) x[k] = DIV(x[k], pivot);
#pragma unroll
        for (int i = 0; i < k; ++i) x[i] -= MUL(tile[i * SIZE + k], x[k]);
      }
    }
#pragma unroll
    for (int i = 0; i < SIZE; ++i)
      if (i < n) side[(what & SOLVE_SWAP_LAST ? sources[own + i] : i) * mb.row] = x[i];
  }
}
