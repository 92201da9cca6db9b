// GEMM for CPU-like devices in the dtypes that do not compute in float: C = alpha * A * B + beta * D within bounds, any
// strides. As in gemm/cpu_packed.cl, one work-item computes a block of mb x nb: it copies its rows of A as they lie (along
// k or along m) and its columns of B as panels of one register tile's width into scratch, kb of the reduction at a time.
// With -DPAIRS, for sums of integers of 8 bits, a number in scratch is a pair of neighbours along k, in 16 bits each.
// T, S, ACC, LOAD and others are common/element.clh's.
#include "common/operands.clh"
#include "common/touch.clh"
#include "kernels/gemm/params.h"

// E computes. The parts of complex numbers are kept apart, as two planes. Integers of up to 32 bits wrap in 32 bits as they
// do in their own.
#define MULTIPLY_ADD(a, b, c) fma(a, b, c)
#define CONVERT(v) (v)
#define PLANES 1
#if defined(T_DOUBLE)
#define E double
#define V double8
#define W 8
#elif defined(T_COMPLEX_FLOAT) || defined(T_COMPLEX_DOUBLE)
#undef PLANES
#define PLANES 2
#if defined(T_COMPLEX_FLOAT) && defined(NARROW_TILE)
#define E float
#define V float8
#define W 8
#elif defined(T_COMPLEX_FLOAT)
#define E float
#define V float16
#define W 16
#elif defined(NARROW_TILE)
#define E double
#define V double4
#define W 4
#else
#define E double
#define V double8
#define W 8
#endif
#else
#undef MULTIPLY_ADD
#define MULTIPLY_ADD(a, b, c) ((a) * (b) + (c))
#undef CONVERT
#ifdef T_LONG
#define E ulong
#define V ulong8
#define W 8
#define CONVERT(v) convert_ulong8(v)
#else
#define E uint
#define V uint16
#define W 16
#define CONVERT(v) convert_uint16(v)
#endif
#endif
#ifdef PAIRS
#undef MULTIPLY_ADD
#define MULTIPLY_ADD(a, b, c) add_pairs(a, b, c)
#if defined(__AVX512BW__) && defined(__clang__)
typedef short S32 __attribute__((vector_size(64)));
typedef int I16 __attribute__((vector_size(64)));
// c + the products of both numbers of each pair.
inline V add_pairs(V a, V b, V c) {
#ifdef __AVX512VNNI__
  I16 sum = __builtin_ia32_vpdpwssd512(__builtin_astype(c, I16), __builtin_astype(a, I16), __builtin_astype(b, I16));
  return __builtin_astype(sum, V);
#else
  I16 sum = __builtin_ia32_pmaddwd512(__builtin_astype(a, S32), __builtin_astype(b, S32));
  return c + __builtin_astype(sum, V);
#endif
}
#elif defined(__AVX2__) && defined(__clang__)
typedef short S16 __attribute__((vector_size(32)));
typedef int I8 __attribute__((vector_size(32)));
inline uint8 add_pairs8(uint8 a, uint8 b, uint8 c) {
#ifdef __AVXVNNI__
  I8 sum = __builtin_ia32_vpdpwssd256(__builtin_astype(c, I8), __builtin_astype(a, I8), __builtin_astype(b, I8));
  return __builtin_astype(sum, uint8);
#else
  I8 sum = __builtin_ia32_pmaddwd256(__builtin_astype(a, S16), __builtin_astype(b, S16));
  return c + __builtin_astype(sum, uint8);
#endif
}
inline V add_pairs(V a, V b, V c) { return (V)(add_pairs8(a.lo, b.lo, c.lo), add_pairs8(a.hi, b.hi, c.hi)); }
#else
inline V add_pairs(V a, V b, V c) {
  const int16 low = (as_int16(a) << 16 >> 16) * (as_int16(b) << 16 >> 16);
  return c + as_uint16(low + (as_int16(a) >> 16) * (as_int16(b) >> 16));
}
#endif
#endif
#if W == 16
#define VLOAD vload16
#define VSTORE vstore16
#elif W == 8
#define VLOAD vload8
#define VSTORE vstore8
#else
#define VLOAD vload4
#define VSTORE vstore4
#endif

// A register tile has MR rows of up to NV vectors V of W numbers in each plane: 24 accumulators of 512 bits, or 12 of 256,
// which a V of real numbers has two of.
#define MR BLOCKED_ROWS
#ifdef NARROW_TILE
#define NV 1
#else
#define NV (4 / PLANES)
#endif

// x[p] = the plane p of W elements from `from`.
#if PLANES == 2
#define LOAD_PLANES(x, from)                                                                   \
  {                                                                                            \
    const V low = VLOAD(0, (global const E*)(from)), high = VLOAD(1, (global const E*)(from)); \
    x[0] = (V)(low.even, high.even), x[1] = (V)(low.odd, high.odd);                            \
  }
#define PUT(at, plane, v) (at)[0] = (v).x, (at)[plane] = (v).y
#else
#define LOAD_PLANES(x, from) x[0] = CONVERT(VLOAD(0, from));
#define PUT(at, plane, v) (at)[0] = (E)(v)
#endif

