// Batch norm's coefficients, from statistics forward and from two sums backward.
#include "norm/finish.clh"

// y = (x - mean) * scale + shift, per channel: coefficients [3][channels]. One work-item per channel.
kernel void batch_norm_finish(global const T* partial, global const B_T* weight, global const B_T* bias,
                              global B_T* running_mean, global B_T* running_var, global T* save_mean,
                              global T* save_rstd, global T* coefficients, const NormFinish p,
                              const Team team) {
  coefficients += p.results;
  STATS_SCRATCH
  const T momentum = REAL_OF(p.momentum);
  FOR_ROWS(c, team) {
    T mean = 0, m2 = 0, rstd;
    if (p.training) merge_splits(partial, p, c, &mean, &m2, team PASS_SCRATCH);
    if (!c_active || LANE != 0) continue;
    if (p.training) {
      rstd = C(1.0) / sqrt(m2 / (T)p.count + REAL_OF(p.eps));
      save_mean[p.mean + c] = mean;
      save_rstd[p.rstd + c] = rstd;
      if (p.running_mean >= 0) {
        const T old = LOAD_B(running_mean, p.running_mean + c);
        STORE_B(running_mean, p.running_mean + c, (C(1.0) - momentum) * old + momentum * mean);
      }
      if (p.running_var >= 0) {
        const T old = LOAD_B(running_var, p.running_var + c);
        STORE_B(running_var, p.running_var + c,
                (C(1.0) - momentum) * old + momentum * (m2 / ((T)p.count - 1)));
      }
    } else {
      mean = LOAD_B(running_mean, p.running_mean + c);
      rstd = C(1.0) / sqrt(LOAD_B(running_var, p.running_var + c) + REAL_OF(p.eps));
    }
    coefficients[c] = mean;
    coefficients[p.rows + c] = p.weight >= 0 ? rstd * LOAD_B(weight, p.weight + c) : rstd;
    coefficients[2 * p.rows + c] = p.bias >= 0 ? LOAD_B(bias, p.bias + c) : 0;
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

// dx = dy * k0 - (k1 + (x - mean) * k2), per channel: coefficients [4][channels] = mean, k0, k1, k2.
kernel void batch_norm_backward_finish(global const T* partial, global const B_T* weight, global const T* mean,
                                       global const T* rstd, global B_T* grad_weight, global B_T* grad_bias,
                                       global T* coefficients, const NormFinish p, const Team team) {
  coefficients += p.results;
  TEAM_SCRATCH
  FOR_ROWS(c, team) {
    T s1 = 0, s2 = 0;
    add_splits(partial, p, c, &s1, &s2, team PASS_SCRATCH);
    if (!c_active || LANE != 0) continue;
    const T inverse = rstd[p.rstd + c], count = (T)p.count;
    if (p.grad_weight >= 0) STORE_B(grad_weight, p.grad_weight + c, s2 * inverse);
    if (p.grad_bias >= 0) STORE_B(grad_bias, p.grad_bias + c, s1);
    const T k0 = p.weight >= 0 ? inverse * LOAD_B(weight, p.weight + c) : inverse;
    coefficients[c] = mean[p.mean + c];
    coefficients[p.rows + c] = k0;
    coefficients[2 * p.rows + c] = p.training ? k0 * s1 / count : 0;
    coefficients[3 * p.rows + c] = p.training ? k0 * inverse * inverse * s2 / count : 0;
  }
}
