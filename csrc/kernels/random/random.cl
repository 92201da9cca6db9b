// clang-format off
// Random distributions. Element i of the output (A) is a function of (seed, counter + i / LANES) and i % LANES alone. T is
// float, with four elements per Philox block, double (WIDE) with two, or long (INTEGER).
#include "common/philox.clh"
#include "kernels/random/params.h"

#define INLINE inline __attribute__((always_inline))  // see common/philox.clh

#if WIDE
#define LANES RANDOM_WIDE_LANES
#define BITS ulong
#define EACH(make)                             \
  const T v0 = make(((ulong)r.x << 32) | r.y); \
  const T v1 = make(((ulong)r.z << 32) | r.w);
#define STORE_BLOCK STORE_A(to, 0, v0), STORE_A(to, 1, v1);
#define STORE_SOME    \
  STORE_A(to, 0, v0); \
  if (rest > 1) STORE_A(to, 1, v1);
#else
#define LANES RANDOM_LANES
#define BITS uint
#define EACH(make)        \
  const T v0 = make(r.x); \
  const T v1 = make(r.y); \
  const T v2 = make(r.z); \
  const T v3 = make(r.w);
#define STORE_BLOCK STORE_A(to, 0, v0), STORE_A(to, 1, v1), STORE_A(to, 2, v2), STORE_A(to, 3, v3);
#define STORE_SOME                  \
  STORE_A(to, 0, v0);               \
  if (rest > 1) STORE_A(to, 1, v1); \
  if (rest > 2) STORE_A(to, 2, v2); \
  if (rest > 3) STORE_A(to, 3, v3);
#endif

// Blocks of one work-item; `values` defines v0, v1 ... of block b from r. The last block may be cut.
#define FOR_BLOCKS(values)                                                                    \
  const uint blocks = (count + LANES - 1) / LANES;                                            \
  const uint begin = get_global_id(0) * per_item, end = min(begin + per_item, blocks);        \
  const uint whole = min(end, count / LANES);                                                 \
  out += offset;                                                                              \
  _Pragma("clang loop vectorize(assume_safety)") for (uint b = begin; b < whole; ++b) {       \
    const uint4 r = dlb_philox(seed, counter + b);                                            \
    global A_T* to = out + (ulong)b * LANES;                                                  \
    values STORE_BLOCK                                                                        \
  }                                                                                           \
  if (begin < end && whole < end) {                                                           \
    const uint b = whole, rest = count - whole * LANES;                                       \
    const uint4 r = dlb_philox(seed, counter + b);                                            \
    global A_T* to = out + (ulong)b * LANES;                                                  \
    values STORE_SOME                                                                         \
  }

#define RANDOM_ARGUMENTS \
  global A_T *out, long offset, uint count, uint per_item, ulong seed, ulong counter

#if INTEGER
// Uniform in [base, base + range); range 0 stands for 2^64.
#if WIDE
#define SCALED(x) (base + (long)(range ? mul_hi((ulong)(x), range) : (ulong)(x)))
#else
#define SCALED(x) (base + (long)(((ulong)(x) * range) >> 32))
#endif
kernel void dlb_random_integer(RANDOM_ARGUMENTS, ulong range, long base) { FOR_BLOCKS(EACH(SCALED)) }

#else  // floating point

#if WIDE
inline T dlb_unit(ulong x) { return (T)(x >> 11) * 0x1p-53; }           // [0, 1)
inline T dlb_open(ulong x) { return ((T)(x >> 11) + 1.0) * 0x1p-53; }  // (0, 1]
inline T dlb_ln(T u) { return log(u); }
inline void dlb_turn(ulong x, T* s, T* c) {
  const T angle = (T)(x >> 11) * (0x1p-53 * 6.283185307179586);
  *s = sin(angle);
  *c = cos(angle);
}
#define HALF_OF_EPSILON 0x1p-54
#else
inline T dlb_unit(uint x) { return (T)(x >> 8) * 0x1p-24f; }                // [0, 1)
inline T dlb_open(uint x) { return (T)x * 0x1p-32f + 0x1p-33f; }  // (0, 1]
// ln of a normal number in (0, 1]: u = m 2^e with m about 1, ln m = 2 atanh((m - 1) / (m + 1)) as a power series. Written
// out because it vectorises where the driver's log does not, and is the same on every device.
INLINE T dlb_ln(T u) {
  const int bits = as_int(u), e = (bits - 0x3f3504f3) >> 23;
  const T f = as_float(bits - (e << 23)) - 1.0f, s = f / (2.0f + f), z = s * s;
  const T r = s * (2.0f + z * (2.0f / 3 + z * (2.0f / 5 + z * (2.0f / 7 + z * (2.0f / 9)))));
  return (T)e * 0.693147181f + r;
}
// Sine and cosine of x / 2^32 turns: exact reduction to an eighth of a turn, then Taylor series.
INLINE void dlb_turn(uint x, T* s, T* c) {
  const uint shifted = x + 0x20000000u, quadrant = shifted >> 30;
  const T t = (T)((int)(shifted & 0x3fffffffu) - 0x20000000) * 1.46291808e-9f, z = t * t;
  const T sine = t * (1.0f - z * (1.0f / 6 - z * (1.0f / 120 - z * (1.0f / 5040 - z * (1.0f / 362880)))));
  const T cosine =
      1.0f - z * (0.5f - z * (1.0f / 24 - z * (1.0f / 720 - z * (1.0f / 40320 - z * (1.0f / 3628800)))));
  const T a = (quadrant & 1) ? cosine : sine, b = (quadrant & 1) ? sine : cosine;
  *s = (quadrant & 2) ? -a : a;
  *c = ((quadrant + 1) & 2) ? -b : b;
}
#define HALF_OF_EPSILON 0x1p-25f
#endif

