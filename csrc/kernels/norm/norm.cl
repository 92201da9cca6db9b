// Statistics, gradients and application of batch and group normalisation, and the gradients of a layer norm's weights.
// A_T: the input's type (also grad_output's and the results'), B_T: that of weights, biases and running statistics;
// saved statistics and scratch are T.
//
// A "row" is what shares one mean. For `rows` kernels it is `segments` contiguous runs of `length` elements
// (batch norm over N x C x L: one run per sample); for `columns` kernels rows are interleaved element by element
// (channels-last). Either is cut into `splits` parts with a partial result each, which finish kernels merge:
// means and squared deviations by Chan, Golub and LeVeque, "Updating formulae and a pairwise algorithm for
// computing sample variances" (1979), so that a large mean costs no accuracy.
#include "common/team.clh"

typedef struct {
  long x, dy, mean, rstd, partial;  // offsets
  long outer_stride, inner_stride, segment_stride;
  uint inner_rows;         // row r starts at r / inner_rows * outer_stride + r % inner_rows * inner_stride
  uint rows;               // number of rows (columns: of interleaved columns)
  uint length;             // of a run (columns: unused)
  uint count;              // elements of a row
  uint per_split;          // elements of a row in one split
  uint mean_group;         // rows that share mean and rstd; 0: they belong to the position in the row (layer norm)
  uint block, padding;     // columns: how many are taken together (GPU: a power of two)
  dlb_divider length_divider;
} norm_layout;

inline void merge(T* n, T* mean, T* m2, T other_n, T other_mean, T other_m2) {
  const T total = *n + other_n;
  if (other_n == 0) return;
  const T delta = other_mean - *mean, share = other_n / total;
  *mean += delta * share;
  *m2 += other_m2 + delta * delta * *n * share;
  *n = total;
}

#ifdef DLB_GPU
// Merges (n, mean, m2) over `width` work-items `apart`; the result is in the first of them.
inline void merge_group(T* n, T* mean, T* m2, local T* scratch, uint width, uint apart) {
  const uint i = get_local_id(0);
  local T *ns = scratch, *means = scratch + 256, *m2s = scratch + 512;
  ns[i] = *n, means[i] = *mean, m2s[i] = *m2;
  barrier(CLK_LOCAL_MEM_FENCE);
  for (uint half_size = width / 2; half_size; half_size /= 2) {
    const uint other = i + half_size * apart;
    if (i / apart % width < half_size) {
      merge(n, mean, m2, ns[other], means[other], m2s[other]);
      ns[i] = *n, means[i] = *mean, m2s[i] = *m2;
    }
    barrier(CLK_LOCAL_MEM_FENCE);
  }
}
#endif

// Rounding's negatives are zero, NaN stays.
inline T not_negative(T v) {
  return v < 0 ? 0 : v;
}

inline long row_start(norm_layout p, uint row) {
  return (long)(row / p.inner_rows) * p.outer_stride + (long)(row % p.inner_rows) * p.inner_stride;
}

// What a pass over one row or column gives: mean and variance, or two sums. results: [splits][2][rows].
inline void put(global T* results, norm_layout p, uint split, uint row, T first, T second) {
  results[(long)split * 2 * p.rows + row] = first;
  results[((long)split * 2 + 1) * p.rows + row] = second;
}

// The rows kernels of GPUs: a work-item takes every LANES-th element, or `each` neighbours of runs whose length is a
// multiple of it.
#define WIDE 4

