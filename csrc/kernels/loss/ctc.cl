// Connectionist temporal classification (Graves et al., 2006) in the logarithm. A_T: the type of probabilities and
// results, B_T that of the targets. State 2 i + 1 of a sample is its target i, even states are blanks.
#include "common/team.clh"
#include "common/math/base.clh"
#include "common/math/exp.clh"
#include "common/math/log.clh"
#include "kernels/loss/params.h"

typedef struct {
  int time, states;  // of the sample
  global const B_T* target;
} ctc_sample;

// lengths: times, target lengths and where each sample's targets begin.
inline ctc_sample sample_of(global const B_T* target, global const long* lengths, CtcParams p, int n) {
  lengths += p.lengths;
  ctc_sample s;
  s.time = lengths[n], s.states = 2 * (int)lengths[p.samples + n] + 1;
  s.target = target + p.target + lengths[2 * p.samples + n];
  return s;
}
inline long class_at(ctc_sample s, CtcParams p, int state) {
  return state & 1 ? (long)s.target[(state >> 1) * p.target_stride] : p.blank;
}
inline T log_prob(global const A_T* x, CtcParams p, int t, int n, long c) {
  return c >= 0 && c < p.classes ? LOAD_A(x, p.x + t * p.xs[0] + n * p.xs[1] + c * p.xs[2]) : (T)-INFINITY;
}
inline T log_sum(T a, T b) {
  const T top = fmax(a, b);
  return top == -INFINITY ? top : top + dlb_log(dlb_exp(a - top) + dlb_exp(b - top));
}
// Without branches, so that loops with it become vectors.
DLB_INLINE T log_sum_3(T a, T b, T c) {
  const T ab = a > b ? a : b, top = ab > c ? ab : c, from = top == -INFINITY ? (T)0 : top;
  return from + dlb_log(dlb_exp(a - from) + dlb_exp(b - from) + dlb_exp(c - from));
}

#ifdef DLB_CPU
// One time of a sample: labels and blanks in loops of their own, which become vectors. `side` is 1 for the ways that end
// in a state, whose `other` time is the one before, and -1 for those that begin in it. The first of these times has no
// other one.
inline void ctc_time(global const A_T* x, ctc_sample s, CtcParams p, int t, int n, int has_other, int side,
                     global const A_T* other, global A_T* now) {
  const int labels = s.states / 2;
  global const A_T* probs = x + p.x + t * p.xs[0] + n * p.xs[1];
  const T blank = LOAD_A(probs, p.blank * p.xs[2]);
  const int first = side > 0 ? 0 : labels;  // of the outer states: the blank, and the label beside it
  if (!has_other) {
    for (int i = 0; i < s.states; ++i) STORE_A(now, i, (T)-INFINITY);
    STORE_A(now, 2 * first, blank);
    if (labels > 0) {
      const int label = side > 0 ? 0 : labels - 1;
      STORE_A(now, 2 * label + 1, log_prob(x, p, t, n, class_at(s, p, 2 * label + 1)));
    }
    return;
  }
  // Blocks of constant length: past the end they repeat the last state.
  enum { BLOCK = 16 };
  T value[BLOCK];
  for (int block = 0; block < labels; block += BLOCK) {
    DLB_SIMD for (int j = 0; j < BLOCK; ++j) {
      const int i = min(block + j, labels - 1), beyond = i - side, inside = beyond >= 0 && beyond < labels;
      const long c = s.target[i * p.target_stride], d = s.target[(inside ? beyond : i) * p.target_stride];
      const T skip = LOAD_A(other, 2 * (inside ? beyond : i) + 1);
      const T ways =
          log_sum_3(LOAD_A(other, 2 * i + 1), LOAD_A(other, 2 * i + 1 - side), inside && d != c ? skip : (T)-INFINITY);
      const int known = c >= 0 && c < p.classes;
      const T prob = LOAD_A(probs, (known ? c : 0) * p.xs[2]);
      value[j] = known ? ways + prob : (T)-INFINITY;
    }
    for (int j = 0; j < min((int)BLOCK, labels - block); ++j) STORE_A(now, 2 * (block + j) + 1, value[j]);
  }
  for (int block = 0; block <= labels; block += BLOCK) {
    DLB_SIMD for (int j = 0; j < BLOCK; ++j) {
      const int i = min(block + j, labels), inside = i != first;
      const T label = LOAD_A(other, inside ? 2 * i - side : 2 * i);
      value[j] = log_sum_3(LOAD_A(other, 2 * i), inside ? label : (T)-INFINITY, (T)-INFINITY) + blank;
    }
    for (int j = 0; j < min((int)BLOCK, labels + 1 - block); ++j) STORE_A(now, 2 * (block + j), value[j]);
  }
}
#endif

