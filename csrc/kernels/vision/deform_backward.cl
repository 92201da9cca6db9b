// The gradient of a deformable convolution's input, added to x, a tensor of T. A_T: T, B_T: the type of the others.
#define PLACE_T B_T
#define LOAD_PLACE LOAD_B
#include "common/team.clh"
#include "common/owners.clh"
#include "vision/deform.clh"

// columns: their gradient.
kernel void deform_backward_input(global A_T* x, global const B_T* offsets, global const B_T* masks,
                                  global const B_T* columns, const DeformParams p, const Owners owners) {
  const dlb_owner own = owner_of(owners, get_global_id(0));
  for (uint position = own.first; position < own.end;) {
    const deform_piece at = piece_of(&p, position, own.end);
    position += at.lanes;
    const int c0 = max(own.c0, first_channel_of(&p, at.group)), c1 = min(own.c1, first_channel_of(&p, at.group + 1));
    if (c0 >= c1) continue;
    deform_taps taps;
    T mask[DEFORM_LANES];
    load_taps(offsets, &p, at, own.r0, own.r1, &taps);
    load_masks(masks, &p, at, mask);
    for (int c = c0; c < c1; ++c) {
      global A_T* image = x + p.x + at.n * p.xs[0] + c * p.xs[1];
      const long from = column_of(&p, at, c);
      for (int j = 0; j < at.lanes; ++j) {
        const T g = LOAD_B(columns, from + j) * mask[j];
        for (int k = 0; k < 4; ++k)
          if (taps.index[k][j] >= 0) add_to(image, taps.index[k][j], taps.weight[k][j] * g);
      }
    }
  }
}
