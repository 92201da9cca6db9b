// Cholesky factors of matrices that fit a tile. A_T: the element type.
#include "kernels/linalg/linalg.clh"

// a: the lower triangle of Hermitian matrices, replaced by L with a = L L^H. info[b], zero or what an earlier block
// found, becomes first + j + 1 where the j-th pivot is not positive: the factorization ends there.
kernel void cholesky_tile(global T* a, const Matrix ma, global int* info, const Matrix mi, const int n, const int first,
                          const Jobs jobs) {
  local T tile[TILE * TILE];
  a += ma.offset, info += mi.offset;
  FOR_JOBS(b, jobs) {
    global T* const matrix = a + b * ma.batch;
    SYNC;
    if (info[b]) continue;
    for (int j = 0; j < n; ++j) FOR_ITEMS(i, j, n) tile[j * TILE + i] = matrix[i * ma.row + j * ma.column];
    SYNC;
    int failed = 0;
    for (int j = 0; j < n; ++j) {
      local T* const column = tile + j * TILE;
      const REAL d = RE(column[j]);
      if (!(d > 0)) {
        failed = first + j + 1;
        break;
      }
      const REAL root = sqrt(d), inverse = 1 / root;
      SYNC;
      FOR_ITEMS(i, j, n) column[i] = i == j ? OF(root) : column[i] * inverse;
      SYNC;
#ifdef DLB_CPU
      for (int k = j + 1; k < n; ++k) {
        const T factor = CONJ(column[k]);
        local T* const to = tile + k * TILE;
        FOR_ITEMS(i, k, n) to[i] -= MUL(factor, column[i]);
      }
#else
      const int rest = n - j - 1;
      FOR_ITEMS(p, 0, rest * rest) {
        const int k = j + 1 + p / rest, i = j + 1 + p % rest;
        if (i >= k) tile[k * TILE + i] -= MUL(CONJ(column[k]), column[i]);
      }
      SYNC;
#endif
    }
    SYNC;
    for (int j = 0; j < n; ++j) FOR_ITEMS(i, j, n) matrix[i * ma.row + j * ma.column] = tile[j * TILE + i];
    if (failed && ITEM == 0) info[b] = failed;
  }
}
