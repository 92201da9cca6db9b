// Synthetic operands for measuring solvers, and the comparison of two results. Elements as in common/element.clh.
#if defined(T_COMPLEX_FLOAT) || defined(T_COMPLEX_DOUBLE)
#define MAGNITUDE(v) (float)fmax(fabs((v).x), fabs((v).y))
#define VALUE(a, b) ((ACC)(a, b))
#define SAME(g, w) false
#define FINITE(v) true
#elif defined(T_HALF) || defined(T_BFLOAT16) || defined(T_FLOAT) || defined(T_DOUBLE)
#define MAGNITUDE(v) (float)fabs(v)
#define VALUE(a, b) ((ACC)(a))
#define SAME(g, w) ((g) == (w) || (isnan(g) && isnan(w)))
#define FINITE(v) isfinite(v)
#else
#define MAGNITUDE(v) (float)((v) < 0 ? -(v) : (v))
#define VALUE(a, b) ((ACC)((a)*4.f))
#define SAME(g, w) ((g) == (w))
#define FINITE(v) true
#endif

// The elements of a work-item: `each` neighbours, or where that is 0 every global-size-th, as GPUs like it.
#define BEGIN (each ? (long)get_global_id(0) * each : (long)get_global_id(0))
#define STEP (each ? 1 : (long)get_global_size(0))
#define END (each ? min(((long)get_global_id(0) + 1) * each, count) : count)

// Fills p[0..count) with values in [least, 1), integers with four times those.
kernel void trial_fill(global T* p, long count, long each, uint seed, float least) {
  const long step = STEP, end = END;
  for (long i = BEGIN; i < end; i += step) {
    uint h = ((uint)i ^ seed) * 0x9e3779b1u;
    h = (h ^ (h >> 15)) * 0x85ebca77u;
    h = (h ^ (h >> 13)) * 0xc2b2ae3du;
    h ^= h >> 16;
    const float range = (1.f - least) / 65536.f;
    const float a = (float)(h & 0xffff) * range + least, b = (float)(h >> 16) * range + least;
    STORE(VALUE(a, b), p, i);
  }
}

// report[2 * id] = the largest difference of the work-item's elements, infinite where only one of them is
// finite, none of two NaN, which rows behind a product may make of its values; report[2 * id + 1] = the largest
// magnitude of the finite ones in `want`. The results begin at `start`.
kernel void trial_compare(global const T* got, global const T* want, long start, long count, long each,
                          global float* report) {
  const long id = get_global_id(0), step = STEP, end = END;
  float difference = 0.f, magnitude = 0.f;
  got += start, want += start;
  for (long i = BEGIN; i < end; i += step) {
    const ACC g = LOAD(got, i), w = LOAD(want, i);
    const float d = SAME(g, w) ? 0.f : MAGNITUDE(g - w);
    difference = fmax(difference, isnan(d) ? INFINITY : d);
    if (FINITE(w)) magnitude = fmax(magnitude, MAGNITUDE(w));
  }
  report[2 * id] = difference;
  report[2 * id + 1] = magnitude;
}
