// Random distributions by rejection, with parameters from tensors. Element i draws Philox blocks of counter + i, part
// after part, until it is accepted: it depends on the seed, the counter and i alone. T is float or double.
#include "common/philox.clh"

typedef struct {
  ulong seed, counter;
  uint part;
} Source;

// Two independent numbers, uniform in (0, 1).
inline void dlb_draw(Source* source, T* u, T* v) {
  const uint4 r = dlb_philox_part(source->seed, source->counter, source->part++);
#if WIDE
  *u = ((T)((((ulong)r.x << 32) | r.y) >> 12) + 0.5) * 0x1p-52;
  *v = ((T)((((ulong)r.z << 32) | r.w) >> 12) + 0.5) * 0x1p-52;
#else
  *u = ((T)(r.x >> 9) + 0.5f) * 0x1p-23f;
  *v = ((T)(r.y >> 9) + 0.5f) * 0x1p-23f;
#endif
}

// Marsaglia and Tsang, "A simple method for generating gamma variables" (ACM TOMS 26, 2000). Below 1 by a number of one
// more, times the power 1 / alpha of a uniform one, whose logarithm is *power: the power itself may be far below what T
// can hold.
inline T dlb_sample_gamma(T alpha, Source* source, T* power) {
  T u, v;
  *power = 0;
  if (!(alpha > 0)) return alpha == 0 ? C(0.0) : (T)NAN;
  if (alpha == INFINITY) return alpha;
  if (alpha < C(1.0)) {
    dlb_draw(source, &u, &v);
    *power = log(u) / alpha;
    alpha += C(1.0);
  }
  const T d = alpha - C(1.0) / C(3.0), c = C(1.0) / sqrt(C(9.0) * d);
  for (;;) {
    dlb_draw(source, &u, &v);
    const T x = sqrt(C(-2.0) * log(u)) * cos(C(6.2831853071795864769) * v), y = C(1.0) + c * x;
    if (y <= 0) continue;
    const T cube = y * y * y;
    dlb_draw(source, &u, &v);
    if (log(u) < C(0.5) * x * x + d * (C(1.0) - cube + log(cube))) return d * cube;
  }
}

// log(k! e^k / k^k) - log(2 pi) / 2, by Stirling's series for large k.
inline T dlb_factorial_rest(T k) {
  const T r = C(1.0) / (k > 0 ? k : C(1.0)), q = r * r;
  if (k < C(10.0)) return lgamma(k + C(1.0)) + k - (k > 0 ? k * log(k) : 0) - C(0.91893853320467274178);
  return C(0.5) * log(k) +
         r * (C(0.083333333333333333) - q * (C(0.0027777777777777778) - q * C(7.9365079365079365e-4)));
}
// k log(k / mean) + mean - k
inline T dlb_deviance(T k, T mean) {
  if (k == 0) return mean;
  const T u = (mean - k) / k;
  return k * (u - log1p(u));
}

// Below 10 the number of uniform factors until their product falls below exp(-rate); else Hormann, "The transformed
// rejection method for generating Poisson random variables" (Insurance: Mathematics and Economics 12, 1993), PTRS.
inline T dlb_sample_poisson(T rate, Source* source) {
  T u, v;
  if (rate < C(10.0)) {
    const T limit = exp(-rate);
    T product = C(1.0), k = 0;
    for (;;) {
      dlb_draw(source, &u, &v);
      product *= u;
      if (product <= limit) return rate > 0 ? k : C(0.0);
      product *= v;
      k += C(1.0);
      if (product <= limit) return k;
      k += C(1.0);
    }
  }
  const T b = C(0.931) + C(2.53) * sqrt(rate), a = C(-0.059) + C(0.02483) * b;
  const T inverse = C(1.1239) + C(1.1328) / (b - C(3.4)), squeeze = C(0.9277) - C(3.6224) / (b - C(2.0));
  if (rate == INFINITY) return rate;
  for (;;) {
    dlb_draw(source, &u, &v);
    u -= C(0.5);
    const T s = C(0.5) - fabs(u), k = floor((C(2.0) * a / s + b) * u + rate + C(0.43));
    if (s >= C(0.07) && v <= squeeze) return k;
    if (k < 0 || (s < C(0.013) && v > s)) continue;
    const T density = -dlb_deviance(k, rate) - dlb_factorial_rest(k) - C(0.91893853320467274178);
    if (log(v) + log(inverse) - log(a / (s * s) + b) <= density) return k;
  }
}

