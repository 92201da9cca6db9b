// Softmax over a strided dimension, and its gradient, where a GPU has too few columns: team.lanes work-items along the
// dimension and TEAM_GROUP / team.lanes along the inner ones, a group for each such block.
#include "softmax/softmax.clh"

#define COLUMN_OF_GROUP                                                                              \
  const int lanes = team.lanes, width = TEAM_GROUP / lanes, lane = get_local_id(0) / width;          \
  const int blocks = (p.inner + width - 1) / width, outer = get_group_id(0) / blocks;                \
  const int column = ((int)get_group_id(0) - outer * blocks) * width + (int)get_local_id(0) % width; \
  const int end = column < p.inner ? p.dim : 0; /* columns past the last have no elements */         \
  const long base = (long)outer * p.dim * p.inner + column;

// Over the work-items of one column, the sum or the maximum; in all of them.
inline T over_column(T v, const int is_max, local T* scratch, uint width) {
  const uint i = get_local_id(0), column = i % width;
  barrier(CLK_LOCAL_MEM_FENCE);
  scratch[i] = v;
  barrier(CLK_LOCAL_MEM_FENCE);
  for (uint apart = TEAM_GROUP / 2; apart >= width; apart /= 2) {
    if (i < apart) scratch[i] = is_max ? fmax(scratch[i], scratch[i + apart]) : scratch[i] + scratch[i + apart];
    barrier(CLK_LOCAL_MEM_FENCE);
  }
  return scratch[column];
}

kernel void softmax_columns_shared(global const A_T* x, global B_T* y, const SoftmaxParams p, const Team team) {
  local T scratch[TEAM_GROUP];
  COLUMN_OF_GROUP
  global const A_T* in = x + p.x + base;
  global B_T* out = y + p.y + base;
  T top = -INFINITY, sum = 0;
  for (int d = lane; d < end; d += lanes) top = fmax(top, LOAD_A(in, (long)d * p.inner));
  top = over_column(top, 1, scratch, width);
  for (int d = lane; d < end; d += lanes) sum += softmax_exp(LOAD_A(in, (long)d * p.inner) - top);
  sum = over_column(sum, 0, scratch, width);
  const T shift = p.log_form ? log(sum) : 0, scale = p.log_form ? 1 : C(1.0) / sum;
  for (int d = lane; d < end; d += lanes) {
    const T v = LOAD_A(in, (long)d * p.inner) - top;
    STORE_B(out, (long)d * p.inner, p.log_form ? v - shift : softmax_exp(v) * scale);
  }
}

kernel void softmax_columns_shared_backward(global const A_T* grad, global const A_T* result, global B_T* y,
                                            const SoftmaxParams p, const Team team) {
  local T scratch[TEAM_GROUP];
  COLUMN_OF_GROUP
  global const A_T* g = grad + p.x + base;
  global const A_T* r = result + p.z + base;
  global B_T* out = y + p.y + base;
  T sum = 0;
  for (int d = lane; d < end; d += lanes) {
    const T v = LOAD_A(g, (long)d * p.inner);
    sum += p.log_form ? v : v * LOAD_A(r, (long)d * p.inner);
  }
  sum = over_column(sum, 0, scratch, width);
  for (int d = lane; d < end; d += lanes) {
    const T v = LOAD_A(g, (long)d * p.inner), before = LOAD_A(r, (long)d * p.inner);
    STORE_B(out, (long)d * p.inner, p.log_form ? v - softmax_exp(before) * sum : before * (v - sum));
  }
}