#define EACH(i, n) _Pragma("unroll") for (int i = 0; i < n; i++)

// x[r][c] = x[c][r], of W vectors: rounds that interleave rows i and i + W / 2.
inline void transpose(V* x) {
  V y[W];
#pragma unroll
  for (int round = 1; round < W; round *= 2) {
    EACH(i, W / 2) {
      y[2 * i].even = x[i].lo, y[2 * i].odd = x[i + W / 2].lo;
      y[2 * i + 1].even = x[i].hi, y[2 * i + 1].odd = x[i + W / 2].hi;
    }
    EACH(i, W) x[i] = y[i];
  }
}

#define PACK(name) a_##name
#define PACK_T A_T
#include "gemm/cpu_blocked_pack.clh"
#define PACK(name) b_##name
#define PACK_T B_T
#include "gemm/cpu_blocked_pack.clh"
#ifdef PAIRS
#define NUMBERS(k) (((k) + 1) / 2)  // in scratch for so many elements along k
#else
#define NUMBERS(k) (k)
#endif

// c[MR][N * W] = or += sum over k of a[row[r] + k * step] * b[k][N * W]; planes of a and c lie a_plane and c_plane apart,
// those of b beside each other.
#define TILE(N)                                                                                                      \
  inline void tile##N(local const E* a, const int* row, int step, int a_plane, int nk, local const E* b, local E* c, \
                      int c_width, int c_plane, int add) {                                                           \
    V sum[PLANES][MR][N];                                                                                            \
    EACH(p, PLANES) EACH(r, MR) EACH(v, N) sum[p][r][v] = 0;                                                         \
    for (int k = 0, i = 0; k < nk; k++, i += step, b += PLANES * N * W) {                                            \
      V of[PLANES][N];                                                                                               \
      EACH(p, PLANES) EACH(v, N) of[p][v] = VLOAD(p * N + v, b);                                                     \
      EACH(r, MR) {                                                                                                  \
        const V x = (V)(a[row[r] + i]);                                                                              \
        EACH(p, PLANES) EACH(v, N) sum[p][r][v] = MULTIPLY_ADD(x, of[p][v], sum[p][r][v]);                           \
        TURNED(N)                                                                                                    \
      }                                                                                                              \
    }                                                                                                                \
    EACH(p, PLANES) EACH(r, MR) EACH(v, N) {                                                                         \
      local E* to = c + p * c_plane + r * c_width;                                                                   \
      VSTORE(add ? VLOAD(v, to) + sum[p][r][v] : sum[p][r][v], v, to);                                               \
    }                                                                                                                \
  }
#if PLANES == 2  // the products with the imaginary part
#define TURNED(N)                                            \
  const V y = (V)(a[row[r] + i + a_plane]);                  \
  EACH(v, N) {                                               \
    sum[0][r][v] = MULTIPLY_ADD(-y, of[1][v], sum[0][r][v]); \
    sum[1][r][v] = MULTIPLY_ADD(y, of[0][v], sum[1][r][v]);  \
  }
#else
#define TURNED(N)
#endif

TILE(1)
#if NV > 1
TILE(2)
#endif
#if NV > 2
TILE(3)
TILE(4)
#endif

inline void tile(int nv, local const E* a, const int* row, int step, int a_plane, int nk, local const E* b, local E* c,
                 int c_width, int c_plane, int add) {
#define TILE_OF(N) \
  if (nv == N) tile##N(a, row, step, a_plane, nk, b, c, c_width, c_plane, add);
  TILE_OF(1)
#if NV > 1
  TILE_OF(2)
#endif
#if NV > 2
  TILE_OF(3)
  TILE_OF(4)
#endif
}

inline ACC element_of(local const E* c, int plane) {
#if PLANES == 2
  return (ACC)(c[0], c[plane]);
#elif defined(T_DOUBLE)
  return c[0];
#else
  return (long)c[0];
#endif
}

#if PLANES == 2
inline T stored(local const E* c, int plane) { return (T)(c[0], c[plane]); }
inline int is_one(S factor) { return factor.x == 1 && factor.y == 0; }
#else
inline T stored(local const E* c, int plane) { return (T)c[0]; }
inline int is_one(S factor) { return factor == 1; }
#endif

// A's rows as the tiles want them: along k where they lie so, else along m.
inline void copy_a(global const A_T* src, long sam, long sak, int mn, int kn, int along_k, local E* dst, int k_pitch,
                   int m_pitch) {
#ifdef PAIRS
  if (along_k) a_pair_lines(src, sam, sak, mn, kn, dst, k_pitch);
  else a_pair_rows(src, sak, sam, kn, mn, mn, dst, m_pitch);
#else
  if (along_k) a_pack(src, sam, sak, mn, kn, kn, dst, PLANES * k_pitch, k_pitch);
  else a_pack(src, sak, sam, kn, mn, mn, dst, PLANES * m_pitch, m_pitch);
#endif
}