// partial: [splits][2][rows], mean then variance. Team row: split * rows + row.
inline void stats_rows(global const A_T* x, global T* partial, norm_layout p, dlb_team team,
                       const uint each SCRATCH_PARAMETER) {
  DLB_REASSOCIATE
  partial += p.partial;
  x += p.x;
  FOR_ROWS(at, team) {
    const uint split = at / p.rows, row = at - split * p.rows;
    global const A_T* in = x + row_start(p, row);
    const uint begin = split * p.per_split, end = min(begin + p.per_split, p.count);
    T n = 0, mean = 0, m2 = 0;
#ifdef DLB_CPU
    // Runs are joined into blocks of some thousand elements; a block's deviations are from the mean so far.
    uint segment = begin / p.length, skip = begin - segment * p.length;
    for (uint i = begin; i < end;) {
      const T shift = i == begin ? LOAD_A(in, (long)segment * p.segment_stride + skip) : mean;
      T sum = 0, squares = 0;
      uint block = 0;
      while (i < end && block < 4096) {
        const int run = min(min(p.length - skip, end - i), 8192u);
        global const A_T* from = in + (long)segment * p.segment_stride + skip;
        DLB_SIMD for (int j = 0; j < run; ++j) {
          const T d = LOAD_A(from, j) - shift;
          sum += d;
          squares += d * d;
        }
        i += run, block += run, skip += run;
        if (skip == p.length) skip = 0, ++segment;
      }
      const T mean_off = sum / (T)block;
      merge(&n, &mean, &m2, (T)block, shift + mean_off, squares - sum * mean_off);
    }
#else
    T sum = 0, squares = 0, shift = 0;
    for (uint i = begin + LANE * each; i < end; i += LANES * each) {
      const uint segment = dlb_divide(i, p.length_divider);
      global const A_T* from = in + (long)segment * p.segment_stride + (i - segment * p.length);
      for (uint j = 0; j < each; ++j) {
        const T v = LOAD_A(from, j);
        if (n == 0) shift = v;
        const T d = v - shift;
        sum += d, squares += d * d, n += 1;
      }
    }
    if (n > 0) mean = shift + sum / n, m2 = squares - sum * (sum / n);
    barrier(CLK_LOCAL_MEM_FENCE);
    merge_group(&n, &mean, &m2, team_scratch, team.lanes, 1);
    if (!at_active || LANE != 0) continue;
#endif
    put(partial, p, split, row, mean, not_negative(m2) / (T)(end - begin));
  }
}

#ifdef DLB_CPU
#define STATS_SCRATCH
#else
#define STATS_SCRATCH local T team_scratch[768];
#endif

kernel void norm_stats_rows(global const A_T* x, global T* partial, const norm_layout p, const dlb_team team) {
  STATS_SCRATCH
  stats_rows(x, partial, p, team, 1 PASS_SCRATCH);
}
#ifdef DLB_GPU
kernel void norm_stats_rows_wide(global const A_T* x, global T* partial, const norm_layout p, const dlb_team team) {
  STATS_SCRATCH
  stats_rows(x, partial, p, team, WIDE PASS_SCRATCH);
}
#endif

// The gradient's two sums over a row: of dy, and of dy * (x - mean). partial: [splits][2][rows].
inline void sums_rows(global const A_T* x, global const A_T* dy, global const T* mean, global T* partial,
                      norm_layout p, dlb_team team, const uint each SCRATCH_PARAMETER) {
  DLB_REASSOCIATE
  partial += p.partial;
  FOR_ROWS(at, team) {
    const uint split = at / p.rows, row = at - split * p.rows;
    const long start = row_start(p, row);
    const T m = mean[p.mean + row / p.mean_group];
    const uint begin = split * p.per_split, end = min(begin + p.per_split, p.count);
    T s1 = 0, s2 = 0;
#ifdef DLB_CPU
    uint segment = begin / p.length, skip = begin - segment * p.length;
    for (uint i = begin; i < end;) {
      const int run = min(min(p.length - skip, end - i), 8192u);
      global const A_T* xs = x + p.x + start + (long)segment * p.segment_stride + skip;
      global const A_T* ds = dy + p.dy + start + (long)segment * p.segment_stride + skip;
      T a = 0, b = 0;
      DLB_SIMD for (int j = 0; j < run; ++j) {
        const T d = LOAD_A(ds, j);
        a += d;
        b += d * (LOAD_A(xs, j) - m);
      }
      s1 += a, s2 += b;
      i += run, skip += run;
      if (skip == p.length) skip = 0, ++segment;
    }
#else
    for (uint i = begin + LANE * each; i < end; i += LANES * each) {
      const uint segment = dlb_divide(i, p.length_divider);
      const long offset = start + (long)segment * p.segment_stride + (i - segment * p.length);
      for (uint j = 0; j < each; ++j) {
        const T d = LOAD_A(dy, p.dy + offset + j);
        s1 += d;
        s2 += d * (LOAD_A(x, p.x + offset + j) - m);
      }
    }
    s1 = team_sum(s1);
    s2 = team_sum(s2);
    if (!at_active || LANE != 0) continue;
#endif
    put(partial, p, split, row, s1, s2);
  }
}

