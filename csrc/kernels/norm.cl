// Statistics and gradients of batch, group, layer and RMS normalisation. A_T: the input's type (also grad_output's
// and the results'), B_T: that of weights, biases and running statistics; saved statistics and scratch are T.
//
// A "row" is what shares one mean. For `rows` kernels it is `segments` contiguous runs of `length` elements
// (batch norm over N x C x L: one run per sample); for `columns` kernels rows are interleaved element by element
// (channels-last). Either is cut into `splits` parts with a partial result each, which finish kernels merge:
// means and squared deviations by Chan, Golub and LeVeque, "Updating formulae and a pairwise algorithm for
// computing sample variances" (1979), so that a large mean costs no accuracy.
#include "team.clh"

typedef struct {
  long x, dy, mean, rstd, partial;  // offsets
  long outer_stride, inner_stride, segment_stride;
  uint inner_rows;         // row r starts at r / inner_rows * outer_stride + r % inner_rows * inner_stride
  uint rows;               // number of rows (columns: of interleaved columns)
  uint length;             // of a run (columns: unused)
  uint count;              // elements of a row
  uint per_split;          // elements of a row in one split
  uint mean_group;         // rows that share mean and rstd; 0: they belong to the position in the row (layer norm)
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

inline long row_start(norm_layout p, uint row) {
  return (long)(row / p.inner_rows) * p.outer_stride + (long)(row % p.inner_rows) * p.inner_stride;
}

// partial: [splits][2][rows], mean then squared deviations. Team row: split * rows + row.
kernel void norm_stats_rows(global const A_T* x, global T* partial, const norm_layout p, const dlb_team team) {
  DLB_REASSOCIATE
  partial += p.partial;
#ifdef DLB_GPU
  local T scratch[768];
#endif
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
    for (uint i = begin + LANE; i < end; i += LANES) {
      const uint segment = dlb_divide(i, p.length_divider);
      const T v = LOAD_A(in, (long)segment * p.segment_stride + (i - segment * p.length));
      if (n == 0) shift = v;
      const T d = v - shift;
      sum += d, squares += d * d, n += 1;
    }
    if (n > 0) mean = shift + sum / n, m2 = squares - sum * (sum / n);
    barrier(CLK_LOCAL_MEM_FENCE);
    merge_group(&n, &mean, &m2, scratch, team.lanes, 1);
    if (!at_active || LANE != 0) continue;
#endif
    partial[(long)split * 2 * p.rows + row] = mean;
    partial[((long)split * 2 + 1) * p.rows + row] = max(m2, (T)0);
  }
}

// The gradient's two sums over a row: of dy, and of dy * (x - mean). partial: [splits][2][rows].
kernel void norm_sums_rows(global const A_T* x, global const A_T* dy, global const T* mean, global T* partial,
                           const norm_layout p, const dlb_team team) {
  DLB_REASSOCIATE
  partial += p.partial;
  TEAM_SCRATCH
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
    for (uint i = begin + LANE; i < end; i += LANES) {
      const uint segment = dlb_divide(i, p.length_divider);
      const long offset = start + (long)segment * p.segment_stride + (i - segment * p.length);
      const T d = LOAD_A(dy, p.dy + offset);
      s1 += d;
      s2 += d * (LOAD_A(x, p.x + offset) - m);
    }
    s1 = team_sum(s1);
    s2 = team_sum(s2);
    if (!at_active || LANE != 0) continue;
#endif
    partial[(long)split * 2 * p.rows + row] = s1;
    partial[((long)split * 2 + 1) * p.rows + row] = s2;
  }
}

// Columns: element i of column c is at i * segment_stride + c. On CPUs a team row is a (split, block of 64 columns),
// on GPUs a work-group is a (split, 32 columns) with 8 work-items a column.
#ifdef DLB_CPU
#define COLUMN_BLOCK 64
#else
#define COLUMN_BLOCK 32
#define COLUMN_LANES 8
#endif