// A panel of B, of whole vectors.
inline void copy_b(global const B_T* src, long sbk, long sbn, int kn, int jn, int width, local E* dst) {
#ifdef PAIRS
  b_pair_rows(src, sbk, sbn, kn, jn, width, dst, width);
#else
  b_pack(src, sbk, sbn, kn, jn, width, dst, PLANES * width, width);
#endif
}

// Finishes and stores a block's sums. C and D begin at the block, `begin` elements behind the first result.
inline void store_block(local const E* sc, int np, int plane, int mn, int nn, global C_T* C, long begin, long scm,
                        long scn, global const T* D, long sdm, long sdn, S alpha, S beta, int has_d, float low,
                        float high, int m0, int n0 EPILOGUE_PARAMETERS) {
#ifdef EPILOGUE
  const int plain = is_one(alpha) && !has_d && scn == 1;
#else
  const int plain = is_one(alpha) && !has_d && scn == 1 && low == -INFINITY && high == INFINITY;
#endif
  if (plain) {
    for (int i = 0; i < mn; i++) {
      local const E* from = sc + i * np;
#pragma clang loop vectorize(assume_safety)
      for (int j = 0; j < nn; j++)
#ifdef EPILOGUE
        STORE_C(FINISH(stored(from + j, plane), low, high, begin + i * scm + j, m0 + i, n0 + j), C, i * scm + j);
#else
        C[i * scm + j] = stored(from + j, plane);
#endif
    }
    return;
  }
  for (int i = 0; i < mn; i++)
    for (int j = 0; j < nn; j++) {
      ACC v = MUL(alpha, element_of(sc + i * np + j, plane));
      if (has_d) v += MUL(beta, LOAD(D, i * sdm + j * sdn));
      STORE_C(FINISH(v, low, high, begin + i * scm + j * scn, m0 + i, n0 + j), C, i * scm + j * scn);
    }
}

kernel __attribute__((reqd_work_group_size(1, 1, 1))) void gemm_cpu_blocked(
    global const A_T* A, long oa, long sab, long sam, long sak, global const B_T* B, long ob, long sbb, long sbk,
    long sbn, global C_T* C, long oc, long scb, long scm, long scn, global const T* D, long od, long sdb, long sdm,
    long sdn, S alpha, S beta, int has_d, float low, float high, int M, int N, int K, int mb, int nb, int kb,
    local E* scratch EPILOGUE_PARAMETERS) {
  const int m0 = get_global_id(0) * mb, n0 = get_global_id(1) * nb;
  const long batch = get_global_id(2);
  const int mn = min(mb, M - m0), nn = min(nb, N - n0), np = (nn + W - 1) / W * W, plane = (mn + MR) * np;
  // an odd number of cache lines between rows, so that the rows of a tile do not compete for one cache set
  const int k_pitch = kb + 64 / sizeof(E), m_pitch = mb + 64 / sizeof(E);
  local E* sa = scratch;
  local E* sb = sa + PLANES * max(mb * k_pitch, kb * m_pitch);
  local E* sc = sb + kb * BLOCKED_COLUMNS;
  A += oa + batch * sab + m0 * sam;
  B += ob + batch * sbb + n0 * sbn;
  C += oc + batch * scb + m0 * scm + n0 * scn;
  D += od + batch * sdb + m0 * sdm + n0 * sdn;
  const int along_k = sak == 1 || sam != 1, a_plane = along_k ? k_pitch : m_pitch;
  const int row_step = along_k ? PLANES * k_pitch : 1, k_step = along_k ? 1 : PLANES * m_pitch;
  for (int k0 = 0; k0 == 0 || k0 < K; k0 += kb) {  // once where K is 0, for the zeros
    const int kn = min(kb, K - k0);
    copy_a(A + k0 * sak, sam, sak, mn, kn, along_k, sa, k_pitch, m_pitch);
    for (int j = 0; j < nn; j += NV * W) {
      const int jn = min(NV * W, nn - j), nv = (jn + W - 1) / W;
      copy_b(B + k0 * sbk + j * sbn, sbk, sbn, kn, jn, nv * W, sb);
      // The panel that comes next lies in as many pages as it has rows: each tile fetches its share of them.
      const int ends = j + NV * W >= nn, rows = sbn == 1 ? kb : NV * W, count = sbn == 1 ? NV * W : kb;
      global const B_T* next = ends ? B + (k0 + kb) * sbk : B + k0 * sbk + (j + NV * W) * sbn;
      const int touches = (sbn == 1 || sbk == 1) && (!ends || k0 + kb < K);
      for (int i = 0; i < mn; i += MR) {
        if (touches) b_touch_rows(next, sbn == 1 ? sbk : sbn, i * rows / mn, min(i + MR, mn) * rows / mn, count);
        int row[MR];
        for (int r = 0; r < MR; r++) row[r] = min(i + r, mn - 1) * row_step;
        tile(nv, sa, row, k_step, a_plane, NUMBERS(kn), sb, sc + i * np + j, np, plane, k0 > 0);
      }
    }
  }
  store_block(sc, np, plane, mn, nn, C, batch * scb + m0 * scm + n0 * scn, scm, scn, D, sdm, sdn, alpha, beta, has_d,
              low, high, m0, n0 EPILOGUE_ARGUMENTS);
}