kernel void norm_sums_rows(global const A_T* x, global const A_T* dy, global const T* mean, global const T* rstd,
                           global T* partial, const norm_layout p, const dlb_team team) {
  TEAM_SCRATCH
  sums_rows(x, dy, mean, partial, p, team, 1 PASS_SCRATCH);
}
#ifdef DLB_GPU
kernel void norm_sums_rows_wide(global const A_T* x, global const A_T* dy, global const T* mean,
                                global const T* rstd, global T* partial, const norm_layout p, const dlb_team team) {
  TEAM_SCRATCH
  sums_rows(x, dy, mean, partial, p, team, WIDE PASS_SCRATCH);
}
#endif

// Columns: element i of column c is at i * segment_stride + c. On CPUs a team row is a (split, block of columns), on
// GPUs a work-group is one, with 256 / block work-items a column.
#define MOST_COLUMNS 256

kernel void norm_stats_columns(global const A_T* x, global T* partial, const norm_layout p, const dlb_team team) {
  partial += p.partial;
  const uint blocks = (p.rows + p.block - 1) / p.block;
  x += p.x;
#ifdef DLB_CPU
  FOR_ROWS(at, team) {
    const uint split = at / blocks, first = (at - split * blocks) * p.block;
    const int width = min(p.rows - first, p.block);
    const uint begin = split * p.per_split, end = min(begin + p.per_split, p.count);
    T mean[MOST_COLUMNS], m2[MOST_COLUMNS], sum[MOST_COLUMNS], squares[MOST_COLUMNS];
    for (int j = 0; j < width; ++j) mean[j] = LOAD_A(x, begin * p.segment_stride + first + j), m2[j] = 0;
    for (uint i = begin; i < end;) {
      const uint block_end = min(i + 128, end);
      const T block = block_end - i, before = i - begin, share = block / (before + block);
      for (int j = 0; j < width; ++j) sum[j] = squares[j] = 0;
      for (; i < block_end; ++i) {
        global const A_T* from = x + i * p.segment_stride + first;
        DLB_SIMD for (int j = 0; j < width; ++j) {
          const T d = LOAD_A(from, j) - mean[j];
          sum[j] += d;
          squares[j] += d * d;
        }
      }
      const T inverse = C(1.0) / block;
      DLB_SIMD for (int j = 0; j < width; ++j) {
        const T delta = sum[j] * inverse;
        m2[j] += squares[j] - sum[j] * delta + delta * delta * before * share;
        mean[j] += delta * share;
      }
    }
    const T inverse = C(1.0) / (T)(end - begin);
    for (int j = 0; j < width; ++j) put(partial, p, split, first + j, mean[j], not_negative(m2[j]) * inverse);
  }
#else
  local T scratch[768];
  const uint split = get_group_id(0) / blocks, first = (get_group_id(0) - split * blocks) * p.block;
  const uint lane = get_local_id(0) & (p.block - 1), column = first + lane, lanes = 256 / p.block;
  const uint begin = split * p.per_split, end = min(begin + p.per_split, p.count);
  T n = 0, mean = 0, m2 = 0, sum = 0, squares = 0, shift = 0;
  if (column < p.rows)
    for (uint i = begin + get_local_id(0) / p.block; i < end; i += lanes) {
      const T v = LOAD_A(x, i * p.segment_stride + column);
      if (n == 0) shift = v;
      const T d = v - shift;
      sum += d, squares += d * d, n += 1;
    }
  if (n > 0) mean = shift + sum / n, m2 = squares - sum * (sum / n);
  merge_group(&n, &mean, &m2, scratch, lanes, p.block);
  if (get_local_id(0) < p.block && column < p.rows)
    put(partial, p, split, column, mean, not_negative(m2) / (T)(end - begin));
#endif
}

