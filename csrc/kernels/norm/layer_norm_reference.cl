// The reference that the other layer norm kernels are checked against: one work-item per row.
#include "norm/layer_norm.clh"

kernel void layer_norm_reference(global const A_T* x, global const B_T* weight, global const B_T* bias, global A_T* y,
                                 global T* mean, global T* rstd, const LayerNorm p, const Team team) {
  FOR_ROWS(row, team) {
    if (!row_active) continue;
    global const A_T* in = x + p.x + (long)row * p.length;
    T m = 0, squares = 0;
    ADD_UP(m, i, p.length, LOAD_A(in, i))
    m /= (T)p.length;
    ADD_UP(squares, i, p.length, (LOAD_A(in, i) - m) * (LOAD_A(in, i) - m))
    const T r = C(1.0) / sqrt(squares / (T)p.length + REAL_OF(p.eps));
    mean[p.mean + row] = m;
    rstd[p.rstd + row] = r;
    for (int i = 0; i < p.length; ++i) {
      const T w = p.weight >= 0 ? LOAD_B(weight, p.weight + i) : 1, b = p.bias >= 0 ? LOAD_B(bias, p.bias + i) : 0;
      STORE_A(y, p.y + (long)row * p.length + i, (LOAD_A(in, i) - m) * r * w + b);
    }
  }
}
kernel void layer_norm_reference_backward(global const A_T* x, global const A_T* dy, global const B_T* weight,
                                          global const T* mean, global const T* rstd, global A_T* dx, const LayerNorm p,
                                          const Team team) {
#define GRAD(i) (LOAD_A(grad, i) * (p.weight >= 0 ? LOAD_B(weight, p.weight + (i)) : 1))
  FOR_ROWS(row, team) {
    if (!row_active) continue;
    GRADIENT_ROW
    const T n = (T)p.length;
    T s1 = 0, s2 = 0;
    ADD_UP(s1, i, p.length, GRAD(i))
    ADD_UP(s2, i, p.length, GRAD(i) * (LOAD_A(in, i) - m) * r)
    for (int i = 0; i < p.length; ++i) STORE_A(out, i, (GRAD(i) - s1 / n - (LOAD_A(in, i) - m) * r * s2 / n) * r);
  }
}