kernel void norm_stats_columns(global const A_T* x, global T* partial, const norm_layout p, const dlb_team team) {
  partial += p.partial;
  const uint blocks = (p.rows + COLUMN_BLOCK - 1) / COLUMN_BLOCK;
  x += p.x;
#ifdef DLB_CPU
  FOR_ROWS(at, team) {
    const uint split = at / blocks, first = (at - split * blocks) * COLUMN_BLOCK;
    const int width = min(p.rows - first, (uint)COLUMN_BLOCK);
    const uint begin = split * p.per_split, end = min(begin + p.per_split, p.count);
    T mean[COLUMN_BLOCK], m2[COLUMN_BLOCK], sum[COLUMN_BLOCK], squares[COLUMN_BLOCK];
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
    for (int j = 0; j < width; ++j) {
      partial[(long)split * 2 * p.rows + first + j] = mean[j];
      partial[((long)split * 2 + 1) * p.rows + first + j] = max(m2[j], (T)0);
    }
  }
#else
  local T scratch[768];
  const uint split = get_group_id(0) / blocks, first = (get_group_id(0) - split * blocks) * COLUMN_BLOCK;
  const uint lane = get_local_id(0) % COLUMN_BLOCK, column = first + lane;
  const uint begin = split * p.per_split, end = min(begin + p.per_split, p.count);
  T n = 0, mean = 0, m2 = 0, sum = 0, squares = 0, shift = 0;
  if (column < p.rows)
    for (uint i = begin + get_local_id(0) / COLUMN_BLOCK; i < end; i += COLUMN_LANES) {
      const T v = LOAD_A(x, i * p.segment_stride + column);
      if (n == 0) shift = v;
      const T d = v - shift;
      sum += d, squares += d * d, n += 1;
    }
  if (n > 0) mean = shift + sum / n, m2 = squares - sum * (sum / n);
  merge_group(&n, &mean, &m2, scratch, COLUMN_LANES, COLUMN_BLOCK);
  if (get_local_id(0) < COLUMN_BLOCK && column < p.rows) {
    partial[(long)split * 2 * p.rows + column] = mean;
    partial[((long)split * 2 + 1) * p.rows + column] = max(m2, (T)0);
  }
#endif
}

// Where mean_group is 0 (layer norm) mean and rstd belong to the position i along the column, and the second sum
// is of dy * (x - mean) * rstd.
kernel void norm_sums_columns(global const A_T* x, global const A_T* dy, global const T* mean,
                              global const T* rstd, global T* partial, const norm_layout p, const dlb_team team) {
  partial += p.partial;
  const uint blocks = (p.rows + COLUMN_BLOCK - 1) / COLUMN_BLOCK;
  x += p.x;
  dy += p.dy;
  mean += p.mean;
  rstd += p.rstd;
#ifdef DLB_CPU
  FOR_ROWS(at, team) {
    const uint split = at / blocks, first = (at - split * blocks) * COLUMN_BLOCK;
    const int width = min(p.rows - first, (uint)COLUMN_BLOCK);
    const uint begin = split * p.per_split, end = min(begin + p.per_split, p.count);
    T s1[COLUMN_BLOCK], s2[COLUMN_BLOCK], m[COLUMN_BLOCK];
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
    for (int j = 0; j < width; ++j) {
      partial[(long)split * 2 * p.rows + first + j] = s1[j];
      partial[((long)split * 2 + 1) * p.rows + first + j] = s2[j];
    }
  }
#else
  local T scratch[512];
  const uint split = get_group_id(0) / blocks, first = (get_group_id(0) - split * blocks) * COLUMN_BLOCK;
  const uint id = get_local_id(0), column = first + id % COLUMN_BLOCK;
  const uint begin = split * p.per_split, end = min(begin + p.per_split, p.count);
  T s1 = 0, s2 = 0;
  if (column < p.rows) {
    const T m = p.mean_group ? mean[column] : 0;
    for (uint i = begin + id / COLUMN_BLOCK; i < end; i += COLUMN_LANES) {
      const long offset = i * p.segment_stride + column;
      const T d = LOAD_A(dy, offset), centred = LOAD_A(x, offset) - (p.mean_group ? m : mean[i]);
      s1 += d;
      s2 += d * (p.mean_group ? centred : centred * rstd[i]);
    }
  }
  scratch[id] = s1, scratch[256 + id] = s2;
  barrier(CLK_LOCAL_MEM_FENCE);
  if (id < COLUMN_BLOCK && column < p.rows) {
    for (uint k = COLUMN_BLOCK; k < 256; k += COLUMN_BLOCK) s1 += scratch[id + k], s2 += scratch[256 + id + k];
    partial[(long)split * 2 * p.rows + column] = s1;
    partial[((long)split * 2 + 1) * p.rows + column] = s2;
  }
#endif
}

