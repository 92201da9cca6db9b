// Interpolating on GPUs where the neighbours of a row lie together. A work-item has one position of some planes (channels of
// an image), for which taps and weights are the same.
//
// Build-time macros: TAPS along each of the last AXES axes, 2 or 4; constants, so that what is known of a tap stays in
// registers.
#include "common/next.clh"
#include "upsample/taps.clh"

#define TAPS_D (AXES == 3 ? TAPS : 1)
#define TAPS_H (AXES >= 2 ? TAPS : 1)
kernel void resize_planes(global const A_T* x, global A_T* y, const ResizePlanes p) {
  uint rest = get_global_id(0);
  if (rest >= p.items) return;
  const int w = dlb_next(&rest, p.width), h = dlb_next(&rest, p.height), d = dlb_next(&rest, p.depth);
  int at[3][4];
  REAL of[3][4];
  taps_at(p.axis[0], d, at[0], of[0]);
  taps_at(p.axis[1], h, at[1], of[1]);
  taps_at(p.axis[2], w, at[2], of[2]);
  const uint first = rest * p.per_item, end = min(first + p.per_item, p.planes);
  x += p.x, y += p.y + d * p.ys[2] + h * p.ys[3] + w * p.ys[4];
  for (uint plane = first; plane < end; ++plane) {
    const uint n = dlb_divide(plane, p.channels), c = plane - n * p.channels.divisor;
    global const A_T* in = x + n * p.xs[0] + c * p.xs[1];
    T sum = 0;
#pragma unroll
    for (int i = 0; i < TAPS_D; ++i)
#pragma unroll
      for (int j = 0; j < TAPS_H; ++j)
#pragma unroll
        for (int k = 0; k < TAPS; ++k) {
          const T weight = of[0][i] * of[1][j] * of[2][k];
          sum += weight * LOAD_A(in, at[0][i] * p.xs[2] + at[1][j] * p.xs[3] + at[2][k] * p.xs[4]);
        }
    STORE_A(y, n * p.ys[0] + c * p.ys[1], sum);
  }
}
