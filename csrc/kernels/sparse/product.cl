// c [rows, columns] = a @ b, or + c, where a is sparse and b is dense. Row r of a has the elements row_begin[r] to
// row_begin[r + 1] - 1, each in a column of `column`. On CPUs a work-item computes several neighbouring columns of a row,
// for which it reads every element of a once; on GPUs it computes one, and neighbours read a row of b together.
#include "kernels/sparse/params.h"

#ifdef DLB_CPU
#define PER_ITEM SPARSE_COLUMNS_CPU
#else
#define PER_ITEM 1
#endif

#ifdef IS_COMPLEX
#define PRODUCT(a, b) dlb_cmul(a, b)
#else
#define PRODUCT(a, b) ((a) * (b))
#endif

kernel void dlb_sparse_product(global const long* row_begin, global const long* column, global const A_T* a,
                               global const A_T* b, global A_T* c, const SparseProduct p) {
  const long first = (long)get_global_id(0) * PER_ITEM, row = get_global_id(1);
  if (first >= p.columns) return;
  const int width = (int)min((long)PER_ITEM, p.columns - first);
  T sum[PER_ITEM];
  for (int i = 0; i < PER_ITEM; ++i) sum[i] = 0;
  const long end = row_begin[p.row_begin + row + 1];
  for (long e = row_begin[p.row_begin + row]; e < end; ++e) {
    const T value = LOAD_A(a, p.a + e);
    const long from = p.b + column[p.column + e] * p.b_row + first * p.b_column;
    for (int i = 0; i < width; ++i) sum[i] += PRODUCT(value, LOAD_A(b, from + i * p.b_column));
  }
  const long to = p.c + row * p.c_row + first * p.c_column;
  for (int i = 0; i < width; ++i) {
    const long at = to + i * p.c_column;
    STORE_A(c, at, p.adds ? LOAD_A(c, at) + sum[i] : sum[i]);
  }
}
