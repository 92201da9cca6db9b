// x [rows, columns] = a^-1 @ x in place, with the upper or the lower triangle of a. A work-item solves for a column of
// x, row by row. Row r of a has the elements row_begin[r] to row_begin[r + 1] - 1, in any order.
#include "kernels/sparse/params.h"

#ifdef IS_COMPLEX
#define MUL(a, b) dlb_cmul(a, b)
#define DIV(a, b) dlb_cdiv(a, b)
#else
#define MUL(a, b) ((a) * (b))
#define DIV(a, b) ((a) / (b))
#endif

kernel void dlb_sparse_solve(global const long* row_begin, global const long* column, global const A_T* a,
                             global A_T* x, const SparseSolve p) {
  const long of = get_global_id(0);
  if (of >= p.columns) return;
  for (long step = 0; step < p.rows; ++step) {
    const long row = p.upper ? p.rows - 1 - step : step, at = p.x + row * p.x_row + of * p.x_column;
    const long end = row_begin[p.row_begin + row + 1];
    T sum = LOAD_A(x, at), diagonal = 0;
    for (long e = row_begin[p.row_begin + row]; e < end; ++e) {
      const long c = column[p.column + e];
      if (c == row) diagonal = LOAD_A(a, p.a + e);
      else if ((c > row) == (p.upper != 0))
        sum -= MUL(LOAD_A(a, p.a + e), LOAD_A(x, p.x + c * p.x_row + of * p.x_column));
    }
    const T solved = p.unit ? sum : DIV(sum, diagonal);
    STORE_A(x, at, solved);
  }
}
