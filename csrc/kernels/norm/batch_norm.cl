// Batch norm's coefficients, from statistics forward and from two sums backward.
#include "norm/batch_norm.clh"

// Per channel: coefficients [3][channels].
kernel void batch_norm_finish(global const T* partial, global const B_T* weight, global const B_T* bias,
                              global B_T* running_mean, global B_T* running_var, global T* save_mean,
                              global T* save_rstd, global T* coefficients, const NormFinish p, const Team team) {
  coefficients += p.results;
  STATS_SCRATCH
  FOR_ROWS(c, team) {
    T mean = 0, m2 = 0;
    if (p.training) merge_splits(partial, p, c, &mean, &m2, team PASS_SCRATCH);
    if (!c_active || LANE != 0) continue;
    const Forward k = forward_of(c, mean, m2, weight, bias, running_mean, running_var, save_mean, save_rstd, p, true);
    coefficients[c] = k.mean;
    coefficients[p.rows + c] = k.scale;
    coefficients[2 * p.rows + c] = k.shift;
  }
}

// The statistics the gradient needs, from the running ones: mean and rstd, [2][channels].
kernel void batch_norm_running(global const B_T* running_mean, global const B_T* running_var, global T* stats,
                               const NormFinish p, const Team team) {
  stats += p.results;
  FOR_ROWS(c, team) {
    if (!c_active) continue;
    stats[c] = LOAD_B(running_mean, p.running_mean + c);
    stats[p.rows + c] = C(1.0) / sqrt(LOAD_B(running_var, p.running_var + c) + REAL_OF(p.eps));
  }
}

// Per channel: coefficients [4][channels].
kernel void batch_norm_backward_finish(global const T* partial, global const B_T* weight, global const T* mean,
                                       global const T* rstd, global B_T* grad_weight, global B_T* grad_bias,
                                       global T* coefficients, const NormFinish p, const Team team) {
  coefficients += p.results;
  TEAM_SCRATCH
  FOR_ROWS(c, team) {
    T s1 = 0, s2 = 0;
    add_splits(partial, p, c, &s1, &s2, team PASS_SCRATCH);
    if (!c_active || LANE != 0) continue;
    const Backward k = backward_of(c, s1, s2, weight, mean, rstd, grad_weight, grad_bias, p, true);
    coefficients[c] = k.mean;
    coefficients[p.rows + c] = k.k0;
    coefficients[2 * p.rows + c] = k.k1;
    coefficients[3 * p.rows + c] = k.k2;
  }
}
