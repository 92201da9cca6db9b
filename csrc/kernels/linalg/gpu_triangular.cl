// Solutions with triangular matrices of several blocks, on GPUs: one launch inverts the blocks on the diagonal, then one
// for each block of rows multiplies by them. A_T: the element type.
#include "kernels/linalg/block.clh"

// inverse[b, k]: the inverse of the k-th block on the diagonal of the lower triangle of a, a work-group for each. An
// upper triangle is the lower one of the transpose, in a and in the inverse. Elimination turns the identity to the
// inverse, whose columns up to the current one are in the upper triangle of `tile`, transposed.
__attribute__((reqd_work_group_size(LINALG_GROUP, 1, 1))) kernel void invert_blocks(
    global const T* a, const Matrix ma, global T* inverse, const Matrix mv, const int n, const int unit,
    const int blocks) {
  local T tile[BLOCK_ROOM];
  local T scales[BLOCK];
  const int batch = get_group_id(0) / blocks, top = get_group_id(0) % blocks * BLOCK, size = min(BLOCK, n - top);
  const int i = ITEM % BLOCK, lane = ITEM / BLOCK, lanes = LINALG_GROUP / BLOCK;
  a += ma.offset + batch * ma.batch + top * (ma.row + ma.column);
  inverse += mv.offset + get_group_id(0) * mv.batch;
  // loads walk along what is contiguous
  const int turned = ma.column < ma.row;
  for (int c = lane; c < size; c += lanes) {
    const int to_row = turned ? c : i, to_column = turned ? i : c;
    if (to_row >= to_column && to_row < size)
      tile[to_column * PITCH + to_row] = a[to_row * ma.row + to_column * ma.column];
  }
  barrier(CLK_LOCAL_MEM_FENCE);
  if (ITEM < size) scales[ITEM] = unit ? OF(1) : DIV(OF(1), tile[ITEM * PITCH + ITEM]);
  barrier(CLK_LOCAL_MEM_FENCE);
  for (int j = 0; j < size; ++j) {
    if (i > j && i < size) {
      const T factor = MUL(tile[j * PITCH + i], scales[j]);
      for (int c = lane; c < j; c += lanes) tile[i * PITCH + c] -= MUL(factor, tile[j * PITCH + c]);
      if (lane == 0) tile[i * PITCH + j] = -factor;
    }
    barrier(CLK_LOCAL_MEM_FENCE);
  }
  if (i < size)
    for (int c = lane; c < size; c += lanes) {
      const T value = i > c ? MUL(tile[i * PITCH + c], scales[i]) : i == c ? scales[i] : OF(0);
      inverse[i * mv.row + c * mv.column] = value;
    }
}

// x [n, columns]: block k of its rows is final. Subtracts its product with a from the blocks of rows that follow, in the
// direction of `step`, 1 or -1; the next one is then multiplied by its inverse, which makes that final. There is nothing
// to subtract where k is outside of the matrix. A work-group has BLOCK columns of one block of rows.
__attribute__((reqd_work_group_size(LINALG_GROUP, 1, 1))) kernel void substitute(
    global const T* a, const Matrix ma, global T* x, const Matrix mx, global const T* inverse, const Matrix mv,
    const int n, const int columns, const int k, const int step, const int row_blocks, const int groups) {
  local T room[BLOCK_ROOM];
  const int batch = get_group_id(0) / groups, group = get_group_id(0) % groups;
  const int block = group % row_blocks, target = k + step * (1 + block), left = group / row_blocks * BLOCK;
  const int rows = min(BLOCK, n - target * BLOCK), width = min(BLOCK, columns - left);
  x += mx.offset + batch * mx.batch + left * mx.column;
  global T* const to = x + (long)target * BLOCK * mx.row;
  T sums[EACH][EACH];
  if (k >= 0 && k * BLOCK < n) {
    clear_sums(sums);
    a += ma.offset + batch * ma.batch + (long)target * BLOCK * ma.row + (long)k * BLOCK * ma.column;
    add_block_product(sums, a, ma.row, ma.column, rows, x + (long)k * BLOCK * mx.row, mx.column, mx.row, width, 0,
                      min(BLOCK, n - k * BLOCK), room);
    store_block(to, mx.row, mx.column, rows, width, sums, 1, 0);
  }
  if (block == 0) {
    SYNC;
    const int count = (n + BLOCK - 1) / BLOCK;
    clear_sums(sums);
    add_block_product(sums, inverse + mv.offset + (long)(batch * count + target) * mv.batch, mv.row, mv.column, rows,
                      to, mx.column, mx.row, width, 0, rows, room);
    SYNC;
    store_block(to, mx.row, mx.column, rows, width, sums, 0, 0);
  }
}
