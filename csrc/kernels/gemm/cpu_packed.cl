// clang-format off
// GEMM for CPU-like devices: C = alpha * A * B + beta * D within bounds, any strides. One work-item computes a block
// of mc x nc: it copies its rows of A as they lie (along k or along m) and its columns of B as panels of 64 into
// scratch, kc of the reduction at a time, and runs register tiles over them.
#include "common/operands.clh"
#ifdef __clang__  // whose own conversion is two instructions; drivers' functions may convert one by one
#define FLOATS(v) __builtin_convertvector(v, float16)
#else
#define FLOATS convert_float16
#endif
#if defined(A_E4M3) || defined(A_E5M2) || defined(B_E4M3) || defined(B_E5M2)
// 16 numbers of float8, by the bits: sign, magnitude, and NaN where the magnitude is above the greatest.
inline float16 floats_of_e4m3(uchar16 v) {
  const uint16 bits = convert_uint16(v), rest = bits & 0x7f;
  const uint16 number = as_uint16(as_float16(rest << 20) * 0x1p120f);
  return as_float16((bits & 0x80) << 24 | select(number, (uint16)(0x7fc00000), rest == 0x7f));
}
inline float16 floats_of_e5m2(uchar16 v) {
  const uint16 bits = convert_uint16(v), rest = bits & 0x7f;
  const uint16 number = as_uint16(as_float16(rest << 21) * 0x1p112f);
  return as_float16((bits & 0x80) << 24 | select(number, number | 0x7f800000, rest >= 0x7c));
}
#endif
static inline float sum_of(float16 v) {
  const float8 h = v.lo + v.hi;
  const float4 q = h.lo + h.hi;
  return (q.x + q.y) + (q.z + q.w);
}

#define A_LOAD1(p) ((float)A_NUMBER(*(p)))
#define B_LOAD1(p) ((float)B_NUMBER(*(p)))
#if defined(A_E4M3)
#define A_LOAD16(p) floats_of_e4m3(vload16(0, p))
#elif defined(A_E5M2)
#define A_LOAD16(p) floats_of_e5m2(vload16(0, p))
#elif defined(A_NARROW)
#define A_LOAD16(p) FLOATS(vload16(0, p))
#else
#undef A_LOAD1
#define A_LOAD1 load1
#define A_LOAD16 load16
#endif
#if defined(B_E4M3)
#define B_LOAD16(p) floats_of_e4m3(vload16(0, p))
#elif defined(B_E5M2)
#define B_LOAD16(p) floats_of_e5m2(vload16(0, p))
#elif defined(B_NARROW)
#define B_LOAD16(p) FLOATS(vload16(0, p))
#else
#undef B_LOAD1
#define B_LOAD1 load1
#define B_LOAD16 load16
#endif
#define PACK(name) a_##name
#define PACK_T A_T
#define PACK_LOAD1 A_LOAD1
#define PACK_LOAD16 A_LOAD16
#include "common/cpu_pack.clh"
#ifdef B_NIBBLES
// 16 elements along k, without scale and zero.
inline float16 nibbles16(global const uchar* p) {
  const uchar8 pairs = vload8(0, p);
  uchar16 v;
  v.even = pairs >> (uchar)4, v.odd = pairs & (uchar)15;
  return FLOATS(as_char16(v) - (char)8);
}

// dst[k][j] = the elements of nj columns of B from k0 on, nk of them, a multiple of 16. Columns nj to njp repeat the last.
inline void pack_groups(global const uchar* src, long sj, int k0, int nk, int column, int nj, int njp,
                        local float* dst GROUP_PARAMETERS) {
  for (int j = 0; j < njp; j += 16)
    for (int k = 0; k < nk; k += 16) {
      VECTORS16(x) VECTORS16(y)
      global const T* scales = GROUP_OF(k0 + k, column);
      local float* d = dst + k * njp + j;
#define LOAD_GROUP(n, h)                                                              \
  {                                                                                   \
    const int at = min(j + n, nj - 1);                                                \
    x##h = nibbles16(src + (at * sj + k) / 2) * load1(scales + 2 * at) + load1(scales + 2 * at + 1); \
  }
#define STORE_GROUP(n, h) vstore16(x##h, 0, d + n * njp);
      EACH16(LOAD_GROUP)
      TRANSPOSE(x, y)
      EACH16(STORE_GROUP)
    }
}

