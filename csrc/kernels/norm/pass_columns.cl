// Passes over columns: element i of column c is at i * segment_stride + c. On CPUs a team row is a (split, block of
// columns), on GPUs a work-group is one, with TEAM_GROUP / block work-items a column.
#include "norm/pass.clh"

// Block number `at`: its split, whose elements are from `begin` to `end`, and the first and the number of its columns.
#define BLOCK_OF(at)                                                           \
  const uint blocks = (p.rows + p.block - 1) / p.block, split = (at) / blocks; \
  const uint first = ((at)-split * blocks) * p.block;                          \
  const int width = min(p.rows - first, p.block);                              \
  const uint begin = split * p.per_split, end = min(begin + p.per_split, p.count);

kernel void norm_stats_columns(global const A_T* x, global T* results, const NormPass p, const Team team) {
  x += p.x, results += p.results;
#ifdef DLB_CPU
  FOR_ROWS(at, team) {
    BLOCK_OF(at)
    T mean[NORM_MOST_COLUMNS], m2[NORM_MOST_COLUMNS], sum[NORM_MOST_COLUMNS], squares[NORM_MOST_COLUMNS];
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
    for (int j = 0; j < width; ++j) put(results, p, split, first + j, mean[j], not_negative(m2[j]) * inverse);
  }
#else
  local T scratch[3 * TEAM_GROUP];
  BLOCK_OF((uint)get_group_id(0))
  const uint lane = get_local_id(0) & (p.block - 1), column = first + lane, lanes = TEAM_GROUP / p.block;
  T n = 0, mean = 0, m2 = 0, sum = 0, squares = 0, shift = 0;
  if (column < p.rows)
    for (uint i = begin + get_local_id(0) / p.block; i < end; i += lanes) {
      const T v = LOAD_A(x, i * p.segment_stride + column);
      if (n == 0) shift = v;
      const T d = v - shift;
      sum += d, squares += d * d, n += 1;
      if (n == SHIFT_AFTER) shift_to_mean(n, &shift, &sum, &squares);
    }
  if (n > 0) mean = shift + sum / n, m2 = squares - sum * (sum / n);
  merge_group(&n, &mean, &m2, scratch, lanes, p.block);
  if (get_local_id(0) < p.block && column < p.rows)
    put(results, p, split, column, mean, not_negative(m2) / (T)(end - begin));
#endif
}

// Where mean_group is 0 (layer norm) mean and rstd belong to the position i along the column, and the second sum
// is of dy * (x - mean) * rstd.
kernel void norm_sums_columns(global const A_T* x, global const A_T* dy, global const T* mean, global const T* rstd,
                              global T* results, const NormPass p, const Team team) {
  x += p.x, dy += p.dy, mean += p.mean, rstd += p.rstd, results += p.results;
#ifdef DLB_CPU
  FOR_ROWS(at, team) {
    BLOCK_OF(at)
    T s1[NORM_MOST_COLUMNS], s2[NORM_MOST_COLUMNS], m[NORM_MOST_COLUMNS];
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
    for (int j = 0; j < width; ++j) put(results, p, split, first + j, s1[j], s2[j]);
  }
#else
  local T scratch[2 * TEAM_GROUP];
  BLOCK_OF((uint)get_group_id(0))
  const uint id = get_local_id(0), column = first + (id & (p.block - 1));
  T s1 = 0, s2 = 0;
  if (column < p.rows) {
    const T m = p.mean_group ? mean[column] : 0;
    for (uint i = begin + id / p.block; i < end; i += TEAM_GROUP / p.block) {
      const long offset = i * p.segment_stride + column;
      const T d = LOAD_A(dy, offset), centred = LOAD_A(x, offset) - (p.mean_group ? m : mean[i]);
      s1 += d;
      s2 += d * (p.mean_group ? centred : centred * rstd[i]);
    }
  }
  scratch[id] = s1, scratch[TEAM_GROUP + id] = s2;
  barrier(CLK_LOCAL_MEM_FENCE);
  if (id < p.block && column < p.rows) {
    for (uint k = p.block; k < TEAM_GROUP; k += p.block) s1 += scratch[id + k], s2 += scratch[TEAM_GROUP + id + k];
    put(results, p, split, column, s1, s2);
  }
#endif
}