// Two standard normal numbers from two uniform ones (Box and Muller 1958).
INLINE void dlb_normal_pair(BITS x, BITS y, T* p, T* q) {
  const T radius = sqrt(C(-2.0) * dlb_ln(dlb_open(x)));
  T s, c;
  dlb_turn(y, &s, &c);
  *p = radius * c;
  *q = radius * s;
}
#if WIDE
#define NORMAL_VALUES(map)                                                                       \
  T n0, n1;                                                                                      \
  dlb_normal_pair(((ulong)r.x << 32) | r.y, ((ulong)r.z << 32) | r.w, &n0, &n1);                 \
  const T v0 = map(n0 * deviation + mean), v1 = map(n1 * deviation + mean);
#else
#define NORMAL_VALUES(map)                                                                       \
  T n0, n1, n2, n3;                                                                              \
  dlb_normal_pair(r.x, r.y, &n0, &n1);                                                           \
  dlb_normal_pair(r.z, r.w, &n2, &n3);                                                           \
  const T v0 = map(n0 * deviation + mean), v1 = map(n1 * deviation + mean);                      \
  const T v2 = map(n2 * deviation + mean), v3 = map(n3 * deviation + mean);
#endif
kernel void dlb_normal(RANDOM_ARGUMENTS, T mean, T deviation) { FOR_BLOCKS(NORMAL_VALUES()) }
kernel void dlb_log_normal(RANDOM_ARGUMENTS, T mean, T deviation) { FOR_BLOCKS(NORMAL_VALUES(exp)) }

// from + u * range, u with as many bits as the output's type holds exactly. A number that rounds to the end of the
// interval becomes `last`, the number before it.
#define UNIFORM(x) fmin((T)((x) >> shift) * unit * range + from, last)
kernel void dlb_uniform(RANDOM_ARGUMENTS, uint shift, T unit, T from, T range, T last) {
  FOR_BLOCKS(EACH(UNIFORM))
}

// Never 0, as `least` is the least positive number of the output's type: numbers are divided by it (multinomial).
INLINE T dlb_exponential_of(BITS x, T scale, T least) {
  const T u = dlb_open(x);
  return fmax((u >= C(1.0) - HALF_OF_EPSILON ? HALF_OF_EPSILON : -dlb_ln(u)) * scale, least);
}
#define EXPONENTIAL(x) dlb_exponential_of(x, scale, least)
kernel void dlb_exponential(RANDOM_ARGUMENTS, T scale, T least) { FOR_BLOCKS(EACH(EXPONENTIAL)) }

#define GEOMETRIC(x) max(ceil(dlb_ln(dlb_open(x)) * inverse_log), C(1.0))
kernel void dlb_geometric(RANDOM_ARGUMENTS, T inverse_log) { FOR_BLOCKS(EACH(GEOMETRIC)) }

#define CAUCHY(x) (median + sigma * tan(C(3.14159265358979324) * (dlb_unit(x) - C(0.5))))
kernel void dlb_cauchy(RANDOM_ARGUMENTS, T median, T sigma) { FOR_BLOCKS(EACH(CAUCHY)) }

#define BERNOULLI(x) (T)(dlb_unit(x) < p)
kernel void dlb_bernoulli(RANDOM_ARGUMENTS, T p) { FOR_BLOCKS(EACH(BERNOULLI)) }

#endif