// Brings each 32 floats to the order of 16 bytes' high halves and of their low ones, and sums them up.
inline void split_pairs(local float* a, int n, local float* sums) {
  for (int k = 0; k < n; k += LEAST_GROUP, a += LEAST_GROUP) {
    const float16 x = vload16(0, a), y = vload16(1, a);
    vstore16((float16)(x.even, y.even), 0, a);
    vstore16((float16)(x.odd, y.odd), 1, a);
    *sums++ = sum_of(x + y);
  }
}

// c[r * pitch] += the products of R rows of A, which split_pairs() has seen, with kn elements of a column of B from k0 on.
#define GROUP_DOT(R, NAME)                                                                                              \
  inline void NAME(global const uchar* b, local const float* a, int a_pitch, local const float* sums,       \
                           int sums_pitch, int k0, int kn, int column, local float* c, int pitch GROUP_PARAMETERS) { \
    global const T* scales = GROUP_OF(k0, column);                                                                  \
    int end = grouping.size.divisor - k0 % grouping.size.divisor;                                                   \
    float16 total[R];                                                                                               \
    float rest[R];                                                                                                  \
    for (int r = 0; r < R; r++) total[r] = 0.f, rest[r] = 0.f;                                                      \
    for (int k = 0; k < kn; end += grouping.size.divisor, scales += grouping.pitch) {                               \
      float16 sum[R], sum_low[R];                                                                                               \
      float of_a[R];                                                                                                \
      for (int r = 0; r < R; r++) sum[r] = sum_low[r] = 0.f, of_a[r] = 0.f;                                                      \
      for (const int last = min(end, kn); k < last; k += LEAST_GROUP, b += LEAST_GROUP / 2) {                       \
        const uchar16 pairs = vload16(0, b);                                                                        \
        const float16 high = FLOATS(as_char16(pairs >> (uchar)4) - (char)8);                                        \
        const float16 low = FLOATS(as_char16(pairs & (uchar)15) - (char)8);                                         \
        _Pragma("unroll") for (int r = 0; r < R; r++) {                                                             \
          sum[r] = fma(high, vload16(0, a + r * a_pitch + k), sum[r]);                                              \
          sum_low[r] = fma(low, vload16(1, a + r * a_pitch + k), sum_low[r]);                                               \
          of_a[r] += sums[r * sums_pitch + k / LEAST_GROUP];                                                        \
        }                                                                                                           \
      }                                                                                                             \
      const float scale = load1(scales), zero = load1(scales + 1);                                                  \
      _Pragma("unroll") for (int r = 0; r < R; r++) {                                                               \
        total[r] = fma((float16)(scale), sum[r] + sum_low[r], total[r]);                                                         \
        rest[r] = fma(zero, of_a[r], rest[r]);                                                                      \
      }                                                                                                             \
    }                                                                                                               \
    for (int r = 0; r < R; r++) c[r * pitch] += rest[r] + sum_of(total[r]);                                         \
  }
GROUP_DOT(1, group_dot_of_one)
GROUP_DOT(CPU_GEMV_ROWS, group_dot)
#else
#define PACK(name) b_##name
#define PACK_T B_T
#define PACK_LOAD1 B_LOAD1
#define PACK_LOAD16 B_LOAD16
#include "common/cpu_pack.clh"
#endif
#include "kernels/gemm/params.h"

TILES(local)

