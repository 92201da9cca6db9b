// GEMM for CPU-like devices in the dtypes that do not compute in float: C = alpha * A * B + beta * D within bounds, any
// strides. One work-item computes a block of mb x nb: it copies kb columns of its rows of A and kb rows of its columns of
// B into scratch at a time, and runs register tiles over them. T, S, ACC, LOAD and others are common/element.clh's.
#include "kernels/gemm/params.h"

// E computes, V is a vector of W of them. The parts of complex numbers are kept apart, as two planes. Integers of up to 32
// bits wrap in 32 bits as they do in their own.
#define MULTIPLY_ADD(a, b, c) fma(a, b, c)
#if defined(T_DOUBLE) || defined(T_COMPLEX_DOUBLE)
typedef double E;
typedef double8 V;
#define W 8
#define VLOAD vload8
#define VSTORE vstore8
#elif defined(T_COMPLEX_FLOAT)
typedef float E;
typedef float16 V;
#define W 16
#define VLOAD vload16
#define VSTORE vstore16
#else
#undef MULTIPLY_ADD
#define MULTIPLY_ADD(a, b, c) ((a) * (b) + (c))
#ifdef T_LONG
typedef ulong E;
typedef ulong8 V;
#define W 8
#define VLOAD vload8
#define VSTORE vstore8
#else
typedef uint E;
typedef uint16 V;
#define W 16
#define VLOAD vload16
#define VSTORE vstore16
#endif
#endif

#if defined(T_COMPLEX_FLOAT) || defined(T_COMPLEX_DOUBLE)
#define PLANES 2
#define TILE_VECTORS 1
#else
#define PLANES 1
#define TILE_VECTORS 2
#endif
#define MR BLOCKED_ROWS
#define NR BLOCKED_COLUMNS  // of a block's widths, which are multiples of it

#define TILE_COLUMNS (TILE_VECTORS * W)

#if PLANES == 2
#define PACK(at, plane, v) (at)[0] = (v).x, (at)[plane] = (v).y
#else
#define PACK(at, plane, v) (at)[0] = (E)(v)
#endif

// dst[j / w][k][plane][j % w], for j below nj; zero up to njp. What a register tile reads lies together: rows of a whole
// block would compete for a few of the first cache's sets.
inline void pack(global const T* src, long sk, long sj, int nk, int nj, int njp, const int w, local E* dst) {
  for (int first = 0; first < njp; first += w, dst += PLANES * w * nk) {
    global const T* from = src + first * sj;
    const int n = min(w, nj - first);
    if (sk == 1 && sj != 1 && n == MR && w == MR)
      for (int k = 0; k < nk; k++)
        for (int j = 0; j < MR; j++) PACK(dst + k * PLANES * w + j, w, from[j * sj + k]);
    else if (sk == 1 && sj != 1)
      for (int j = 0; j < n; j++)
        for (int k = 0; k < nk; k++) PACK(dst + k * PLANES * w + j, w, from[j * sj + k]);
    else if (sj == 1 && n == w)
      for (int k = 0; k < nk; k++)
        for (int j = 0; j < w; j++) PACK(dst + k * PLANES * w + j, w, from[k * sk + j]);
    else
      for (int k = 0; k < nk; k++)
        for (int j = 0; j < n; j++) PACK(dst + k * PLANES * w + j, w, from[k * sk + j * sj]);
    for (int k = 0; k < nk * PLANES; k++)
      for (int j = max(n, 0); j < w; j++) dst[k * w + j] = 0;
  }
}

