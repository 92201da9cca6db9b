// Two sums over the splits, which are the gradients of a layer norm's bias and weight.
#include "norm/finish.clh"

kernel void layer_norm_weight_grad(global const T* partial, global B_T* grad_weight, global B_T* grad_bias,
                                   const NormFinish p, const Team team) {
  TEAM_SCRATCH
  FOR_ROWS(c, team) {
    T s1 = 0, s2 = 0;
    add_splits(partial, p, c, &s1, &s2, team PASS_SCRATCH);
    if (!c_active || LANE != 0) continue;
    if (p.grad_weight >= 0) STORE_B(grad_weight, p.grad_weight + c, s2);
    if (p.grad_bias >= 0) STORE_B(grad_bias, p.grad_bias + c, s1);
  }
}