// C = alpha * sums + beta * D within bounds, or by the epilogue, for mn rows and nn columns, of which the first lies at
// `begin` in C, row m0, column n0. The sums are overwritten.
static inline void store_block(local float* sc, int pitch, int mn, int nn, global T* C, long scm, long scn,
                               global const T* D, long sdm, long sdn, float alpha, float beta, int has_d, float low,
                               float high, long begin, int m0, int n0 EPILOGUE_PARAMETERS) {
  for (int i = 0; i < mn; i++) {
    int j = 0;
#ifdef EPILOGUE
    if (scn == 1) {
      local float* v = sc + i * pitch;
      for (j = 0; j < nn; j++) v[j] = alpha * v[j] + (has_d ? beta * load1(D + i * sdm + j * sdn) : 0.f);
      dlb_epilogue_row(v, nn, begin + i * scm, m0 + i, n0 EPILOGUE_ARGUMENTS);
      for (j = 0; j + 16 <= nn; j += 16) store16(C + i * scm + j, vload16(0, v + j));
      for (; j < nn; j++) store1(C + i * scm + j, v[j]);
    }
#else
    if (scn == 1 && (!has_d || sdn == 1 || sdn == 0))
      for (; j + 16 <= nn; j += 16) {
        float16 v = alpha * vload16(0, sc + i * pitch + j);
        if (has_d) v += beta * (sdn ? load16(D + i * sdm + j) : (float16)(load1(D + i * sdm)));
        store16(C + i * scm + j, bounded16(v, low, high));
      }
#endif
    for (; j < nn; j++) {
      float v = alpha * sc[i * pitch + j];
      if (has_d) v += beta * load1(D + i * sdm + j * sdn);
      store1(C + i * scm + j * scn, FINISH(v, low, high, begin + i * scm + j * scn, m0 + i, n0 + j));
    }
  }
}

kernel __attribute__((reqd_work_group_size(1, 1, 1))) void gemm_cpu_packed(
    global const A_T* A, long oa, long sab, long sam, long sak, global const B_T* B, long ob, long sbb, long sbk, long sbn,
    global T* C, long oc, long scb, long scm, long scn, global const T* D, long od, long sdb, long sdm, long sdn,
    float alpha, float beta, int has_d, float low, float high, int M, int N, int K, int mc, int nc, int kc,
    local float* scratch GROUP_PARAMETERS EPILOGUE_PARAMETERS) {
  const int m0 = get_global_id(0) * mc, n0 = get_global_id(1) * nc;
  const long batch = get_global_id(2);
  const int mn = min(mc, M - m0), nn = min(nc, N - n0), pitch = (nn + 15) & ~15;
  // an odd number of cache lines between rows, so that the rows of a tile do not compete for one cache set
  const int k_pitch = kc + 16, m_pitch = mc + 16;
  local float* sa = scratch;
  local float* sc = sa + max(mc * k_pitch, kc * m_pitch);
  local float* sb = sc + (mc + MR) * nc;
  A += oa + batch * sab + m0 * sam;
  B += ob + B_STEP(batch * sbb + n0 * sbn);
  C += oc + batch * scb + m0 * scm + n0 * scn;
  D += od + batch * sdb + m0 * sdm + n0 * sdn;

  const int along_k = sak == 1 || sam != 1, row_step = along_k ? k_pitch : 1, last = mn - 1;
  if (K == 0)
    for (int i = 0; i < mn * pitch; i++) sc[i] = 0.f;
  for (int kb = 0; kb < K; kb += kc) {
    const int kn = min(kc, K - kb);
    if (along_k) a_pack(A + kb * sak, sam, sak, mn, kn, kn, sa, k_pitch);
    else a_pack_rows(A + kb * sak, sak, kn, mn, mn, sa, m_pitch);
    const Walk walk = {kn, along_k ? 1 : m_pitch, 1, 0, 1, 0};
    for (int j = 0; j < nn; j += NR) {
      const int jn = min(NR, nn - j), nv = (jn + 15) / 16;
#ifdef B_NIBBLES
      pack_groups(B + B_STEP(kb + j * sbn), sbn, kb, kn, n0 + j, jn, nv * 16, sb GROUP_ARGUMENTS);
#else
      b_pack(B + kb * sbk + j * sbn, sbk, sbn, kn, jn, nv * 16, sb, nv * 16);
#endif
      for (int i = 0; i < mn; i += MR) {
        int row[MR];
        for (int r = 0; r < MR; r++) row[r] = min(i + r, last) * row_step;
        tile_local(nv, sa, row, walk, sb, sc + i * pitch + j, pitch, kb > 0);
      }
    }
  }

  store_block(sc, pitch, mn, nn, C, scm, scn, D, sdm, sdn, alpha, beta, has_d, low, high,
              batch * scb + m0 * scm + n0 * scn, m0, n0 EPILOGUE_ARGUMENTS);
}

