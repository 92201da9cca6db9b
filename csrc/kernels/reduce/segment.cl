// Reduction of segments of a dimension: data (A) [outer, n, inner], segment s of slice o is the elements from
// bounds[o][s] to bounds[o][s + 1], results [outer, segments, inner]. One work-item a result on GPUs, a run of results
// on CPUs.
#include "kernels/reduce/segment.h"

// Where result number `id` lies, and its segment; empty where the bounds make no sense.
#define RESULT_OF(id)                                                                         \
  const uint i = (id) % p.inner, s = (id) / p.inner % p.segments;                             \
  const ulong o = (id) / p.inner / p.segments, line = p.data + (o * p.n) * p.inner + i;       \
  global const long* bound = bounds + p.bounds + o * (p.segments + 1) + s;                    \
  const long begin = clamp(bound[0], 0L, (long)p.n), end = clamp(bound[1], begin, (long)p.n); \
  const long length = bound[1] - bound[0];
#define EACH_RESULT                                            \
  const ulong results = (ulong)p.outer * p.segments * p.inner; \
  for (ulong id = get_global_id(0) * (ulong)p.per_item, id_end = min(id + p.per_item, results); id < id_end; ++id)
#define AT(k) (line + (ulong)(k)*p.inner)

kernel void dlb_segment_reduce(global const A_T* data, global const long* bounds, global A_T* out,
                               const SegmentParams p, T initial) {
  EACH_RESULT {
    RESULT_OF(id)
    T value = initial;
    for (long k = begin; k < end; ++k) {
      const T x = LOAD_A(data, AT(k));
      switch (p.reduction) {
        case SEGMENT_MAX: value = isnan(x) || x > value ? x : value; break;
        case SEGMENT_MIN: value = isnan(x) || x < value ? x : value; break;
        case SEGMENT_PROD: value *= x; break;
        default: value += x;
      }
    }
    if (p.reduction == SEGMENT_MEAN) {
      if (length > 0) value /= (T)length;
      else if (!p.has_initial) value = NAN;
    }
    STORE_A(out, p.out + id, value);
  }
}

// The gradient of the data, which begins as zero. As on the CPU, equal extremes share a gradient only where it is
// positive.
kernel void dlb_segment_backward(global const A_T* data, global const long* bounds, global const A_T* out,
                                 global const A_T* grad, global A_T* result, const SegmentParams p, T initial) {
  EACH_RESULT {
    RESULT_OF(id)
    const T g = LOAD_A(grad, p.grad + id), value = LOAD_A(out, p.out + id);
    long equals = 0;
    for (long k = begin; k < end; ++k) {
      const T x = LOAD_A(data, AT(k));
      T d = g;
      if (p.reduction == SEGMENT_MEAN) {
        d = g / (T)length;
      } else if (p.reduction == SEGMENT_PROD) {
        if (isnan(x) || x == 0) {
          d = initial;
          for (long other = begin; other < end; ++other)
            if (other != k) d *= LOAD_A(data, AT(other));
          d *= g;
        } else {
          d = g * value / x;
        }
      } else if (p.reduction != SEGMENT_SUM) {
        if (!(isnan(x) || x == value)) continue;
        ++equals;
      }
      STORE_A(result, p.result + AT(k) - p.data, d);
    }
    if (equals < 2 || !(g > 0)) continue;
    for (long k = begin; k < end; ++k) {
      const T x = LOAD_A(data, AT(k));
      if (isnan(x) || x == value) STORE_A(result, p.result + AT(k) - p.data, g / (T)equals);
    }
  }
}
