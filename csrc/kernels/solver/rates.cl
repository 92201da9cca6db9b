// Kernels that measure a device's rates: a copy through memory, a kernel that does nothing, and loops of multiply-adds
// in registers. VECTOR and VECTOR64 are the numbers of values of 32 and 64 bits in the widest vectors (empty for
// scalars); VECTOR64 is defined where the device has double precision.

// Copies p[0..count) to p[count..2 * count): `each` neighbours by each work-item, or where that is 0 every
// global-size-th, as GPUs like it.
kernel void rates_copy(global float4* p, long count, long each) {
  const long id = get_global_id(0), step = each ? 1 : (long)get_global_size(0);
  const long end = each ? min((id + 1) * each, count) : count;
  for (long i = each ? id * each : id; i < end; i += step) p[count + i] = p[i];
}

kernel void rates_nothing(global float4* p) {}

#define JOIN_(a, b) a##b
#define JOIN(a, b) JOIN_(a, b)
// Ten independent chains hide the latency of two units that take four or five cycles, and ten vectors with both
// operands still fit into 16 registers.
#define EACH(X) X(0) X(1) X(2) X(3) X(4) X(5) X(6) X(7) X(8) X(9)
#define START(i) V x##i = b * (T)((int)get_global_id(0) + i);
#define STEP(i) x##i = MULTIPLY_ADD(x##i, a, b);

#define T float
#define V JOIN(T, VECTOR)
#define MULTIPLY_ADD(x, a, b) fma(x, a, b)
// 40 multiply-adds of a vector in each of `count` iterations.
#define BODY                                    \
  EACH(START)                                   \
  for (int i = 0; i < count; i++) {             \
    EACH(STEP) EACH(STEP) EACH(STEP) EACH(STEP) \
  }                                             \
  out[get_global_id(0)] = x0 + x1 + x2 + x3 + x4 + x5 + x6 + x7 + x8 + x9;
kernel void rates_float32(global V* out, float first, float second, int count) {
  const V a = (V)(first), b = (V)(second);
  BODY
}
#undef T
#undef MULTIPLY_ADD

#define T int
#define MULTIPLY_ADD(x, a, b) ((x) * (a) + (b))
kernel void rates_int32(global V* out, float first, float second, int count) {
  const V a = (V)((int)(first * 6.f)), b = (V)((int)(second * 7.f));
  BODY
}
#undef T
#undef MULTIPLY_ADD

#ifdef VECTOR64
#pragma OPENCL EXTENSION cl_khr_fp64 : enable
#undef VECTOR
#define VECTOR VECTOR64
#define T double
#define MULTIPLY_ADD(x, a, b) fma(x, a, b)
kernel void rates_float64(global V* out, float first, float second, int count) {
  const V a = (V)((double)first), b = (V)((double)second);
  BODY
}
#endif