#ifndef B_NIBBLES
// sc[i][j] += the products of kn elements of M rows of A, [row][kc], with as many of nn columns of B, whose rows lie
// together: rows of B times one element of A each.
static inline void multiply_along_rows(global const B_T* b, long sbk, int kn, int nn, local const float* sa, int kc,
                                       local float* sc, int nc, int M) {
  int j = 0;
  if (M == 1) {  // along the rows of B, four at a time
    int k = 0;
    for (; k + 4 <= kn; k += 4)
      for (j = 0; j + 16 <= nn; j += 16) {
        global const B_T* r = b + k * sbk + j;
        float16 c = vload16(0, sc + j);
        c = fma((float16)(sa[k]), B_LOAD16(r), c), c = fma((float16)(sa[k + 1]), B_LOAD16(r + sbk), c);
        c = fma((float16)(sa[k + 2]), B_LOAD16(r + 2 * sbk), c);
        c = fma((float16)(sa[k + 3]), B_LOAD16(r + 3 * sbk), c);
        vstore16(c, 0, sc + j);
      }
    for (; k < kn; k++)
      for (j = 0; j + 16 <= nn; j += 16)
        vstore16(fma((float16)(sa[k]), B_LOAD16(b + k * sbk + j), vload16(0, sc + j)), 0, sc + j);
    j = nn / 16 * 16;
  }
  for (; j + 32 <= nn; j += 32) {
    float16 c[CPU_GEMV_ROWS][2];
    for (int i = 0; i < CPU_GEMV_ROWS; i++)
      for (int v = 0; v < 2; v++) c[i][v] = vload16(v, sc + i * nc + j);
    for (int k = 0; k < kn; k++) {
      const float16 b0 = B_LOAD16(b + k * sbk + j), b1 = B_LOAD16(b + k * sbk + j + 16);
#pragma unroll
      for (int i = 0; i < CPU_GEMV_ROWS; i++) {
        const float16 a = (float16)(sa[i * kc + k]);
        c[i][0] = fma(a, b0, c[i][0]), c[i][1] = fma(a, b1, c[i][1]);
      }
    }
    for (int i = 0; i < CPU_GEMV_ROWS; i++)
      for (int v = 0; v < 2; v++) vstore16(c[i][v], v, sc + i * nc + j);
  }
  for (; j < nn; j++)
    for (int k = 0; k < kn; k++) {
      const float x = B_LOAD1(b + k * sbk + j);
      for (int i = 0; i < CPU_GEMV_ROWS; i++) sc[i * nc + j] += sa[i * kc + k] * x;
    }
}

// The same for columns of B that may lie together: one dot product for each.
static inline void multiply_along_columns(global const B_T* b, long sbk, long sbn, int kn, int nn, local const float* sa,
                                          int kc, local float* sc, int nc, int M) {
  for (int j = 0; j < nn; j++) {
    global const B_T* p = b + j * sbn;
    int k = 0;
    float16 c0 = 0.f, c1 = 0.f, c2 = 0.f, c3 = 0.f;
    if (sbk == 1 && M == 1) {
      for (; k + 64 <= kn; k += 64) {
        c0 = fma(B_LOAD16(p + k), vload16(0, sa + k), c0), c1 = fma(B_LOAD16(p + k + 16), vload16(1, sa + k), c1);
        c2 = fma(B_LOAD16(p + k + 32), vload16(2, sa + k), c2), c3 = fma(B_LOAD16(p + k + 48), vload16(3, sa + k), c3);
      }
      c0 = (c0 + c1) + (c2 + c3), c1 = c2 = c3 = 0.f;
    }
    if (sbk == 1)
      for (; k + 16 <= kn; k += 16) {
        const float16 x = B_LOAD16(p + k);
        c0 = fma(x, vload16(0, sa + k), c0), c1 = fma(x, vload16(0, sa + kc + k), c1);
        c2 = fma(x, vload16(0, sa + 2 * kc + k), c2), c3 = fma(x, vload16(0, sa + 3 * kc + k), c3);
      }
    float sum[CPU_GEMV_ROWS] = {0, 0, 0, 0};
    for (; k < kn; k++) {
      const float x = B_LOAD1(p + k * sbk);
      for (int i = 0; i < CPU_GEMV_ROWS; i++) sum[i] += sa[i * kc + k] * x;
    }
    sc[j] += sum[0] + sum_of(c0), sc[nc + j] += sum[1] + sum_of(c1);
    sc[2 * nc + j] += sum[2] + sum_of(c2), sc[3 * nc + j] += sum[3] + sum_of(c3);
  }
}
#endif