// Where mean_group is 0 (layer norm) mean and rstd belong to the position i along the column, and the second sum
// is of dy * (x - mean) * rstd.
kernel void norm_sums_columns(global const A_T* x, global const A_T* dy, global const T* mean,
                              global const T* rstd, global T* partial, const norm_layout p, const dlb_team team) {
  partial += p.partial;
  const uint blocks = (p.rows + p.block - 1) / p.block;
  x += p.x;
  dy += p.dy;
  mean += p.mean;
  rstd += p.rstd;
#ifdef DLB_CPU
  FOR_ROWS(at, team) {
    const uint split = at / blocks, first = (at - split * blocks) * p.block;
    const int width = min(p.rows - first, p.block);
    const uint begin = split * p.per_split, end = min(begin + p.per_split, p.count);
    T s1[MOST_COLUMNS], s2[MOST_COLUMNS], m[MOST_COLUMNS];
    for (int j = 0; j < width; ++j) s1[j] = s2[j] = 0, m[j] = p.mean_group ? mean[first + j] : 0;
    for (uint i = begin; i < end; ++i) {
      const long offset = i * p.segment_stride + first;
      const T centre = p.mean_group ? 0 : mean[i], scale = p.mean_group ? 1 : rstd[i];
      DLB_SIMD for (int j = 0; j < width; ++j) {
        const T d = LOAD_A(dy, offset + j);
        s1[j] += d;
        s2[j] += d * ((LOAD_A(x, offset + j) - m[j] - centre) * scale);
      }
    }
    for (int j = 0; j < width; ++j) put(partial, p, split, first + j, s1[j], s2[j]);
  }
#else
  local T scratch[512];
  const uint split = get_group_id(0) / blocks, first = (get_group_id(0) - split * blocks) * p.block;
  const uint id = get_local_id(0), column = first + (id & (p.block - 1));
  const uint begin = split * p.per_split, end = min(begin + p.per_split, p.count);
  T s1 = 0, s2 = 0;
  if (column < p.rows) {
    const T m = p.mean_group ? mean[column] : 0;
    for (uint i = begin + id / p.block; i < end; i += 256 / p.block) {
      const long offset = i * p.segment_stride + column;
      const T d = LOAD_A(dy, offset), centred = LOAD_A(x, offset) - (p.mean_group ? m : mean[i]);
      s1 += d;
      s2 += d * (p.mean_group ? centred : centred * rstd[i]);
    }
  }
  scratch[id] = s1, scratch[256 + id] = s2;
  barrier(CLK_LOCAL_MEM_FENCE);
  if (id < p.block && column < p.rows) {
    for (uint k = p.block; k < 256; k += p.block) s1 += scratch[id + k], s2 += scratch[256 + id + k];
    put(partial, p, split, column, s1, s2);
  }
#endif
}

