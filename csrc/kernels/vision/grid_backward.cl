// The gradient of the image that grid.cl samples. A_T: its element type, which is T, B_T: that of the others.
#include "common/owners.clh"
#include "vision/grid.clh"

// The gradient of the input is added to x, which is of T.
kernel void grid_sample_backward_input(global A_T* x, global const B_T* grid, global const B_T* y, const GridParams p,
                                       const Owners owners) {
  const dlb_owner own = owner_of(owners, get_global_id(0));
  for (uint position = own.first; position < own.end;) {
    const grid_piece at = piece_of(p, position, own.end);
    position += at.lanes;
    grid_taps taps;
    int index[TAPS][GRID_LANES];
    T weight[TAPS][GRID_LANES];
    LOAD_GRID_TAPS(LOAD_B, grid, p, at, taps)
    combine_indices(&taps, &p, at.lanes, own.r0, own.r1, index);
    combine_weights(&taps, at.lanes, weight);
    for (int c = own.c0; c < own.c1; ++c) {
      global A_T* to = x + p.x + at.n * p.xs[0] + c * p.xs[1];
      global const B_T* grad = y + p.y + offset_of(at, p.ys) + c * p.ys[1];
      for (int j = 0; j < at.lanes; ++j) {
        const T g = LOAD_B(grad, j * p.ys[4]);
        for (int k = 0; k < TAPS; ++k)
          if (index[k][j] >= 0) add_to(to, index[k][j], weight[k][j] * g);
      }
    }
  }
}
