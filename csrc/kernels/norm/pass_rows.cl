// Passes over rows, an element at a time.
#include "norm/pass_rows.clh"

kernel void norm_stats_rows(global const A_T* x, global T* results, const NormPass p, const Team team) {
  STATS_SCRATCH
  stats_rows(x, results, p, team, 1 PASS_SCRATCH);
}

kernel void norm_sums_rows(global const A_T* x, global const A_T* dy, global const T* mean, global const T* rstd,
                           global T* results, const NormPass p, const Team team) {
  TEAM_SCRATCH
  sums_rows(x, dy, mean, results, p, team, 1 PASS_SCRATCH);
}
