// Cholesky factors of matrices of several blocks, on GPUs: two launches for each block of columns. A_T: the element
// type.
#include "kernels/linalg/block.clh"

// Factors a block of n rows in place and writes the inverse of L, inverse[i * BLOCK + j]. Elimination turns a to L and
// beside it the identity to L^-1: the columns up to the current one hold the latter, in the upper triangle of `tile`,
// transposed. A step has one barrier, since column j is read as it is and scaled only afterwards.
inline void factor_block(global T* a, long row, long column, int n, global T* inverse, global int* info, int first,
                         local T* tile, local REAL* scales) {
  const int i = ITEM % BLOCK, lane = ITEM / BLOCK, lanes = LINALG_GROUP / BLOCK;
  for (int c = lane; c < n; c += lanes)
    if (i >= c && i < n) tile[c * PITCH + i] = a[i * row + c * column];
  barrier(CLK_LOCAL_MEM_FENCE);
  int failed = *info;
  const int failed_before = failed;
  for (int j = 0; j < n; ++j) {
    const REAL d = RE(tile[j * PITCH + j]);
    if (!failed && !(d > 0)) failed = first + j + 1;
    const REAL scale = failed ? 0 : 1 / sqrt(d);
    if (ITEM == 0) scales[j] = scale;
    if (!failed && i > j && i < n) {
      const T factor = tile[j * PITCH + i] * scale;
      for (int c = lane; c <= i; c += lanes) {
        if (c > j) tile[c * PITCH + i] -= MUL(factor, CONJ(tile[j * PITCH + c]) * scale);
        else if (c < j) tile[i * PITCH + c] -= MUL(factor, tile[j * PITCH + c] * scale);
        else tile[i * PITCH + c] = -factor * scale;
      }
    }
    barrier(CLK_LOCAL_MEM_FENCE);
  }
  if (failed && !failed_before && ITEM == 0) *info = failed;
  if (i < n)
    for (int c = lane; c < n; c += lanes) {
      const REAL scale = scales[c];
      if (i > c && scale != 0) a[i * row + c * column] = tile[c * PITCH + i] * scale;
      if (i == c && scale != 0) a[i * (row + column)] = OF(sqrt(RE(tile[c * PITCH + c])));
      T value = OF(i == c ? scale : 0);  // and zero from where the factorization failed on
      if (i > c && scales[i] != 0) value = tile[i * PITCH + c] * scales[i];
      inverse[i * BLOCK + c] = value;
    }
}

// Block k of columns is final: subtracts its product with itself from the lower triangle of what follows, a work-group
// for each block of that; the first of a matrix then factors the next block on the diagonal while others go on. With
// k = -1 there is nothing to subtract yet. info as in cholesky.cl, `first` being the rows above a in the whole.
__attribute__((reqd_work_group_size(LINALG_GROUP, 1, 1))) kernel void subtract_and_factor(
    global T* a, const Matrix ma, global T* inverse, const Matrix mv, global int* info, const Matrix mi, const int n,
    const int k, const int first, const int blocks) {
  local T room[BLOCK_ROOM];
  local REAL scales[BLOCK];
  const int batch = get_group_id(0) / blocks, block = get_group_id(0) % blocks;
  // blocks are numbered by rows: (0, 0), (1, 0), (1, 1), (2, 0) ...
  int i = (int)((sqrt(8.0f * block + 1) - 1) / 2);
  while ((i + 1) * (i + 2) / 2 <= block) ++i;
  while (i * (i + 1) / 2 > block) --i;
  const int j = block - i * (i + 1) / 2, top = (k + 1 + i) * BLOCK, side = (k + 1 + j) * BLOCK;
  const int rows = min(BLOCK, n - top), columns = min(BLOCK, n - side);
  a += ma.offset + batch * ma.batch;
  global T* const target = a + top * ma.row + side * ma.column;
  if (k >= 0) {
    T sums[EACH][EACH];
    clear_sums(sums);
    global const T* const panel = a + (long)k * BLOCK * ma.column;
    add_block_product(sums, panel + top * ma.row, ma.row, ma.column, rows, panel + side * ma.row, ma.row, ma.column,
                      columns, 1, BLOCK, room);
    store_block(target, ma.row, ma.column, rows, columns, sums, 1, i == j);
  }
  if (block == 0) {
    SYNC;
    factor_block(target, ma.row, ma.column, rows, inverse + mv.offset + batch * mv.batch,
                 info + mi.offset + batch * mi.batch, first + top, room, scales);
  }
}

// Multiplies what is below block k on the diagonal by the adjoint of that one's inverse, in place.
__attribute__((reqd_work_group_size(LINALG_GROUP, 1, 1))) kernel void finish_panel(
    global T* a, const Matrix ma, global const T* inverse, const Matrix mv, const int n, const int k,
    const int blocks) {
  local T room[BLOCK_ROOM];
  const int batch = get_group_id(0) / blocks, top = (k + 1 + get_group_id(0) % blocks) * BLOCK;
  const int rows = min(BLOCK, n - top);
  global T* const target = a + ma.offset + batch * ma.batch + top * ma.row + (long)k * BLOCK * ma.column;
  T sums[EACH][EACH];
  clear_sums(sums);
  add_block_product(
      sums, target, ma.row, ma.column, rows, inverse + mv.offset + batch * mv.batch, BLOCK, 1, BLOCK, 1, BLOCK, room);
  SYNC;
  store_block(target, ma.row, ma.column, rows, BLOCK, sums, 0, 0);
}
