// clang-format off
// Random choices with an input per element: dropout, and Bernoulli with a tensor of probabilities. T is float, with the
// element's number as in random/random.cl.
#include "common/philox.clh"

// Four elements from block b: keep where the uniform number is below the probability.
#define FOR_FOUR(element)                                                                      \
  const uint blocks = (count + 3) / 4;                                                         \
  const uint begin = get_global_id(0) * per_item, end = min(begin + per_item, blocks);         \
  const uint whole = min(end, count / 4);                                                      \
  _Pragma("clang loop vectorize(assume_safety)") for (uint b = begin; b < whole; ++b) {        \
    const uint4 r = dlb_philox(seed, counter + b);                                             \
    const ulong i = (ulong)b * 4;                                                              \
    element(i, r.x) element(i + 1, r.y) element(i + 2, r.z) element(i + 3, r.w)                \
  }                                                                                            \
  if (begin < end && whole < end) {                                                            \
    const uint4 r = dlb_philox(seed, counter + whole);                                         \
    const ulong i = (ulong)whole * 4;                                                          \
    const uint rest = count - whole * 4;                                                       \
    element(i, r.x) if (rest > 1) { element(i + 1, r.y) } if (rest > 2) { element(i + 2, r.z) } \
  }

// out = in * keep * scale (A), mask = keep. The product makes NaN of NaN and infinities that are dropped, as on the CPU
// and in CUDA's kernel: a zero would hide them.
#define DROP(i, x)                                        \
  {                                                       \
    const int keep = (T)((x) >> 8) * 0x1p-24f < p;        \
    STORE_A(out, i, LOAD_A(in, i) * (keep ? scale : 0));  \
    mask[i] = (uchar)keep;                                \
  }
kernel void dlb_dropout(global const A_T* in, long in_offset, global A_T* out, long out_offset, global uchar* mask,
                        long mask_offset, uint count, uint per_item, ulong seed, ulong counter, T p, T scale) {
  in += in_offset;
  out += out_offset;
  mask += mask_offset;
  FOR_FOUR(DROP)
}

// out (A) = 1 with the probability in p (B), else 0. Probabilities outside [0, 1] are reported.
#define CHOOSE(i, x)                                            \
  {                                                             \
    const T chance = LOAD_B(p, i);                              \
    bad |= !(chance >= 0 && chance <= 1);                       \
    STORE_A(out, i, (T)((T)((x) >> 8) * 0x1p-24f < chance));    \
  }
kernel void dlb_bernoulli_each(global A_T* out, long out_offset, global const B_T* p, long p_offset, uint count,
                               uint per_item, ulong seed, ulong counter, volatile global int* error, int site) {
  out += out_offset;
  p += p_offset;
  int bad = 0;
  FOR_FOUR(CHOOSE)
  if (bad) dlb_report(error, site, 0, 1);
}
