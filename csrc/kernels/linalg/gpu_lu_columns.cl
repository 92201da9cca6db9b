// Panels of LU factors with partial pivoting on GPUs. A_T: the element type. HELD: rows of a work-item, at most.
#define WIDTH LU_COLUMNS
#include "kernels/linalg/lu_rows.clh"

// The place of the pivot among the work-items' candidates, a size and a place of each. All of them must call it. Arrays
// for LINALG_GROUP candidates, and for 16.
static inline int first_of_all(REAL most, int at, local REAL* sizes, local int* places, local REAL* some_sizes,
                               local int* some_places) {
  sizes[ITEM] = most, places[ITEM] = at;
  barrier(CLK_LOCAL_MEM_FENCE);
  if (ITEM < 16) {
    for (int other = ITEM + 16; other < LINALG_GROUP; other += 16)
      if (COMES_BEFORE(sizes[other], places[other], most, at)) most = sizes[other], at = places[other];
    some_sizes[ITEM] = most, some_places[ITEM] = at;
  }
  barrier(CLK_LOCAL_MEM_FENCE);
  most = some_sizes[0], at = some_places[0];
  for (int other = 1; other < 16; ++other)
    if (COMES_BEFORE(some_sizes[other], some_places[other], most, at))
      most = some_sizes[other], at = some_places[other];
  return at;
}

// Factors `count` columns of a from row and column `from` on, as LAPACK's getf2: all rows of a matrix that are left, at
// most HELD * LINALG_GROUP, stay in registers. pivots and info as lu_panel's of lu.cl, `first` being the rows above a in
// the whole.
__attribute__((reqd_work_group_size(LINALG_GROUP, 1, 1))) kernel void lu_columns(
    global T* a, const Matrix ma, global int* pivots, const Matrix mp, global int* info, const Matrix mi, const int m,
    const int from, const int count, const int first) {
  local REAL sizes[LINALG_GROUP], some_sizes[16];
  local int places[LINALG_GROUP], some_places[16];
  local T pivot_row[WIDTH];
  const int batch = get_group_id(0), rows = m - from;
  a += ma.offset + batch * ma.batch + from * (ma.row + ma.column);
  pivots += mp.offset + batch * mp.batch + from * mp.row;
  T held[HELD][WIDTH];
  int place[HELD];
#pragma unroll
  for (int r = 0; r < HELD; ++r) {
    const int i = ITEM + r * LINALG_GROUP;
    place[r] = i < rows ? i : -1;
#pragma unroll
    for (int c = 0; c < WIDTH; ++c) {
      held[r][c] = OF(0);
      if (i < rows && c < count) held[r][c] = a[i * ma.row + c * ma.column];
    }
  }
  int failed = 0;
  for (int j = 0; j < count; ++j) {
    REAL most = -1;
    int at = rows;
#pragma unroll
    for (int r = 0; r < HELD; ++r) {
      const REAL size = ABS1(held[r][0]);
      if (place[r] >= j && COMES_BEFORE(size, place[r], most, at)) most = size, at = place[r];
    }
    at = first_of_all(most, at, sizes, places, some_sizes, some_places);
#pragma unroll
    for (int r = 0; r < HELD; ++r) {
      if (place[r] == at) {
        place[r] = j;
#pragma unroll
        for (int c = 0; c < WIDTH; ++c) pivot_row[c] = held[r][c];
      } else if (place[r] == j) {
        place[r] = at;
      }
    }
    if (ITEM == 0) pivots[j * mp.row] = first + from + at + 1;
    barrier(CLK_LOCAL_MEM_FENCE);
    if (!failed && IS_ZERO(pivot_row[0])) failed = first + from + j + 1;
#pragma unroll
    for (int r = 0; r < HELD; ++r) eliminate(held[r], pivot_row, place[r] > j, WIDTH - j);
  }
  for (int j = count; j < WIDTH; ++j) {
#pragma unroll
    for (int r = 0; r < HELD; ++r) pass_over(held[r]);
  }
  SYNC;
#pragma unroll
  for (int r = 0; r < HELD; ++r)
#pragma unroll
    for (int c = 0; c < WIDTH; ++c)
      if (place[r] >= 0 && c < count) a[place[r] * ma.row + c * ma.column] = held[r][c];
  info += mi.offset + batch * mi.batch;
  if (failed && ITEM == 0 && !*info) *info = failed;
}
