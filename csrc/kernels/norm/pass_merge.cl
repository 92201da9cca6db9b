// The results of a pass, of all splits together.
#include "norm/finish.clh"

// results: [2][rows], means and variances or two sums.
kernel void norm_pass_merge(global const T* partial, global T* results, const NormFinish p, const Team team) {
  STATS_SCRATCH
  results += p.results;
  FOR_ROWS(row, team) {
    T first = 0, second = 0;
    if (p.sums) {
      add_splits(partial, p, row, &first, &second, team PASS_SCRATCH);
    } else {
      merge_splits(partial, p, row, &first, &second, team PASS_SCRATCH);
      second /= (T)p.count;
    }
    if (!row_active || LANE != 0) continue;
    results[row] = first;
    results[p.rows + row] = second;
  }
}