// Up to a mean of 10 by the distances between successes, which are geometric; else Hormann, "The generation of binomial
// random variates" (J. Statist. Comput. Simul. 46, 1993), BTRS. p <= 1/2.
inline T dlb_sample_binomial(T n, T p, Source* source) {
  T u, v;
  if (n * p < C(10.0)) {
    const T inverse = C(1.0) / log1p(-p);
    T sum = 0, k = 0;
    for (;;) {
      dlb_draw(source, &u, &v);
      sum += ceil(log(u) * inverse);
      if (sum > n) return k;
      k += C(1.0);
    }
  }
  const T q = C(1.0) - p, spread = sqrt(n * p * q), m = floor((n + C(1.0)) * p);
  const T b = C(1.15) + C(2.53) * spread, a = C(-0.0873) + C(0.0248) * b + C(0.01) * p, c = n * p + C(0.5);
  const T alpha = (C(2.83) + C(5.1) / b) * spread, squeeze = C(0.92) - C(4.2) / b;
  const T most =
      dlb_deviance(m, n * p) + dlb_deviance(n - m, n * q) + dlb_factorial_rest(m) + dlb_factorial_rest(n - m);
  for (;;) {
    dlb_draw(source, &u, &v);
    u -= C(0.5);
    const T s = C(0.5) - fabs(u), k = floor((C(2.0) * a / s + b) * u + c);
    if (s >= C(0.07) && v <= squeeze) return k;
    if (k < 0 || k > n) continue;
    const T density =
        most - dlb_deviance(k, n * p) - dlb_deviance(n - k, n * q) - dlb_factorial_rest(k) - dlb_factorial_rest(n - k);
    if (log(v * alpha / (a / (s * s) + b)) <= density) return k;
  }
}
inline T dlb_binomial_of(T n, T p, Source* source) {
  if (n <= 0 || p <= 0) return C(0.0);
  if (p >= C(1.0)) return n;
  if (!(p == p && n < INFINITY)) return NAN;
  return p <= C(0.5) ? dlb_sample_binomial(n, p, source) : n - dlb_sample_binomial(n, C(1.0) - p, source);
}

#define FOR_EACH(value)                                                               \
  const uint begin = get_global_id(0) * per_item, end = min(begin + per_item, count); \
  for (uint i = begin; i < end; ++i) {                                                \
    Source source = {seed, counter + i, 0};                                           \
    value                                                                             \
  }

// Gamma numbers, or their logarithms. None is below `least`.
kernel void dlb_gamma(global A_T* out, long out_offset, global const B_T* alpha, long alpha_offset, uint count,
                      uint per_item, ulong seed, ulong counter, T least, int logarithms) {
  FOR_EACH(T power; const T g = dlb_sample_gamma(LOAD_B(alpha + alpha_offset, i), &source, &power);
           const T y = logarithms ? log(g) + power : g * exp(power);
           STORE_A(out + out_offset, i, y < least ? least : y);)
}
kernel void dlb_poisson(global A_T* out, long out_offset, global const B_T* rate, long rate_offset, uint count,
                        uint per_item, ulong seed, ulong counter, volatile global int* error, int site) {
  int bad = 0;
  FOR_EACH(const T mean = LOAD_B(rate + rate_offset, i); bad |= !(mean >= 0);
           STORE_A(out + out_offset, i, mean >= 0 ? dlb_sample_poisson(mean, &source) : C(0.0));)
  if (bad) dlb_report(error, site, 0, 0);
}
kernel void dlb_binomial(global A_T* out, long out_offset, global const B_T* n, long n_offset, global const B_T* p,
                         long p_offset, uint count, uint per_item, ulong seed, ulong counter) {
  FOR_EACH(STORE_A(out + out_offset, i, dlb_binomial_of(LOAD_B(n + n_offset, i), LOAD_B(p + p_offset, i), &source));)
}
