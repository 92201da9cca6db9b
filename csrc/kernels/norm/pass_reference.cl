// The reference that the other passes are checked against, one work-item per row: the mean and then the deviations from
// it. Columns are rows whose runs are of one element.
#include "norm/pass.clh"

#define ELEMENT(p, i) ((long)((i) / p.length) * p.segment_stride + (i) % p.length)

kernel void norm_stats_reference(global const A_T* x, global T* results, const NormPass p, const Team team) {
  FOR_ROWS(row, team) {
    if (!row_active) continue;
    global const A_T* in = x + p.x + row_start(p, row);
    T sum = 0, squares = 0;
    ADD_UP(sum, i, p.count, LOAD_A(in, ELEMENT(p, i)))
    const T mean = sum / (T)p.count;
    ADD_UP(squares, i, p.count, (LOAD_A(in, ELEMENT(p, i)) - mean) * (LOAD_A(in, ELEMENT(p, i)) - mean))
    put(results + p.results, p, 0, row, mean, squares / (T)p.count);
  }
}

kernel void norm_sums_reference(global const A_T* x, global const A_T* dy, global const T* mean, global const T* rstd,
                                global T* results, const NormPass p, const Team team) {
  mean += p.mean, rstd += p.rstd;
  FOR_ROWS(row, team) {
    if (!row_active) continue;
    global const A_T* in = x + p.x + row_start(p, row);
    global const A_T* grad = dy + p.dy + row_start(p, row);
    T s1 = 0, s2 = 0;
    ADD_UP(s1, i, p.count, LOAD_A(grad, ELEMENT(p, i)))
    if (p.mean_group) {
      const T m = mean[row / p.mean_group];
      ADD_UP(s2, i, p.count, LOAD_A(grad, ELEMENT(p, i)) * (LOAD_A(in, ELEMENT(p, i)) - m))
    } else {
      ADD_UP(s2, i, p.count, LOAD_A(grad, ELEMENT(p, i)) * ((LOAD_A(in, ELEMENT(p, i)) - mean[i]) * rstd[i]))
    }
    put(results + p.results, p, 0, row, s1, s2);
  }
}
