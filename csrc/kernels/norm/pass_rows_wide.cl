// Passes over rows on GPUs, whose work-items take NORM_NEIGHBOURS neighbours at a time.
#include "norm/pass_rows.clh"

kernel void norm_stats_rows_wide(global const A_T* x, global T* results, const NormPass p, const Team team) {
  STATS_SCRATCH
  stats_rows(x, results, p, team, NORM_NEIGHBOURS PASS_SCRATCH);
}

kernel void norm_sums_rows_wide(global const A_T* x, global const A_T* dy, global const T* mean, global const T* rstd,
                                global T* results, const NormPass p, const Team team) {
  TEAM_SCRATCH
  sums_rows(x, dy, mean, results, p, team, NORM_NEIGHBOURS PASS_SCRATCH);
}
