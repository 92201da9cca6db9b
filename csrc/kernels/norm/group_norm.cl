// Group norm's coefficients, from statistics forward and from two sums backward, and the gradients of its weights.
#include "norm/finish.clh"

// rows: samples * groups; coefficients [3][samples * channels]. One work-item per row.
kernel void group_norm_finish(global const T* partial, global const B_T* weight, global const B_T* bias,
                              global T* save_mean, global T* save_rstd, global T* coefficients, const NormFinish p,
                              const Team team) {
  coefficients += p.results;
  STATS_SCRATCH
  const uint each = p.channels / p.groups, all = p.samples * p.channels;
  FOR_ROWS(row, team) {
    T mean = 0, m2 = 0;
    merge_splits(partial, p, row, &mean, &m2, team PASS_SCRATCH);
    if (!row_active || LANE != 0) continue;
    const T rstd = C(1.0) / sqrt(m2 / (T)p.count + REAL_OF(p.eps));
    save_mean[p.mean + row] = mean;
    save_rstd[p.rstd + row] = rstd;
    const uint first = row % p.groups * each;
    for (uint d = 0; d < each; ++d) {
      const uint at = row * each + d;
      coefficients[at] = mean;
      coefficients[all + at] = p.weight >= 0 ? rstd * LOAD_B(weight, p.weight + first + d) : rstd;
      coefficients[2 * all + at] = p.bias >= 0 ? LOAD_B(bias, p.bias + first + d) : 0;
    }
  }
}

// sums: [2][samples * channels], of dy and dy * (x - mean). coefficients [4][samples * channels] as for batch norm.
kernel void group_norm_backward_finish(global const T* sums, global const B_T* weight, global const T* mean,
                                       global const T* rstd, global T* coefficients, const NormFinish p,
                                       const Team team) {
  coefficients += p.results;
  sums += p.partial;
  const uint each = p.channels / p.groups, all = p.samples * p.channels;
  FOR_ROWS(row, team) {
    if (!row_active) continue;
    const uint first = row % p.groups * each;
    const T r = rstd[p.rstd + row], m = mean[p.mean + row], count = (T)each * (T)p.length;
    T s1 = 0, s2 = 0;
    for (uint d = 0; d < each; ++d) {
      const T w = p.weight >= 0 ? LOAD_B(weight, p.weight + first + d) : 1;
      s1 += w * sums[row * each + d];
      s2 += w * sums[all + row * each + d];
    }
    for (uint d = 0; d < each; ++d) {
      const uint at = row * each + d;
      coefficients[at] = m;
      coefficients[all + at] = p.weight >= 0 ? r * LOAD_B(weight, p.weight + first + d) : r;
      coefficients[2 * all + at] = r * s1 / count;
      coefficients[3 * all + at] = r * r * r * s2 / count;
    }
  }
}

kernel void group_norm_weight_grad(global const T* sums, global const T* rstd, global B_T* grad_weight,
                                   global B_T* grad_bias, const NormFinish p, const Team team) {
  sums += p.partial;
  const uint each = p.channels / p.groups, all = p.samples * p.channels;
  FOR_ROWS(c, team) {
    if (!c_active) continue;
    T s1 = 0, s2 = 0;
    for (uint n = 0; n < p.samples; ++n) {
      s1 += sums[n * p.channels + c];
      s2 += sums[all + n * p.channels + c] * rstd[p.rstd + n * p.groups + c / each];
    }
    if (p.grad_weight >= 0) STORE_B(grad_weight, p.grad_weight + c, s2);
    if (p.grad_bias >= 0) STORE_B(grad_bias, p.grad_bias + c, s1);
  }
}
