// The reference that the other softmax kernels are checked against: a work-item for each position outside the
// dimension.
#include "softmax/softmax.clh"

kernel void softmax_reference(global const A_T* x, global B_T* y, const SoftmaxParams p, const Team team) {
  const uint row = get_global_id(0);
  if (row >= team.rows) return;
  const long base = (long)(row / p.inner) * p.dim * p.inner + row % p.inner;
  T top = -INFINITY, sum = 0;
  for (int d = 0; d < p.dim; ++d) top = fmax(top, LOAD_A(x, p.x + base + (long)d * p.inner));
  for (int d = 0; d < p.dim; ++d) sum += exp(LOAD_A(x, p.x + base + (long)d * p.inner) - top);
  for (int d = 0; d < p.dim; ++d) {
    const T v = LOAD_A(x, p.x + base + (long)d * p.inner) - top;
    STORE_B(y, p.y + base + (long)d * p.inner, p.log_form ? v - log(sum) : exp(v) / sum);
  }
}

kernel void softmax_reference_backward(global const A_T* grad, global const A_T* result, global B_T* y,
                                       const SoftmaxParams p, const Team team) {
  const uint row = get_global_id(0);
  if (row >= team.rows) return;
  const long base = (long)(row / p.inner) * p.dim * p.inner + row % p.inner;
  T sum = 0;
  for (int d = 0; d < p.dim; ++d) {
    const long at = base + (long)d * p.inner;
    sum += p.log_form ? LOAD_A(grad, p.x + at) : LOAD_A(grad, p.x + at) * LOAD_A(result, p.z + at);
  }
  for (int d = 0; d < p.dim; ++d) {
    const long at = base + (long)d * p.inner;
    const T g = LOAD_A(grad, p.x + at), r = LOAD_A(result, p.z + at);
    STORE_B(y, p.y + at, p.log_form ? g - exp(r) * sum : r * (g - sum));
  }
}