// What the others are checked against, one work-item per row: the mean and then the deviations from it, added up in
// parts of some hundred. Columns are rows whose runs are of one element.
#define ADD_UP(total, i, count, value)                                                   \
  for (uint i##_begin = 0; i##_begin < count; i##_begin += 256) {                        \
    T part = 0;                                                                          \
    for (uint i = i##_begin; i < min(i##_begin + 256, (uint)count); ++i) part += (value); \
    total += part;                                                                       \
  }
#define ELEMENT(p, i) ((long)((i) / p.length) * p.segment_stride + (i) % p.length)

kernel void norm_stats_reference(global const A_T* x, global T* results, const norm_layout p, const dlb_team team) {
  FOR_ROWS(row, team) {
    if (!row_active) continue;
    global const A_T* in = x + p.x + row_start(p, row);
    T sum = 0, squares = 0;
    ADD_UP(sum, i, p.count, LOAD_A(in, ELEMENT(p, i)))
    const T mean = sum / (T)p.count;
    ADD_UP(squares, i, p.count, (LOAD_A(in, ELEMENT(p, i)) - mean) * (LOAD_A(in, ELEMENT(p, i)) - mean))
    put(results + p.partial, p, 0, row, mean, squares / (T)p.count);
  }
}

kernel void norm_sums_reference(global const A_T* x, global const A_T* dy, global const T* mean,
                                global const T* rstd, global T* results, const norm_layout p, const dlb_team team) {
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
    put(results + p.partial, p, 0, row, s1, s2);
  }
}

typedef struct {
  long mean, rstd, weight, bias, running_mean, running_var, grad_weight, grad_bias;  // offsets; -1: not there
  long partial, coefficients;
  uint rows, splits, count, per_split;
  uint groups, channels, samples, length;  // group norm
  float eps_high, eps_low, momentum_high, momentum_low;  // a double as a sum of floats
  int training, padding;
} norm_finish;

// Merges a row's partial statistics over the splits.
inline void merge_splits(global const T* partial, norm_finish p, uint row, T* mean, T* m2,
                         dlb_team team SCRATCH_PARAMETER) {
  T n = 0;
  for (uint s = LANE; s < p.splits; s += LANES) {
    const T count = min((s + 1) * p.per_split, p.count) - s * p.per_split;
    merge(&n, mean, m2, count, partial[(long)s * 2 * p.rows + row],
          partial[((long)s * 2 + 1) * p.rows + row] * count);
  }
#ifdef DLB_GPU
  merge_group(&n, mean, m2, team_scratch, team.lanes, 1);
#endif
}
inline void add_splits(global const T* partial, norm_finish p, uint row, T* s1, T* s2,
                       dlb_team team SCRATCH_PARAMETER) {
  for (uint s = LANE; s < p.splits; s += LANES) {
    *s1 += partial[(long)s * 2 * p.rows + row];
    *s2 += partial[((long)s * 2 + 1) * p.rows + row];
  }
  *s1 = team_sum(*s1);
  *s2 = team_sum(*s2);
}

// results: [2][rows], of all splits together.
kernel void norm_stats_merge(global const T* partial, global T* results, const norm_finish p, const dlb_team team) {
  STATS_SCRATCH
  FOR_ROWS(row, team) {
    T mean = 0, m2 = 0;
    merge_splits(partial + p.partial, p, row, &mean, &m2, team PASS_SCRATCH);
    if (!row_active || LANE != 0) continue;
    results[p.coefficients + row] = mean;
    results[p.coefficients + p.rows + row] = m2 / (T)p.count;
  }
}
kernel void norm_sums_merge(global const T* partial, global T* results, const norm_finish p, const dlb_team team) {
  TEAM_SCRATCH
  FOR_ROWS(row, team) {
    T s1 = 0, s2 = 0;
    add_splits(partial + p.partial, p, row, &s1, &s2, team PASS_SCRATCH);
    if (!row_active || LANE != 0) continue;
    results[p.coefficients + row] = s1;
    results[p.coefficients + p.rows + row] = s2;
  }
}
#define EPS ((T)p.eps_high + (T)p.eps_low)