// c[MR][TILE_COLUMNS] = or += a[k][MR] * b[k][TILE_COLUMNS]; planes of c are c_plane elements apart.
inline void tile(local const E* a, local const E* b, int nk, local E* c, int c_width, int c_plane, int add) {
  V sum[PLANES][MR][TILE_VECTORS];
#pragma unroll
  for (int p = 0; p < PLANES; p++)
#pragma unroll
    for (int r = 0; r < MR; r++)
#pragma unroll
      for (int v = 0; v < TILE_VECTORS; v++)
        sum[p][r][v] = add ? VLOAD(v, c + p * c_plane + r * c_width) : (V)(0);
  for (int k = 0; k < nk; k++, a += PLANES * MR, b += PLANES * TILE_COLUMNS) {
#if PLANES == 2
    const V re = VLOAD(0, b), im = VLOAD(1, b);
#pragma unroll
    for (int r = 0; r < MR; r++) {
      const V x = (V)(a[r]), y = (V)(a[MR + r]);
      sum[0][r][0] = MULTIPLY_ADD(-y, im, MULTIPLY_ADD(x, re, sum[0][r][0]));
      sum[1][r][0] = MULTIPLY_ADD(y, re, MULTIPLY_ADD(x, im, sum[1][r][0]));
    }
#else
    const V b0 = VLOAD(0, b), b1 = VLOAD(1, b);
#pragma unroll
    for (int r = 0; r < MR; r++) {
      const V x = (V)(a[r]);
      sum[0][r][0] = MULTIPLY_ADD(x, b0, sum[0][r][0]);
      sum[0][r][1] = MULTIPLY_ADD(x, b1, sum[0][r][1]);
    }
#endif
  }
#pragma unroll
  for (int p = 0; p < PLANES; p++)
#pragma unroll
    for (int r = 0; r < MR; r++)
#pragma unroll
      for (int v = 0; v < TILE_VECTORS; v++) VSTORE(sum[p][r][v], v, c + p * c_plane + r * c_width);
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

kernel __attribute__((reqd_work_group_size(1, 1, 1))) void gemm_blocked(
    global const T* A, long oa, long sab, long sam, long sak, global const T* B, long ob, long sbb, long sbk, long sbn,
    global T* C, long oc, long scb, long scm, long scn, global const T* D, long od, long sdb, long sdm, long sdn, S alpha,
    S beta, int has_d, float low, float high, int M, int N, int K, int mb, int nb, int kb, local E* scratch) {
  const int m0 = get_global_id(0) * mb, n0 = get_global_id(1) * nb;
  const long batch = get_global_id(2);
  const int mn = min(mb, M - m0), nn = min(nb, N - n0);
  const int mp = (mn + MR - 1) / MR * MR, np = (nn + NR - 1) / NR * NR, plane = mp * np;
  local E* sc = scratch;
  local E* sa = sc + PLANES * plane;
  local E* sb = sa + PLANES * kb * mp;
  A += oa + batch * sab + m0 * sam;
  B += ob + batch * sbb + n0 * sbn;
  C += oc + batch * scb + m0 * scm + n0 * scn;
  D += od + batch * sdb + m0 * sdm + n0 * sdn;
  for (int k0 = 0; k0 == 0 || k0 < K; k0 += kb) {  // once where K is 0, for the zeros
    const int kn = min(kb, K - k0);
    pack(A + k0 * sak, sak, sam, kn, mn, mp, MR, sa);
    pack(B + k0 * sbk, sbk, sbn, kn, nn, np, TILE_COLUMNS, sb);
    for (int j = 0; j < np; j += TILE_COLUMNS)
      for (int i = 0; i < mp; i += MR)
        tile(sa + i * PLANES * kn, sb + j * PLANES * kn, kn, sc + i * np + j, np, plane, k0 > 0);
  }
  if (is_one(alpha) && !has_d && scn == 1 && low == -INFINITY && high == INFINITY) {
    for (int i = 0; i < mn; i++) {
      local const E* from = sc + i * np;
#pragma clang loop vectorize(assume_safety)
      for (int j = 0; j < nn; j++) C[i * scm + j] = stored(from + j, plane);
    }
    return;
  }
  for (int i = 0; i < mn; i++)
    for (int j = 0; j < nn; j++) {
      ACC v = MUL(alpha, element_of(sc + i * np + j, plane));
      if (has_d) v += MUL(beta, LOAD(D, i * sdm + j * sdn));
      STORE(BOUNDED(v, low, high), C, i * scm + j * scn);
    }
}