typedef struct {
  long mean, rstd, weight, bias, running_mean, running_var, grad_weight, grad_bias;  // offsets; -1: not there
  long partial, coefficients;
  uint rows, splits, count, per_split;
  uint groups, channels, samples, length;  // group norm
  float eps_high, eps_low, momentum_high, momentum_low;  // a double as a sum of floats
  int training, padding;
} norm_finish;

// Merge a row's partial statistics, or sums, over the splits.
#ifdef DLB_CPU
#define STATS_SCRATCH
#define merged_stats(partial, p, row, mean, m2) merge_splits(partial, p, row, mean, m2, team)
inline void merge_splits(global const T* partial, norm_finish p, uint row, T* mean, T* m2, dlb_team team) {
#else
#define STATS_SCRATCH local T stats_scratch[768];
#define merged_stats(partial, p, row, mean, m2) merge_splits(partial, p, row, mean, m2, stats_scratch, team)
inline void merge_splits(global const T* partial, norm_finish p, uint row, T* mean, T* m2, local T* scratch,
                         dlb_team team) {
#endif
  T n = 0;
  for (uint s = LANE; s < p.splits; s += LANES)
    merge(&n, mean, m2, (T)(min((s + 1) * p.per_split, p.count) - s * p.per_split),
          partial[(long)s * 2 * p.rows + row], partial[((long)s * 2 + 1) * p.rows + row]);
#ifdef DLB_GPU
  merge_group(&n, mean, m2, scratch, team.lanes, 1);
#endif
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
    if (p.training) merged_stats(partial, p, c, &mean, &m2);
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
    for (uint s = LANE; s < p.splits; s += LANES) {
      s1 += partial[(long)s * 2 * p.rows + c];
      s2 += partial[((long)s * 2 + 1) * p.rows + c];
    }
    s1 = team_sum(s1);
    s2 = team_sum(s2);
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

// Sums over the splits, into the gradients of a layer norm's weight and bias.
kernel void layer_norm_finish(global const T* partial, global B_T* grad_weight, global B_T* grad_bias,
                              const norm_finish p, const dlb_team team) {
  partial += p.partial;
  TEAM_SCRATCH
  FOR_ROWS(c, team) {
    T s1 = 0, s2 = 0;
    for (uint s = LANE; s < p.splits; s += LANES) {
      s1 += partial[(long)s * 2 * p.rows + c];
      s2 += partial[((long)s * 2 + 1) * p.rows + c];
    }
    s1 = team_sum(s1);
    s2 = team_sum(s2);
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
    merged_stats(partial, p, row, &mean, &m2);
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

typedef struct {
  long x, y, dy, mean, rstd, weight, bias;  // offsets; -1: not there
  int length, centred;                      // centred: layer norm, else RMS norm
  float eps_high, eps_low;
} layer_params;

// Layer and RMS norm: a row is one contiguous run, read three times from the cache.
kernel void layer_norm_rows(global const A_T* x, global const B_T* weight, global const B_T* bias, global A_T* y,
                            global T* mean, global T* rstd, const layer_params p, const dlb_team team) {
  DLB_REASSOCIATE
  TEAM_SCRATCH
  weight += p.weight;
  bias += p.bias;
  FOR_ROWS(row, team) {
    global const A_T* in = x + p.x + (long)row * p.length;
    global A_T* out = y + p.y + (long)row * p.length;
    T m = 0, part = 0;
    if (p.centred) {
      DLB_SIMD for (int i = LANE; i < p.length; i += LANES) part += LOAD_A(in, i);
      m = team_sum(part) / (T)p.length;
    }
    part = 0;
    DLB_SIMD for (int i = LANE; i < p.length; i += LANES) {
      const T d = LOAD_A(in, i) - m;
      part += d * d;
    }
    const T r = C(1.0) / sqrt(team_sum(part) / (T)p.length + EPS);
    if (!row_active) continue;
    if (LANE == 0) {
      if (p.mean >= 0) mean[p.mean + row] = m;
      rstd[p.rstd + row] = r;
    }
    if (p.weight >= 0 && p.bias >= 0) {
      DLB_SIMD for (int i = LANE; i < p.length; i += LANES)
          STORE_A(out, i, (LOAD_A(in, i) - m) * r * LOAD_B(weight, i) + LOAD_B(bias, i));
    } else if (p.weight >= 0) {
      DLB_SIMD for (int i = LANE; i < p.length; i += LANES)
          STORE_A(out, i, (LOAD_A(in, i) - m) * r * LOAD_B(weight, i));
    } else if (p.bias >= 0) {
      DLB_SIMD for (int i = LANE; i < p.length; i += LANES)
          STORE_A(out, i, (LOAD_A(in, i) - m) * r + LOAD_B(bias, i));
    } else {
      DLB_SIMD for (int i = LANE; i < p.length; i += LANES) STORE_A(out, i, (LOAD_A(in, i) - m) * r);
    }
  }
}

kernel void layer_norm_rows_backward(global const A_T* x, global const A_T* dy, global const B_T* weight,
                                     global const T* mean, global const T* rstd, global A_T* dx,
                                     const layer_params p, const dlb_team team) {
  DLB_REASSOCIATE
  TEAM_SCRATCH
  weight += p.weight;
  FOR_ROWS(row, team) {
    global const A_T* in = x + p.x + (long)row * p.length;
    global const A_T* grad = dy + p.dy + (long)row * p.length;
    global A_T* out = dx + p.y + (long)row * p.length;
    const T m = p.mean >= 0 ? mean[p.mean + row] : 0, r = rstd[p.rstd + row];
    T s1 = 0, s2 = 0;
    if (p.weight >= 0) {
      DLB_SIMD for (int i = LANE; i < p.length; i += LANES) {
        const T g = LOAD_A(grad, i) * LOAD_B(weight, i);
        s1 += g;
        s2 += g * (LOAD_A(in, i) - m);
      }
    } else {
      DLB_SIMD for (int i = LANE; i < p.length; i += LANES) {
        const T g = LOAD_A(grad, i);
        s1 += g;
        s2 += g * (LOAD_A(in, i) - m);
      }
    }
    const T k1 = p.centred ? team_sum(s1) / (T)p.length : 0;
    const T k2 = team_sum(s2) / (T)p.length * r * r;
    if (!row_active) continue;
    if (p.weight >= 0) {
      DLB_SIMD for (int i = LANE; i < p.length; i += LANES)
          STORE_A(out, i, (LOAD_A(grad, i) * LOAD_B(weight, i) - k1 - (LOAD_A(in, i) - m) * k2) * r);
    } else {
      DLB_SIMD for (int i = LANE; i < p.length; i += LANES)
          STORE_A(out, i, (LOAD_A(grad, i) - k1 - (LOAD_A(in, i) - m) * k2) * r);
    }
  }
}
