// Sets a bit of `found` for each rule that the indices break. For each batch `compressed` has lines + 1 indices, where
// the lines begin and the last one ends, and `plain` has nnz, each element's place within its line.
#include "kernels/sparse/params.h"

kernel void dlb_sparse_validate(global const A_T* compressed, global const A_T* plain, global int* found,
                                const SparseValidate p) {
  const long item = get_global_id(0), items = get_global_size(0);
  int wrong = 0;
  for (long i = item; i < p.batches * p.nnz; i += items) {
    const long place = plain[p.plain + i];
    if (place < 0 || place >= p.size) wrong |= SPARSE_PLAIN_BOUNDS;
  }
  for (long i = item; i < p.batches * p.lines; i += items) {
    const long batch = i / p.lines, line = i - batch * p.lines;
    global const A_T* begins = compressed + p.compressed + batch * (p.lines + 1);
    const long begin = begins[line], end = begins[line + 1];
    if (begins[0] != 0) wrong |= SPARSE_FIRST;
    if (begins[p.lines] != p.nnz) wrong |= SPARSE_LAST;
    if (begin > end || end - begin > p.size) wrong |= SPARSE_STEPS;
    // Wrong indices must not make it read outside of `plain`.
    global const A_T* places = plain + p.plain + batch * p.nnz;
    for (long k = max(begin, 0L) + 1; k < min(end, p.nnz); ++k)
      if (places[k - 1] >= places[k]) wrong |= SPARSE_ORDER;
  }
  if (wrong) atomic_or(found + p.found, wrong);
}