// alpha: [samples][times][states], the logarithm of the probability of all ways that end in a state. A group for each
// sample.
kernel void ctc_alpha(global const A_T* x, global const B_T* target, global const long* lengths, global A_T* alpha,
                      global A_T* loss, const CtcParams p) {
  const int n = get_group_id(0), lane = get_local_id(0), lanes = get_local_size(0);
  const ctc_sample s = sample_of(target, lengths, p, n);
  alpha += p.alpha + (long)n * p.times * p.states;
  for (int t = 0; t < p.times; ++t) {
    global A_T* now = alpha + (long)t * p.states;
    global A_T* before = now - p.states;
#ifdef DLB_CPU
    if (t < s.time) ctc_time(x, s, p, t, n, t > 0, 1, before, now);
    for (int i = t < s.time ? s.states : 0; i < p.states; ++i) STORE_A(now, i, (T)-INFINITY);
    continue;
#endif
    for (int i = lane; i < p.states; i += lanes) {
      T value = -INFINITY;
      if (t < s.time && i < s.states) {
        const long c = class_at(s, p, i);
        T ways = i < 2 ? (T)0 : (T)-INFINITY;
        if (t > 0) {
          const T b = i > 0 ? LOAD_A(before, i - 1) : (T)-INFINITY;
          const T d = i > 1 && i & 1 && class_at(s, p, i - 2) != c ? LOAD_A(before, i - 2) : (T)-INFINITY;
          ways = log_sum_3(LOAD_A(before, i), b, d);
        }
        value = ways + log_prob(x, p, t, n, c);
      }
      STORE_A(now, i, value);
    }
    barrier(CLK_GLOBAL_MEM_FENCE);
  }
  if (lane != 0) return;
  T all = s.states == 1 ? (T)0 : (T)-INFINITY;
  if (s.time > 0) {
    global A_T* last = alpha + (long)(s.time - 1) * p.states;
    all = LOAD_A(last, s.states - 1);
    if (s.states > 1) all = log_sum(all, LOAD_A(last, s.states - 2));
  }
  STORE_A(loss, p.loss + n, -all);
}

// beta: as alpha, of the ways that begin in a state.
kernel void ctc_beta(global const A_T* x, global const B_T* target, global const long* lengths, global A_T* beta,
                     const CtcParams p) {
  const int n = get_group_id(0), lane = get_local_id(0), lanes = get_local_size(0);
  const ctc_sample s = sample_of(target, lengths, p, n);
  beta += p.beta + (long)n * p.times * p.states;
  for (int t = p.times - 1; t >= 0; --t) {
    global A_T* now = beta + (long)t * p.states;
    global A_T* after = now + p.states;
#ifdef DLB_CPU
    if (t < s.time) ctc_time(x, s, p, t, n, t < s.time - 1, -1, after, now);
    continue;
#endif
    for (int i = lane; i < s.states; i += lanes) {
      if (t >= s.time) continue;
      const long c = class_at(s, p, i);
      T ways = i >= s.states - 2 ? (T)0 : (T)-INFINITY;
      if (t < s.time - 1) {
        const T b = i + 1 < s.states ? LOAD_A(after, i + 1) : (T)-INFINITY;
        const T d = i + 2 < s.states && i & 1 && class_at(s, p, i + 2) != c ? LOAD_A(after, i + 2) : (T)-INFINITY;
        ways = log_sum_3(LOAD_A(after, i), b, d);
      }
      STORE_A(now, i, ways + log_prob(x, p, t, n, c));
    }
    barrier(CLK_GLOBAL_MEM_FENCE);
  }
}

// out: [times][samples][classes]; a work-item for each time of a sample.
kernel void ctc_grad(global const A_T* x, global const B_T* target, global const long* lengths, global const A_T* alpha,
                     global const A_T* beta, global const A_T* loss, global const A_T* grad, global A_T* out,
                     const CtcParams p, const Team team) {
  FOR_ROWS(row, team) {
    if (!row_active) continue;
    const int t = row / p.samples, n = row - t * p.samples;
    const ctc_sample s = sample_of(target, lengths, p, n);
    global A_T* to = out + p.out + (long)row * p.classes;
    const T nll = LOAD_A(loss, p.loss + n), g = LOAD_A(grad, p.grad + n * p.grad_stride);
    if (t >= s.time || (p.zero_infinity && nll == INFINITY)) {
      for (int c = 0; c < p.classes; ++c) STORE_A(to, c, (T)0);
      continue;
    }
    for (int c = 0; c < p.classes; ++c) STORE_A(to, c, (T)-INFINITY);
    const long at = ((long)n * p.times + t) * p.states;
    for (int i = 0; i < s.states; ++i) {
      const long c = class_at(s, p, i);
      if (c < 0 || c >= p.classes) continue;
      STORE_A(to, c, log_sum(LOAD_A(to, c), LOAD_A(alpha, p.alpha + at + i) + LOAD_A(beta, p.beta + at + i)));
    }
    global const A_T* probs = x + p.x + t * p.xs[0] + n * p.xs[1];
    DLB_SIMD for (int c = 0; c < p.classes; ++c) {
      const T lp = LOAD_A(probs, c * p.xs[2]);
      STORE_A(to, c, (dlb_exp(lp) - dlb_exp(LOAD_A(to, c) + nll - lp)) * g);
    }
  }
}
