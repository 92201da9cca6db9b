// The steps after a panel of gpu_lu_columns.cl: LU factors of matrices of several blocks take three launches for
// LU_COLUMNS columns. A_T: the element type.
#include "kernels/linalg/block.clh"

// Applies the columns of lu_columns to the others of the matrix, a work-item for each: exchanges their rows, and solves
// for those on the right with the unit lower triangle. The exchanges touch 2 * count rows at most, and which row comes
// to each of them is found first, so that a column's loads need not wait for its stores.
__attribute__((reqd_work_group_size(LINALG_GROUP, 1, 1))) kernel void swap_and_solve(
    global T* a, const Matrix ma, global const int* pivots, const Matrix mp, const int n, const int from,
    const int count, const int first, const int groups) {
  local T lower[LU_COLUMNS * LU_COLUMNS];
  local int swaps[LU_COLUMNS], sources[2 * LU_COLUMNS];
  const int batch = get_group_id(0) / groups, other = get_group_id(0) % groups * LINALG_GROUP + ITEM;
  const int c = other < from ? other : other + count;
  a += ma.offset + batch * ma.batch + from * ma.row;
  pivots += mp.offset + batch * mp.batch + from;
  if (ITEM < LU_COLUMNS) swaps[ITEM] = ITEM < count ? pivots[ITEM * mp.row] - 1 - first - from : ITEM;
  if (ITEM < LU_COLUMNS * LU_COLUMNS) {
    const int i = ITEM % LU_COLUMNS, j = ITEM / LU_COLUMNS;
    lower[j * LU_COLUMNS + i] = j < i && i < count ? a[i * ma.row + (from + j) * ma.column] : OF(0);
  }
  barrier(CLK_LOCAL_MEM_FENCE);
  if (ITEM < 2 * LU_COLUMNS) {
    int row = ITEM < LU_COLUMNS ? ITEM : swaps[ITEM - LU_COLUMNS];
    for (int j = count - 1; j >= 0; --j) row = row == j ? swaps[j] : row == swaps[j] ? j : row;
    sources[ITEM] = row;
  }
  barrier(CLK_LOCAL_MEM_FENCE);
  if (c >= n) return;
  a += c * ma.column;
  T top[LU_COLUMNS], below[LU_COLUMNS];
#pragma unroll
  for (int i = 0; i < LU_COLUMNS; ++i)
    if (i < count) top[i] = a[sources[i] * ma.row], below[i] = a[sources[LU_COLUMNS + i] * ma.row];
#pragma unroll
  for (int i = 0; i < LU_COLUMNS; ++i)
    if (i < count && swaps[i] >= count) a[swaps[i] * ma.row] = below[i];
  if (c >= from) {
#pragma unroll
    for (int j = 0; j < LU_COLUMNS - 1; ++j)
#pragma unroll
      for (int i = j + 1; i < LU_COLUMNS; ++i)
        if (i < count) top[i] -= MUL(lower[j * LU_COLUMNS + i], top[j]);
  }
#pragma unroll
  for (int i = 0; i < LU_COLUMNS; ++i)
    if (i < count) a[i * ma.row] = top[i];
}

// Subtracts from the rows and columns from `from` + `count` on the product of those columns and rows before them.
__attribute__((reqd_work_group_size(LINALG_GROUP, 1, 1))) kernel void subtract_columns(
    global T* a, const Matrix ma, const int m, const int n, const int from, const int count, const int row_blocks,
    const int groups) {
  local T room[BLOCK_ROOM];
  const int batch = get_group_id(0) / groups, group = get_group_id(0) % groups;
  const int top = from + count + group % row_blocks * BLOCK, left = from + count + group / row_blocks * BLOCK;
  const int rows = min(BLOCK, m - top), columns = min(BLOCK, n - left);
  a += ma.offset + batch * ma.batch;
  T sums[EACH][EACH];
  clear_sums(sums);
  add_block_product(sums, a + top * ma.row + from * ma.column, ma.row, ma.column, rows,
                    a + from * ma.row + left * ma.column, ma.column, ma.row, columns, 0, count, room);
  store_block(a + top * ma.row + left * ma.column, ma.row, ma.column, rows, columns, sums, 1, 0);
}
