// Sampling an image at the positions that a grid says, and the gradient of the grid. A_T: the element type of all.
#include "vision/grid.clh"

// Range: positions in runs of per_item, and on GPUs as often as there are parts of the channels.
kernel void grid_sample(global const A_T* x, global const A_T* grid, global A_T* y, const GridParams p) {
#ifdef DLB_CPU
  const uint first = get_global_id(0) * p.per_item, end = min(first + p.per_item, p.positions);
  const int c0 = 0, c1 = p.channels;
#else
  const uint part = get_global_id(0) / p.positions, first = get_global_id(0) % p.positions, end = first + 1;
  if (part >= (uint)p.channel_parts) return;
  const int c0 = (int)((long)p.channels * part / p.channel_parts);
  const int c1 = (int)((long)p.channels * (part + 1) / p.channel_parts);
#endif
  for (uint position = first; position < end;) {
    const grid_piece at = piece_of(p, position, end);
    position += at.lanes;
    grid_taps taps;
    int index[TAPS][GRID_LANES];
    T weight[TAPS][GRID_LANES];
    LOAD_GRID_PLACES(LOAD_A, grid, p, at, taps)
    combine_indices(&taps, &p, at.lanes, 0, INT_MAX, index);
    combine_weights(&taps, at.lanes, weight);
    global const A_T* image = x + p.x + at.n * p.xs[0];
    global A_T* to = y + p.y + offset_of(at, p.ys);
#ifdef DLB_CPU
    if (p.xs[1] == 1 && p.channels >= 8) {  // channels lie together
      for (int j = 0; j < at.lanes; ++j)
        for (int c = c0; c < c1; c += GRID_LANES) {
          const int count = min(GRID_LANES, c1 - c);
          T sum[GRID_LANES], outside = 0;
          for (int k = 0; k < TAPS; ++k) outside += index[k][j] < 0 ? weight[k][j] * 0 : 0;
          for (int i = 0; i < count; ++i) sum[i] = outside;
          for (int k = 0; k < TAPS; ++k) {
            if (index[k][j] < 0) continue;
            const T share = weight[k][j];
            global const A_T* from = image + index[k][j] + c;
            DLB_SIMD for (int i = 0; i < count; ++i) sum[i] += share * LOAD_A(from, i);
          }
          for (int i = 0; i < count; ++i) STORE_A(to, (c + i) * p.ys[1] + j * p.ys[4], sum[i]);
        }
      continue;
    }
#endif
    for (int c = c0; c < c1; ++c) {
      global const A_T* from = image + c * p.xs[1];
      T sum[GRID_LANES];
      for (int j = 0; j < at.lanes; ++j) sum[j] = 0;
      for (int k = 0; k < TAPS; ++k) {
        T v[GRID_LANES];
        GATHER(LOAD_A, from, index[k], at.lanes, v)
        DLB_SIMD for (int j = 0; j < at.lanes; ++j) sum[j] += weight[k][j] * (index[k][j] >= 0 ? v[j] : (T)0);
      }
      global A_T* results = to + c * p.ys[1];
      if (p.ys[4] == 1) {
        DLB_SIMD for (int j = 0; j < at.lanes; ++j) STORE_A(results, j, sum[j]);
      } else {
        for (int j = 0; j < at.lanes; ++j) STORE_A(results, j * p.ys[4], sum[j]);
      }
    }
  }
}

// The gradient of the grid, contiguous: for each tap the product of image and gradient is summed over the channels.
kernel void grid_sample_backward_grid(global const A_T* x, global const A_T* grid, global const A_T* y,
                                      global A_T* grid_grad, const GridParams p) {
  const uint first = get_global_id(0) * p.per_item, end = min(first + p.per_item, p.positions);
  for (uint position = first; position < end;) {
    const grid_piece at = piece_of(p, position, end);
    grid_taps taps;
    int index[TAPS][GRID_LANES];
    T sum[TAPS][GRID_LANES];
    LOAD_GRID_TAPS(LOAD_A, grid, p, at, taps)
    combine_indices(&taps, &p, at.lanes, 0, INT_MAX, index);
    for (int k = 0; k < TAPS; ++k)
      for (int j = 0; j < at.lanes; ++j) sum[k][j] = 0;
    for (int c = 0; c < p.channels; ++c) {
      global const A_T* from = x + p.x + at.n * p.xs[0] + c * p.xs[1];
      global const A_T* grad = y + p.y + offset_of(at, p.ys) + c * p.ys[1];
      for (int k = 0; k < TAPS; ++k) {
        T v[GRID_LANES];
        GATHER(LOAD_A, from, index[k], at.lanes, v)
        DLB_SIMD for (int j = 0; j < at.lanes; ++j) sum[k][j] +=
            index[k][j] >= 0 ? LOAD_A(grad, j * p.ys[4]) * v[j] : (T)0;
      }
    }
    for (int axis = 0; axis < AXES; ++axis)
      for (int j = 0; j < at.lanes; ++j) {
        T total = 0;
        for (int k = 0; k < TAPS; ++k) {
          T share = sum[k][j];
          for (int other = 0; other < AXES; ++other) {
            const int tap = neighbour_of(k, other);
            share *= other == axis ? taps.slope[other][tap][j] : taps.weight[other][tap][j];
          }
          total += share;
        }
        STORE_A(grid_grad, p.grid_grad + (position + j) * AXES + axis, total * taps.chain[axis][j]);
      }
    position += at.lanes;
  }
}
