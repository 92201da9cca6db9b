// Layer norm of rows whose statistics are read once.
#include "norm/layer_norm_rows.clh"

kernel void layer_norm_rows_once(global const A_T* x, global const B_T* weight, global const B_T* bias, global A_T* y,
                                 global T* mean, global T* rstd, const LayerNorm p, const Team team) {
  TEAM_SCRATCH
  layer_rows(x, weight, bias, y, mean, rstd, p, team, 1 PASS_SCRATCH);
}