// y = (x - mean) * scale + shift, per channel: coefficients [3][channels]. One work-item per channel.
kernel void batch_norm_finish(global const T* partial, global const B_T* weight, global const B_T* bias,
                              global B_T* running_mean, global B_T* running_var, global T* save_mean,
                              global T* save_rstd, global T* coefficients, const norm_finish p,
                              const dlb_team team) {
  partial += p.partial;
  coefficients += p.coefficients;
  STATS_SCRATCH
  const T momentum = (T)p.momentum_high + (T)p.momentum_low;
  FOR_ROWS(c, team) {
    T mean = 0, m2 = 0, rstd;
    if (p.training) merge_splits(partial, p, c, &mean, &m2, team PASS_SCRATCH);
    if (!c_active || LANE != 0) continue;
    if (p.training) {
      rstd = C(1.0) / sqrt(m2 / (T)p.count + EPS);
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
      rstd = C(1.0) / sqrt(LOAD_B(running_var, p.running_var + c) + EPS);
    }
    coefficients[c] = mean;
    coefficients[p.rows + c] = p.weight >= 0 ? rstd * LOAD_B(weight, p.weight + c) : rstd;
    coefficients[2 * p.rows + c] = p.bias >= 0 ? LOAD_B(bias, p.bias + c) : 0;
  }
}

// The statistics the gradient needs, from the running ones: mean and rstd, [2][channels].
kernel void batch_norm_running(global const B_T* running_mean, global const B_T* running_var, global T* stats,
                               const norm_finish p, const dlb_team team) {
  stats += p.coefficients;
  FOR_ROWS(c, team) {
    if (!c_active) continue;
    stats[c] = LOAD_B(running_mean, p.running_mean + c);
    stats[p.rows + c] = C(1.0) / sqrt(LOAD_B(running_var, p.running_var + c) + EPS);
  }
}

