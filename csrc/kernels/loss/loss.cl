// Negative log likelihood: A_T is the type of scores, weights and results, B_T that of the class indices.
#include "common/team.clh"
#include "kernels/loss/params.h"

// The class of target i, or -1 for one that takes no part.
inline long class_of(global const B_T* target, NllParams p, int i, volatile global int* error) {
  const long t = (long)target[p.target + i];
  if (t == p.ignore_index) return -1;
  if (t >= 0 && t < p.classes) return t;
  dlb_report(error, p.site, t, p.classes);
  return -1;
}

inline long score_at(NllParams p, int i, long t) {
  const int n = i / p.spatial;
  return p.x + n * p.sample_stride + t * p.class_stride + (i - n * p.spatial) * p.spatial_stride;
}

inline T weight_of(global const A_T* weight, NllParams p, long t) {
  return p.weight >= 0 ? LOAD_A(weight, p.weight + t) : (T)1;
}

kernel void nll_none(global const A_T* x, global const B_T* target, global const A_T* weight, global A_T* out,
                     volatile global int* error, const NllParams p, const Team team) {
  FOR_ROWS(i, team) {
    if (!i_active) continue;
    const long t = class_of(target, p, i, error);
    const T value = t < 0 ? (T)0 : -weight_of(weight, p, t) * LOAD_A(x, score_at(p, i, t));
    STORE_A(out, p.out + i, value);
  }
}

// partial: [2][rows], the weighted sum and the sum of weights of each part.
kernel void nll_parts(global const A_T* x, global const B_T* target, global const A_T* weight, global T* partial,
                      volatile global int* error, const NllParams p, const Team team) {
  TEAM_SCRATCH
  FOR_ROWS(part, team) {
    const int end = min((int)(part + 1) * p.per_part, p.count);
    T sum = 0, weights = 0;
    for (int i = part * p.per_part + LANE; i < end;) {
      T s = 0, w = 0;  // short sums first: long chains of additions lose digits
      const int block_end = min(end, i + 128 * LANES);
      for (; i < block_end; i += LANES) {
        const long t = class_of(target, p, i, error);
        if (t < 0) continue;
        const T each = weight_of(weight, p, t);
        s -= each * LOAD_A(x, score_at(p, i, t));
        w += each;
      }
      sum += s, weights += w;
    }
    sum = team_sum(sum);
    weights = team_sum(weights);
    if (!part_active || LANE != 0) continue;
    partial[p.partial + part] = sum;
    partial[p.partial + team.rows + part] = weights;
  }
}

kernel void nll_finish(global const T* partial, global A_T* out, global A_T* total, const NllParams p,
                       const int parts) {
  if (get_global_id(0) != 0) return;
  T sum = 0, weights = 0;
  for (int i = 0; i < parts; ++i) sum += partial[p.partial + i], weights += partial[p.partial + parts + i];
  STORE_A(out, p.out, p.reduction == NLL_MEAN ? sum / weights : sum);
  STORE_A(total, p.total, weights);
}

// x: the gradient of the scores, zeroed before. out: the gradient of the loss.
kernel void nll_backward(global A_T* x, global const B_T* target, global const A_T* weight, global const A_T* out,
                         global const A_T* total, volatile global int* error, const NllParams p, const Team team) {
  const T common = p.reduction == NLL_NONE   ? (T)0
                   : p.reduction == NLL_MEAN ? LOAD_A(out, p.out) / LOAD_A(total, p.total)
                                             : LOAD_A(out, p.out);
  FOR_ROWS(i, team) {
    if (!i_active) continue;
    const long t = class_of(target, p, i, error);
    if (t < 0) continue;
    const T g = p.reduction == NLL_NONE ? LOAD_A(out, p.out + i) : common;
    STORE_A(x, score_at(p, i, t), -weight_of(weight, p, t) * g);
  }
}