// Products with few rows (M <= CPU_GEMV_ROWS), bound by reading B once: one work-item computes nc columns of all rows.
kernel __attribute__((reqd_work_group_size(1, 1, 1))) void gemm_cpu_gemv(
    global const A_T* A, long oa, long sab, long sam, long sak, global const B_T* B, long ob, long sbb, long sbk, long sbn,
    global T* C, long oc, long scb, long scm, long scn, global const T* D, long od, long sdb, long sdm, long sdn,
    float alpha, float beta, int has_d, float low, float high, int M, int N, int K, int nc, int kc,
    local float* scratch GROUP_PARAMETERS EPILOGUE_PARAMETERS) {
  const int n0 = get_global_id(0) * nc, nn = min(nc, N - n0);
  const long batch = get_global_id(1);
  A += oa + batch * sab;
  B += ob + B_STEP(batch * sbb + n0 * sbn);
  C += oc + batch * scb + n0 * scn;
  D += od + batch * sdb + n0 * sdn;
  local float* sc = scratch;             // [CPU_GEMV_ROWS][nc]
  local float* sa = scratch + CPU_GEMV_ROWS * nc;  // [CPU_GEMV_ROWS][kc]
  for (int i = 0; i < CPU_GEMV_ROWS * nc; i++) sc[i] = 0.f;
  for (int i = M * kc; i < CPU_GEMV_ROWS * kc; i++) sa[i] = 0.f;
  for (int kb = 0; kb < K; kb += kc) {
    const int kn = min(kc, K - kb);
    for (int i = 0; i < M; i++) a_pack_rows(A + i * sam + kb * sak, 0, sak == 1, kn, kn, sa + i * kc, kc);
    if (sak != 1)
      for (int i = 0; i < M; i++)
        for (int k = 0; k < kn; k++) sa[i * kc + k] = A_LOAD1(A + i * sam + (kb + k) * sak);
#ifdef B_NIBBLES
    local float* sums = sa + CPU_GEMV_ROWS * kc;  // [CPU_GEMV_ROWS][kc / LEAST_GROUP]
    for (int i = 0; i < (M == 1 ? 1 : CPU_GEMV_ROWS); i++) split_pairs(sa + i * kc, kn, sums + i * (kc / LEAST_GROUP));
    for (int j = 0; j < nn; j++) {
      global const uchar* b = B + B_STEP(j * sbn + kb);
      if (M == 1) group_dot_of_one(b, sa, kc, sums, kc / LEAST_GROUP, kb, kn, n0 + j, sc + j, nc GROUP_ARGUMENTS);
      else group_dot(b, sa, kc, sums, kc / LEAST_GROUP, kb, kn, n0 + j, sc + j, nc GROUP_ARGUMENTS);
    }
#else
    global const B_T* b = B + kb * sbk;
    if (sbn == 1) multiply_along_rows(b, sbk, kn, nn, sa, kc, sc, nc, M);
    else multiply_along_columns(b, sbk, sbn, kn, nn, sa, kc, sc, nc, M);
#endif
  }
  for (int i = 0; i < M; i++)
    for (int j = 0; j < nn; j++) {
      float v = alpha * sc[i * nc + j];
      if (has_d) v += beta * load1(D + i * sdm + j * sdn);
      store1(C + i * scm + j * scn, FINISH(v, low, high, batch * scb + i * scm + (n0 + j) * scn, i, n0 + j));
    }
}
