// Distances between rows, and their gradients. A_T: the type of all tensors. `power`: that of a norm without a name.
#include "kernels/distance/params.h"

#define FOR_ITEMS(id, all) \
  for (long id = (long)get_global_id(0) * p.per_item, id##_end = min(id + p.per_item, (long)(all)); id < id##_end; ++id)

// Where the distance of rows i < j lies among pairs.
inline long pair_of(int i, int j, int rows) { return (long)i * (2 * rows - i - 1) / 2 + j - i - 1; }

inline T term(T d, int norm, T power) {
  return norm == DISTANCE_COUNT                         ? (T)(d != 0)
         : norm == DISTANCE_SUM || norm == DISTANCE_MAX ? d
         : norm == DISTANCE_EUCLID                      ? d * d
                                                        : pow(d, power);
}

kernel void distance_forward(global const A_T* x, global const A_T* y, global A_T* out, const DistanceParams p,
                             const T power) {
  FOR_ITEMS(id, p.items) {
    const long batch = id / ((long)p.rows * p.others);
    const int rest = id - batch * p.rows * p.others, i = rest / p.others, j = rest - i * p.others;
    if (p.pairs && i >= j) continue;
    global const A_T* a = x + p.x + (batch * p.rows + i) * p.width;
    global const A_T* b = y + p.y + (batch * p.others + j) * p.width;
    T sum = 0;
    if (p.norm == DISTANCE_MAX)
      for (int k = 0; k < p.width; ++k) {
        const T d = fabs(LOAD_A(a, k) - LOAD_A(b, k));
        sum = d > sum || isnan(d) ? d : sum;
      }
    else
      for (int k = 0; k < p.width; ++k) sum += term(fabs(LOAD_A(a, k) - LOAD_A(b, k)), p.norm, power);
    if (p.norm == DISTANCE_EUCLID) sum = sqrt(sum);
    if (p.norm == DISTANCE_LOW || p.norm == DISTANCE_HIGH) sum = pow(sum, 1 / power);
    STORE_A(out, p.out + (p.pairs ? pair_of(i, j, p.rows) : id), sum);
  }
}

// The derivative of a distance by one of its differences.
inline T slope(T d, T dist, int norm, T power) {
  const T sign = (T)((d > 0) - (d < 0));
  if (norm == DISTANCE_COUNT) return 0;
  if (norm == DISTANCE_SUM) return sign;
  if (norm == DISTANCE_MAX) return fabs(d) == dist ? sign : 0;
  if (dist == 0 || (power < 1 && d == 0)) return 0;
  if (norm == DISTANCE_EUCLID) return d / dist;
  return sign * pow(fabs(d), power - 1) / pow(dist, power - 1);
}

// out[i, k] = sum over j of grad[i, j] times the slope. An item is a number of a row.
kernel void distance_backward(global const A_T* grad, global const A_T* x, global const A_T* y, global const A_T* dist,
                              global A_T* out, const DistanceParams p, const T power) {
  FOR_ITEMS(id, p.items) {
    const long row = id / p.width, batch = row / p.rows;
    const int k = id - row * p.width, i = row - batch * p.rows;
    const T a = LOAD_A(x, p.x + id);
    T sum = 0;
    for (int j = 0; j < p.others; ++j) {
      if (p.pairs && i == j) continue;
      const long at = p.pairs ? pair_of(min(i, j), max(i, j), p.rows) : row * p.others + j;
      const T b = LOAD_A(y, p.y + (batch * p.others + j) * p.width + k);
      sum += LOAD_A(grad, p.grad + at) * slope(a - b, LOAD_A(dist, p.dist + at), p.norm, power);
    }
    STORE_A(out, p.out + id, sum);
  }
}