// dx = dy * k0 - (k1 + (x - mean) * k2), per channel: coefficients [4][channels] = mean, k0, k1, k2.
kernel void batch_norm_backward_finish(global const T* partial, global const B_T* weight, global const T* mean,
                                       global const T* rstd, global B_T* grad_weight, global B_T* grad_bias,
                                       global T* coefficients, const norm_finish p, const dlb_team team) {
  partial += p.partial;
  coefficients += p.coefficients;
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

typedef struct {
  long x, dy, y, coefficients;  // offsets
  uint outer, rows, inner, per_item;  // x: [outer][rows][inner]; per_item: of `outer` (GPU, columns)
} norm_apply;

// y = (x - mean) * scale + shift and dx = dy * k0 - (k1 + (x - mean) * k2): coefficients [3] or [4][rows].
#define APPLY(i, m, k0, k1, k2)                                                                   \
  STORE_A(out, i, backward ? LOAD_A(grad, i) * (k0) - ((k1) + (LOAD_A(in, i) - (m)) * (k2)) \
                           : (LOAD_A(in, i) - (m)) * (k0) + (k1))

// A team takes a run of `inner` elements.
inline void apply_rows(global const A_T* x, global const A_T* dy, global A_T* y, global const T* k, norm_apply p,
                       dlb_team team, const int backward) {
  k += p.coefficients;
  FOR_ROWS(at, team) {
    if (!at_active) continue;
    const uint row = at % p.rows;
    const T m = k[row], k0 = k[p.rows + row], k1 = k[2 * p.rows + row], k2 = backward ? k[3 * p.rows + row] : 0;
    global const A_T* in = x + p.x + (long)at * p.inner;
    global const A_T* grad = dy + p.dy + (long)at * p.inner;
    global A_T* out = y + p.y + (long)at * p.inner;
    const int length = p.inner;
    DLB_SIMD for (int i = LANE; i < length; i += LANES) APPLY(i, m, k0, k1, k2);
  }
}
kernel void norm_apply_rows(global const A_T* x, global const A_T* dy, global A_T* y, global const T* k,
                            const norm_apply p, const dlb_team team) {
  apply_rows(x, dy, y, k, p, team, 0);
}
kernel void norm_apply_rows_backward(global const A_T* x, global const A_T* dy, global A_T* y, global const T* k,
                                     const norm_apply p, const dlb_team team) {
  apply_rows(x, dy, y, k, p, team, 1);
}

// inner is 1. A CPU work-item takes runs of `rows` neighbours, a GPU work-item per_item elements of one row.
inline void apply_columns(global const A_T* x, global const A_T* dy, global A_T* y, global const T* k, norm_apply p,
                          dlb_team team, const int backward) {
  k += p.coefficients;
  global const T *k0 = k + p.rows, *k1 = k + 2 * p.rows, *k2 = k + (backward ? 3 : 2) * p.rows;
  FOR_ROWS(at, team) {
    if (!at_active) continue;
#ifdef DLB_CPU
    const long start = (long)at * p.rows;
    global const A_T* in = x + p.x + start;
    global const A_T* grad = dy + p.dy + start;
    global A_T* out = y + p.y + start;
    const int rows = p.rows;
    DLB_SIMD for (int i = 0; i < rows; ++i) APPLY(i, k[i], k0[i], k1[i], k2[i]);
#else
    const uint chunk = at / p.rows, row = at - chunk * p.rows;
    const uint first = chunk * p.per_item, last = min(first + p.per_item, p.outer);
    const T m = k[row], c0 = k0[row], c1 = k1[row], c2 = k2[row];
    for (uint o = first; o < last; ++o) {
      const long start = (long)o * p.rows + row;
      global const A_T* in = x + p.x + start;
      global const A_T* grad = dy + p.dy + start;
      global A_T* out = y + p.y + start;
      APPLY(0, m, c0, c1, c2);
    }
#endif
  }
}
kernel void norm_apply_columns(global const A_T* x, global const A_T* dy, global A_T* y, global const T* k,
                               const norm_apply p, const dlb_team team) {
  apply_columns(x, dy, y, k, p, team, 0);
}
kernel void norm_apply_columns_backward(global const A_T* x, global const A_T* dy, global A_T* y, global const T* k,
                                        const norm_apply p, const dlb_team team) {
  apply_columns(x, dy, y, k, p, team, 1);
}

// Sums over the splits, into the gradients of a layer norm's weight and bias.
kernel void layer_norm_finish(global const T* partial, global B_T* grad_weight, global B_T* grad_bias,
                              const norm_finish p, const dlb_team team) {
  partial += p.partial;
  TEAM_SCRATCH
  FOR_ROWS(c, team) {
    T s1 = 0, s2 = 0;
    add_splits(partial, p, c, &s1, &s2, team PASS_SCRATCH);
    if (!c_active || LANE != 0) continue;
    if (p.grad_weight >= 0) STORE_B(grad_weight, p.grad_weight + c, s2);
    if (p.grad_bias >= 0) STORE_B(grad_bias, p.grad_bias + c, s1);
  }
}

// Group norm. rows: samples * groups; coefficients [3][samples * channels]. One work-item per row.
kernel void group_norm_finish(global const T* partial, global const B_T* weight, global const B_T* bias,
                              global T* save_mean, global T* save_rstd, global T* coefficients, const norm_finish p,
                              const dlb_team team) {
  partial += p.partial;
  coefficients += p.coefficients;
  STATS_SCRATCH
  const uint each = p.channels / p.groups, all = p.samples * p.channels;
  FOR_ROWS(row, team) {
    T mean = 0, m2 = 0;
    merge_splits(partial, p, row, &mean, &m2, team PASS_SCRATCH);
    if (!row_active || LANE != 0) continue;
    const T rstd = C(1.0) / sqrt(m2 / (T)p.count + EPS);
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
                                       global const T* rstd, global T* coefficients, const norm_finish p,
                                       const dlb_team team) {
  coefficients += p.coefficients;
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
                                   global B_T* grad_bias, const norm_finish p, const dlb_team team) {
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
