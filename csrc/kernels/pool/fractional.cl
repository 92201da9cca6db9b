// Fractional max pooling over two or three axes: windows of one size, at places that come from random numbers. A_T: the
// element type, of the samples too. A work-item takes outputs of contiguous planes.
#include "kernels/pool/params.h"

// The CPU computes places in the element type, and they must be the same.
inline T rounded(T v) {
  A_T element;
  STORE_A(&element, 0, v);
  return LOAD_A(&element, 0);
}

kernel void fractional_max_pool(global const A_T* x, global const A_T* samples, global A_T* y, global long* index,
                                const FractionalParams p) {
  const uint begin = get_global_id(0) * p.per_item, end = min(begin + p.per_item, p.count);
  T sample[3], step[3];
  int shift[3];
  uint known = ~0u;  // the plane that these are of
  for (uint o = begin; o < end; ++o) {
    uint at[3], plane = o;
    int start[3];
    for (int axis = 2; axis >= 0; --axis) {
      const uint rest = dlb_divide(plane, p.out[axis]);
      at[axis] = plane - rest * p.out[axis].divisor;
      plane = rest;
    }
    for (int axis = 0; axis < 3; ++axis) {
      const int out = p.out[axis].divisor, room = p.in[axis] - p.size[axis];
      if (plane != known) {
        sample[axis] = p.sample[axis] < 0 ? 0 : LOAD_A(samples, p.samples + plane * (long)p.axes + p.sample[axis]);
        step[axis] = out > 1 ? rounded((T)room / (T)(out - 1)) : 0;
        shift[axis] = (int)rounded(sample[axis] * step[axis]);
      }
      const T place = rounded(rounded((T)at[axis] + sample[axis]) * step[axis]);
      start[axis] = (int)at[axis] == out - 1 ? room : (int)place - shift[axis];
    }
    known = plane;
    T best = T_LOWEST;
    long place = ((long)start[0] * p.in[1] + start[1]) * p.in[2] + start[2];
    global const A_T* from = x + p.x + (long)plane * p.in[0] * p.in[1] * p.in[2];
    for (int d = start[0]; d < start[0] + p.size[0]; ++d)
      for (int h = start[1]; h < start[1] + p.size[1]; ++h)
        for (int w = start[2]; w < start[2] + p.size[2]; ++w) {
          const long here = ((long)d * p.in[1] + h) * p.in[2] + w;
          const T v = LOAD_A(from, here);
          if (v > best || v != v) best = v, place = here;
        }
    STORE_A(y, p.y + o, best);
    index[p.index + o] = place;
  }
}
