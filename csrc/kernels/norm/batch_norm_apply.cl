// The launch that follows a batch norm's pass on GPUs: a work-group computes the coefficients of some channels from the
// pass's results and applies them to a part of these channels. The first group of a block of channels also stores what
// the op gives beside y. Groups repeat each other's few merges, and wait for none.
#include "norm/batch_norm.clh"

enum { AT_ONCE = 4 };  // loads of a work-item before it stores

#define TILE_GROUP                                                                   \
  const uint block = get_group_id(0) % t.blocks, chunk = get_group_id(0) / t.blocks; \
  const uint first = block * t.channels, width = min(t.channels, p.rows - first);    \
  const Team team = {p.rows, 1, t.lanes, 0};                                         \
  const uint mine = get_local_id(0) / t.lanes, c = first + min(mine, width - 1);     \
  const bool is_active = mine < width && LANE == 0;

#define APPLY_TO(at, j) \
  STORE_A(y, at, backward ? grad[u] * k0[j] - (k1[j] + (in[u] - mean[j]) * k2[j]) : (in[u] - mean[j]) * k0[j] + k1[j])

// `mean`, k0, k1 and k2 are the channels' coefficients, the first of which is `first`.
inline void apply_runs(global const A_T* restrict x, global const A_T* restrict dy, global A_T* restrict y,
                       local const T* mean, local const T* k0, local const T* k1, local const T* k2, NormTiles t,
                       uint rows, uint first, uint width, uint chunk, const int backward) {
  const uint run = width * t.length, last = min((chunk + 1) * t.per_group, t.items);
  for (uint item = chunk * t.per_group; item < last; ++item) {
    const uint sample = dlb_divide(item, t.tiles_divider), begin = (item - sample * t.tiles) * t.tile;
    const uint end = min(begin + t.tile, run);
    const long start = ((long)sample * rows + first) * t.length;
    for (uint i = begin + get_local_id(0); i < end; i += AT_ONCE * TEAM_GROUP) {
      T in[AT_ONCE], grad[AT_ONCE];
      for (uint u = 0; u < AT_ONCE; ++u) {
        const uint at = i + u * TEAM_GROUP;
        if (at >= end) continue;
        in[u] = LOAD_A(x, start + at);
        if (backward) grad[u] = LOAD_A(dy, start + at);
      }
      for (uint u = 0; u < AT_ONCE; ++u) {
        const uint at = i + u * TEAM_GROUP;
        if (at >= end) continue;
        const uint j = dlb_divide(at, t.length_divider);
        APPLY_TO(start + at, j);
      }
    }
  }
}

// The same where channels are interleaved: a work-item stays in one channel.
inline void apply_columns(global const A_T* restrict x, global const A_T* restrict dy, global A_T* restrict y,
                          local const T* mean, local const T* k0, local const T* k1, local const T* k2, NormTiles t,
                          uint rows, uint first, uint width, uint chunk, const int backward) {
  const uint j = get_local_id(0) & (t.channels - 1), apart = TEAM_GROUP / t.channels;
  const uint last = min((chunk + 1) * t.per_group, t.items);
  if (j >= width) return;
  for (uint i = chunk * t.per_group + get_local_id(0) / t.channels; i < last; i += AT_ONCE * apart) {
    T in[AT_ONCE], grad[AT_ONCE];
    for (uint u = 0; u < AT_ONCE; ++u) {
      const uint at = i + u * apart;
      if (at >= last) continue;
      in[u] = LOAD_A(x, (long)at * rows + first + j);
      if (backward) grad[u] = LOAD_A(dy, (long)at * rows + first + j);
    }
    for (uint u = 0; u < AT_ONCE; ++u) {
      const uint at = i + u * apart;
      if (at >= last) continue;
      APPLY_TO((long)at * rows + first + j, j);
    }
  }
}

inline void apply(global const A_T* x, global const A_T* dy, global A_T* y, local const T* mean, local const T* k0,
                  local const T* k1, local const T* k2, NormTiles t, uint rows, uint first, uint width, uint chunk,
                  const int backward) {
  if (t.length == 1) apply_columns(x, dy, y, mean, k0, k1, k2, t, rows, first, width, chunk, backward);
  else apply_runs(x, dy, y, mean, k0, k1, k2, t, rows, first, width, chunk, backward);
}

kernel void batch_norm_apply(global const A_T* x, global A_T* y, global const T* partial, global const B_T* weight,
                             global const B_T* bias, global B_T* running_mean, global B_T* running_var,
                             global T* save_mean, global T* save_rstd, const NormFinish p, const NormTiles t) {
  STATS_SCRATCH
  local T means[TEAM_GROUP], scales[TEAM_GROUP], shifts[TEAM_GROUP];
  TILE_GROUP
  T mean = 0, m2 = 0;
  if (p.training) merge_splits(partial, p, c, &mean, &m2, team PASS_SCRATCH);
  if (is_active) {
    const Forward k =
        forward_of(c, mean, m2, weight, bias, running_mean, running_var, save_mean, save_rstd, p, chunk == 0);
    means[mine] = k.mean, scales[mine] = k.scale, shifts[mine] = k.shift;
  }
  barrier(CLK_LOCAL_MEM_FENCE);
  apply(x + p.x, x, y + p.results, means, scales, shifts, shifts, t, p.rows, first, width, chunk, 0);
}

kernel void batch_norm_apply_backward(global const A_T* x, global const A_T* dy, global A_T* dx,
                                      global const T* partial, global const B_T* weight, global const T* mean,
                                      global const T* rstd, global B_T* grad_weight, global B_T* grad_bias,
                                      const NormFinish p, const NormTiles t) {
  TEAM_SCRATCH
  local T means[TEAM_GROUP], k0[TEAM_GROUP], k1[TEAM_GROUP], k2[TEAM_GROUP];
  TILE_GROUP
  T s1 = 0, s2 = 0;
  add_splits(partial, p, c, &s1, &s2, team PASS_SCRATCH);
  if (is_active) {
    const Backward k = backward_of(c, s1, s2, weight, mean, rstd, grad_weight, grad_bias, p, chunk == 0);
    means[mine] = k.mean, k0[mine] = k.k0, k1[mine] = k.k1, k2[mine] = k.k2;
  }
  barrier(CLK_LOCAL_MEM_FENCE);
  apply(x + p.x, dy + p.dy, dx + p.results, means, k0, k1, k2, t, p.rows, first, width, chunk, 1);
}
