// Tables of weights for resample.cl, as PyTorch's CPU kernels and Pillow compute them. T: what weights are computed in.
#include "kernels/upsample/resample.h"

inline T resample_filter(int filter, int antialias, T at) {
  const T x = fabs(at), a = antialias ? (T)-0.5 : (T)-0.75;
  if (filter == RESAMPLE_LINEAR) return fmax((T)1 - x, (T)0);
  if (filter == RESAMPLE_CUBIC)
    return x < 1 ? ((a + 2) * x - (a + 3)) * x * x + 1 : x < 2 ? (((x - 5) * x + 8) * x - 4) * a : (T)0;
  if (x >= 3) return 0;
  const T angle = x * (T)3.14159265358979323846;
  return x == 0 ? (T)1 : sin(angle) * sin(angle / 3) / (angle * angle / 3);
}

inline void table_of(global int* bounds, global T* weights, ResampleTable p, int o) {
  const int second = o >= p.axis[0].out;
  const ResampleAxis a = p.axis[second];
  o -= second ? p.axis[0].out : 0;
  if (o >= a.out) return;
  const T scale = (T)a.scale[0] + (T)a.scale[1] + (T)a.scale[2];
  global int* bound = bounds + a.bounds + 2 * o;
  global T* weight = weights + a.weights + o;
  if (p.antialias) {
    const T half_size = p.filter == RESAMPLE_LINEAR ? 1 : p.filter == RESAMPLE_CUBIC ? 2 : 3;
    const T support = half_size * fmax(scale, (T)1), sharper = scale >= 1 ? 1 / scale : (T)1;
    const T center = scale * (o + (T)0.5);
    const int low = max((int)(center - support + (T)0.5), 0), high = min((int)(center + support + (T)0.5), a.in);
    const int count = min(max(high - low, 0), a.taps);
    T total = 0;
    for (int k = 0; k < count; ++k) {
      const T w = resample_filter(p.filter, 1, (k + low - center + (T)0.5) * sharper);
      weight[(long)k * a.out] = w, total += w;
    }
    for (int k = 0; k < count && total != 0; ++k) weight[(long)k * a.out] /= total;
    bound[0] = low, bound[1] = count;
    return;
  }
  // Neighbours past the ends are the ends.
  T at = p.align ? scale * o : scale * (o + (T)0.5) - (T)0.5;
  if (p.filter == RESAMPLE_LINEAR) at = fmax(at, (T)0);
  const int cubic = p.filter == RESAMPLE_CUBIC, first = min((int)floor(at), a.in - 1);
  const T share = clamp(at - first, (T)0, (T)1);
  const int low = clamp(first - cubic, 0, a.in - 1), high = clamp(first + 1 + cubic, 0, a.in - 1);
  for (int k = 0; k <= high - low; ++k) weight[(long)k * a.out] = 0;
  for (int k = -cubic; k <= 1 + cubic; ++k)
    weight[(long)(clamp(first + k, 0, a.in - 1) - low) * a.out] += resample_filter(p.filter, 0, share - k);
  bound[0] = low, bound[1] = high - low + 1;
}

// Range: the outputs of both axes, one after the other, in runs of per_item.
kernel void resample_table(global int* bounds, global T* weights, const ResampleTable p) {
  const int begin = get_global_id(0) * p.per_item, end = min(begin + p.per_item, p.axis[0].out + p.axis[1].out);
  for (int o = begin; o < end; ++o) table_of(bounds, weights, p, o);
}

// Weights as integers of as many binary places as keep the greatest below 2^15: quantised, at the same offsets (on CPUs
// those of an output together, of 16 bits), and the number of places behind all. Work-groups: one per axis.
#define MOST_LANES 64
#ifdef DLB_CPU
#define WEIGHT_T short
#define WEIGHT_AT(o, k) ((long)(o)*a.taps + (k))
#else
#define WEIGHT_T int
#define WEIGHT_AT(o, k) ((long)(k)*a.out + (o))
#endif
kernel void resample_quantise(global const int* bounds, global const T* weights, long weights_offset,
                              global int* quantised, long quantised_offset, int places, const ResampleTable p) {
  local T greatest[MOST_LANES];
  const ResampleAxis a = p.axis[get_group_id(0)];
  const int lane = get_local_id(0), lanes = get_local_size(0);
  T most = 0;
  weights += weights_offset, quantised += quantised_offset;
  global WEIGHT_T* table = (global WEIGHT_T*)(quantised + a.weights);
  for (int o = lane; o < a.out; o += lanes)
    for (int k = 0; k < bounds[a.bounds + 2 * o + 1]; ++k) most = fmax(most, weights[a.weights + (long)k * a.out + o]);
  greatest[lane] = most;
  barrier(CLK_LOCAL_MEM_FENCE);
  for (int i = 0; i < lanes; ++i) most = fmax(most, greatest[i]);
  int precision = 0;
  while (precision < 22 && (int)((T)0.5 + most * (T)(1 << (precision + 1))) < (1 << 15)) ++precision;
  for (int o = lane; o < a.out; o += lanes)
    for (int k = 0; k < bounds[a.bounds + 2 * o + 1]; ++k) {
      const T w = weights[a.weights + (long)k * a.out + o] * (T)(1 << precision);
      table[WEIGHT_AT(o, k)] = (WEIGHT_T)(w + (w < 0 ? (T)-0.5 : (T)0.5));
    }
#ifdef DLB_CPU
  for (int o = lane; o < a.out; o += lanes)
    for (int k = bounds[a.bounds + 2 * o + 1]; k < a.taps; ++k) table[WEIGHT_AT(o, k)] = 0;
#endif
  if (lane == 0) quantised[places + get_group_id(0)] = precision;
}
