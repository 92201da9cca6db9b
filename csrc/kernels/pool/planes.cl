// Gradients of pooling on CPUs, a contiguous plane of the input's gradient per row, in the order of the outputs: for
// types that hold a running sum exactly enough (float, double).
#include "pool/pool.clh"

kernel void max_pool_planes(global A_T* x, global const A_T* y, global const long* index, const PoolParams p,
                            const Team team) {
  const int in_size = p.axis[0].in * p.axis[1].in * p.axis[2].in;
  const int out_size = p.axis[0].out * p.axis[1].out * p.axis[2].out;
  FOR_ROWS(plane, team) {
    global A_T* to = x + p.x + (long)plane * in_size;
    global const A_T* from = y + p.y + (long)plane * out_size;
    global const long* place = index + p.index + (long)plane * out_size;
    for (int i = 0; i < in_size; ++i) to[i] = 0;
    for (int o = 0; o < out_size; ++o)
      if ((ulong)place[o] < (ulong)in_size) to[place[o]] += from[o];
  }
}
kernel void avg_pool_planes(global A_T* x, global const A_T* y, const PoolParams p, const Team team) {
  const PoolAxisParams ad = p.axis[0], ah = p.axis[1], aw = p.axis[2];
  const int in_size = ad.in * ah.in * aw.in;
  FOR_ROWS(plane, team) {
    global A_T* to = x + p.x + (long)plane * in_size;
    global const A_T* from = y + p.y + (long)plane * (ad.out * ah.out * aw.out);
    for (int i = 0; i < in_size; ++i) to[i] = 0;
    for (int od = 0; od < ad.out; ++od)
      for (int oh = 0; oh < ah.out; ++oh) {
        int d0, d1, h0, h1, w0, w1, ds, hs, ws;
        window(ad, od, p.count_include_pad, &d0, &d1, &ds);
        window(ah, oh, p.count_include_pad, &h0, &h1, &hs);
        for (int ow = 0; ow < aw.out; ++ow) {
          window(aw, ow, p.count_include_pad, &w0, &w1, &ws);
          const T share = *from++ / (T)(p.divisor ? p.divisor : ds * hs * ws);
          for (int d = d0; d < d1; ++d)
            for (int h = h0; h < h1; ++h)
              for (int w = w0; w < w1; ++w) to[(d * ah.in + h) * aw.in + w] += share;
        }
      }
  }
}
