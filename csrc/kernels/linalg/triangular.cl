// clang-format off
// Solutions with triangular matrices that fit a tile. A_T: the element type.
#include "kernels/linalg/linalg.clh"

// Both solve in place for `w` of the right-hand sides x[i * TILE_LANES + lane], with a[i * n + k], whose diagonal is
// conjugated where `conjugate` says so.
#define PIVOT(i) (conjugate ? CONJ(a[(i) * n + (i)]) : a[(i) * n + (i)])
#ifdef DLB_CPU
#define SOLVE_ROW(i, from, to, unit)                                                            \
  {                                                                                             \
    T sum[TILE_LANES];                                                                          \
    DLB_SIMD for (int l = 0; l < w; ++l) sum[l] = x[(i) * TILE_LANES + l];                      \
    for (int k = from; k < to; ++k) {                                                           \
      const T factor = a[(i) * n + k];                                                          \
      DLB_SIMD for (int l = 0; l < w; ++l) sum[l] -= MUL(factor, x[k * TILE_LANES + l]);        \
    }                                                                                           \
    const T pivot = PIVOT(i);                                                                   \
    DLB_SIMD for (int l = 0; l < w; ++l) x[(i) * TILE_LANES + l] = unit ? sum[l] : DIV(sum[l], pivot); \
  }
#else
#define SOLVE_ROW(i, from, to, unit)                                                            \
  FOR_ITEMS(l, 0, w) {                                                                          \
    T sum = x[(i) * TILE_LANES + l];                                                            \
    for (int k = from; k < to; ++k) sum -= MUL(a[(i) * n + k], x[k * TILE_LANES + l]);          \
    x[(i) * TILE_LANES + l] = unit ? sum : DIV(sum, PIVOT(i));                                  \
  }
#endif
#ifdef DLB_CPU
// Four rows at a time: their sums do not wait for one another.
enum { ROWS = 4 };
inline void solve_rows(local const T* a, local T* x, int n, int w, int i, int from, int to, int unit, int upper,
                       int conjugate) {
  T sum[ROWS][TILE_LANES];
#pragma unroll
  for (int r = 0; r < ROWS; ++r) DLB_SIMD for (int l = 0; l < w; ++l) sum[r][l] = x[(i + r) * TILE_LANES + l];
  for (int k = from; k < to; ++k) {
#pragma unroll
    for (int r = 0; r < ROWS; ++r) {
      const T factor = a[(i + r) * n + k];
      DLB_SIMD for (int l = 0; l < w; ++l) sum[r][l] -= MUL(factor, x[k * TILE_LANES + l]);
    }
  }
#pragma unroll
  for (int step = 0; step < ROWS; ++step) {
    const int r = upper ? ROWS - 1 - step : step;
    local T* const row = x + (i + r) * TILE_LANES;
    const T pivot = PIVOT(i + r);
    if (unit) {
      DLB_SIMD for (int l = 0; l < w; ++l) row[l] = sum[r][l];
    } else if (ABS1(pivot) >= TINY) {
      const T inverse = DIV(OF(1), pivot);
      DLB_SIMD for (int l = 0; l < w; ++l) row[l] = MUL(sum[r][l], inverse);
    } else {
      DLB_SIMD for (int l = 0; l < w; ++l) row[l] = DIV(sum[r][l], pivot);
    }
#pragma unroll
    for (int other = 0; other < ROWS; ++other) {
      if (upper ? other >= r : other <= r) continue;
      const T factor = a[(i + other) * n + i + r];
      DLB_SIMD for (int l = 0; l < w; ++l) sum[other][l] -= MUL(factor, row[l]);
    }
  }
}
#endif

inline void solve(local const T* a, local T* x, int n, int w, int what) {
  if (what & SOLVE_LOWER) {
    const int unit = what & SOLVE_LOWER_UNIT, conjugate = 0;
    int i = 0;
#ifdef DLB_CPU
    for (; i + ROWS <= n; i += ROWS) solve_rows(a, x, n, w, i, 0, i, unit, 0, conjugate);
#endif
    for (; i < n; ++i) SOLVE_ROW(i, 0, i, unit)
  }
  if (what & SOLVE_UPPER) {
    const int unit = what & SOLVE_UPPER_UNIT, conjugate = what & SOLVE_MIRROR;
    int i = n;
#ifdef DLB_CPU
    for (; i >= ROWS; i -= ROWS) solve_rows(a, x, n, w, i - ROWS, i, n, unit, 1, conjugate);
#endif
    for (--i; i >= 0; --i) SOLVE_ROW(i, i + 1, n, unit)
  }
}

inline void exchange(local T* x, int i, int j, int w) {
  FOR_ITEMS(l, 0, w) {
    const T other = x[j * TILE_LANES + l];
    x[j * TILE_LANES + l] = x[i * TILE_LANES + l];
    x[i * TILE_LANES + l] = other;
  }
}

// b [n, columns], replaced by the solution of a x = b, in steps of SOLVE_*. A job is `lanes` columns of one matrix.
kernel void solve_tile(global const T* a, const Matrix ma, global T* b, const Matrix mb, global const int* pivots,
                       const Matrix mp, const int n, const int columns, const int what, const int tiles,
                       const Jobs jobs) {
  local T tile[TILE * TILE];
  local T x[TILE * TILE_LANES];
  a += ma.offset, b += mb.offset, pivots += mp.offset;
  int held = -1;
  FOR_JOBS(job, jobs) {
    const int batch = job / tiles, first = (job % tiles) * TILE_LANES, w = min(TILE_LANES, columns - first);
    global const T* const matrix = a + batch * ma.batch;
    global T* const sides = b + batch * mb.batch + first * mb.column;
    global const int* const swaps = pivots + batch * mp.batch;
    if (batch != held) {
      const int mirror = what & SOLVE_MIRROR;
#ifdef DLB_CPU
      for (int k = 0; k < n; ++k)
        for (int i = 0; i < n; ++i)
#else
      FOR_ITEMS(p, 0, n * n) {
        const int i = p % n, k = p / n;
#endif
          tile[i * n + k] = mirror && k > i ? CONJ(matrix[k * ma.row + i * ma.column])
                                            : matrix[i * ma.row + k * ma.column];
#ifndef DLB_CPU
      }
#endif
      held = batch;
    }
    for (int i = 0; i < n; ++i) FOR_ITEMS(l, 0, w) x[i * TILE_LANES + l] = sides[i * mb.row + l * mb.column];
    SYNC;
    if (what & SOLVE_SWAP_FIRST)
      for (int i = 0; i < n; ++i) exchange(x, i, swaps[i] - 1, w);
    if (w == TILE_LANES)
      solve(tile, x, n, TILE_LANES, what);
    else if (w == 1)
      solve(tile, x, n, 1, what);
    else
      solve(tile, x, n, w, what);
    if (what & SOLVE_SWAP_LAST)
      for (int i = n - 1; i >= 0; --i) exchange(x, i, swaps[i] - 1, w);
    for (int i = 0; i < n; ++i) FOR_ITEMS(l, 0, w) sides[i * mb.row + l * mb.column] = x[i * TILE_LANES + l];
    SYNC;
  }
}
