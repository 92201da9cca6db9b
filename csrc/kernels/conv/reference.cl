// Convolution and its gradients for any dtype and layout, one work-item per output. Slow and plain.
// The forward pass takes x and w of types of their own, A_T and B_T.
#include "common/operands.clh"
#include "kernels/conv/params.h"
#ifdef A_NARROW
#define LOAD_X(p, i) ((ACC)(p)[i])
#else
#define LOAD_X LOAD
#endif
#ifdef B_NARROW
#define LOAD_W(p, i) ((ACC)(p)[i])
#else
#define LOAD_W LOAD
#endif

kernel void conv_reference_forward(global const A_T* x, long ox, global const B_T* w, long ow, global C_T* y, long oy,
                                   global const T* bias, long ob, ConvShape p EPILOGUE_PARAMETERS) {
  long id = get_global_id(0);
  const int q2 = id % p.out[2], q1 = (id /= p.out[2]) % p.out[1], q0 = (id /= p.out[1]) % p.out[0];
  const int k = (id /= p.out[0]) % p.k, n = id / p.k;
  if (n >= p.n) return;
  const int cg = p.c / p.groups, c0 = k / (p.k / p.groups) * cg;
  ACC sum = ZERO;
  for (int c = 0; c < cg; c++)
    for (int f0 = 0; f0 < p.filter[0]; f0++)
      for (int f1 = 0; f1 < p.filter[1]; f1++)
        for (int f2 = 0; f2 < p.filter[2]; f2++) {
          const int i0 = q0 * p.stride[0] - p.padding[0] + f0 * p.dilation[0];
          const int i1 = q1 * p.stride[1] - p.padding[1] + f1 * p.dilation[1];
          const int i2 = q2 * p.stride[2] - p.padding[2] + f2 * p.dilation[2];
          if (i0 < 0 || i0 >= p.in[0] || i1 < 0 || i1 >= p.in[1] || i2 < 0 || i2 >= p.in[2]) continue;
          sum += MUL(LOAD_X(x, ox + n * p.xs[0] + (c0 + c) * p.xs[1] + i0 * p.xs[2] + i1 * p.xs[3] + i2 * p.xs[4]),
                     LOAD_W(w, ow + k * p.ws[0] + c * p.ws[1] + f0 * p.ws[2] + f1 * p.ws[3] + f2 * p.ws[4]));
        }
  if (p.has_bias) sum += LOAD(bias, ob + k);
  const long at = n * p.ys[0] + k * p.ys[1] + q0 * p.ys[2] + q1 * p.ys[3] + q2 * p.ys[4];
  STORE_C(FINISH(sum, p.low, p.high, at, 0, k), y, oy + at);
}

kernel void conv_reference_input_grad(global T* x, long ox, global const T* w, long ow, global const T* y, long oy,
                                      global const T* bias, long ob, ConvShape p) {
  long id = get_global_id(0);
  const int i2 = id % p.in[2], i1 = (id /= p.in[2]) % p.in[1], i0 = (id /= p.in[1]) % p.in[0];
  const int c = (id /= p.in[0]) % p.c, n = id / p.c;
  if (n >= p.n) return;
  const int cg = p.c / p.groups, kg = p.k / p.groups, k0 = c / cg * kg;
  ACC sum = ZERO;
  for (int f0 = 0; f0 < p.filter[0]; f0++)
    for (int f1 = 0; f1 < p.filter[1]; f1++)
      for (int f2 = 0; f2 < p.filter[2]; f2++) {
        const int s0 = i0 + p.padding[0] - f0 * p.dilation[0], q0 = s0 / p.stride[0];
        const int s1 = i1 + p.padding[1] - f1 * p.dilation[1], q1 = s1 / p.stride[1];
        const int s2 = i2 + p.padding[2] - f2 * p.dilation[2], q2 = s2 / p.stride[2];
        if (s0 < 0 || s1 < 0 || s2 < 0 || q0 * p.stride[0] != s0 || q1 * p.stride[1] != s1 || q2 * p.stride[2] != s2 ||
            q0 >= p.out[0] || q1 >= p.out[1] || q2 >= p.out[2])
          continue;
        for (int k = k0; k < k0 + kg; k++)
          sum += MUL(LOAD(y, oy + n * p.ys[0] + k * p.ys[1] + q0 * p.ys[2] + q1 * p.ys[3] + q2 * p.ys[4]),
                     LOAD(w, ow + k * p.ws[0] + c % cg * p.ws[1] + f0 * p.ws[2] + f1 * p.ws[3] + f2 * p.ws[4]));
      }
  if (p.has_bias) sum += LOAD(bias, ob + c);
  STORE(sum, x, ox + n * p.xs[0] + c * p.xs[1] + i0 * p.xs[2] + i1 * p.xs[3] + i2 * p.xs[4]);
}

kernel void conv_reference_weight_grad(global const T* x, long ox, global T* w, long ow, global const T* y, long oy,
                                       global const T* bias, long ob, ConvShape p) {
  long id = get_global_id(0);
  const int cg = p.c / p.groups;
  const int f2 = id % p.filter[2], f1 = (id /= p.filter[2]) % p.filter[1], f0 = (id /= p.filter[1]) % p.filter[0];
  const int c = (id /= p.filter[0]) % cg, k = id / cg;
  if (k >= p.k) return;
  const int cx = k / (p.k / p.groups) * cg + c;
  ACC sum = ZERO;
  for (int n = 0; n < p.n; n++)
    for (int q0 = 0; q0 < p.out[0]; q0++)
      for (int q1 = 0; q1 < p.out[1]; q1++)
        for (int q2 = 0; q2 < p.out[2]; q2++) {
          const int i0 = q0 * p.stride[0] - p.padding[0] + f0 * p.dilation[0];
          const int i1 = q1 * p.stride[1] - p.padding[1] + f1 * p.dilation[1];
          const int i2 = q2 * p.stride[2] - p.padding[2] + f2 * p.dilation[2];
          if (i0 < 0 || i0 >= p.in[0] || i1 < 0 || i1 >= p.in[1] || i2 < 0 || i2 >= p.in[2]) continue;
          sum += MUL(LOAD(x, ox + n * p.xs[0] + cx * p.xs[1] + i0 * p.xs[2] + i1 * p.xs[3] + i2 * p.xs[4]),
                     LOAD(y, oy + n * p.ys[0] + k * p.ys[1] + q0 * p.ys[2] + q1 * p.ys[3] + q2 * p.ys[4]));
        }
  STORE(sum, w, ow + k * p.ws[0] + c * p.ws[1] + f0 * p.ws[2] + f1 * p.ws[3] + f2 * p.ws[4]);
}
