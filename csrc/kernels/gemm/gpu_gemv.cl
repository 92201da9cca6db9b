// Products with few rows for GPU-class devices, every size and stride at run time:
//   c[b,r,n] = alpha * sum_k x[b,r,k] * a[b,n,k] + beta * d[b,r,n]      (d unread when beta is 0), within bounds
// Bound by reading the matrix a once. Neighbouring work-items read neighbours of a along k (gemm_gpu_gemv_along_k) or along n
// (gemm_gpu_gemv_along_n), whichever lie together; the partial sums of a work-group meet in local memory. With several parts
// of k the sums go to `partial` and common/split_reduce.cl adds them, always in the same order.
//
// Build-time macros besides common/gpu_tile.clh's: ROWS, the rows that a work-item has accumulators for.
#include "common/operands.clh"
#include "kernels/gemm/params.h"

// NAME1(p): an element; NAME4(p, step, vector): four of them, in a row and aligned where `vector`.
#define ELEMENTS(NAME, TYPE, ONE, FOUR)                                                         \
  static inline ACC NAME##1(global const TYPE* p) { return ONE; }                               \
  static inline ACC4 NAME##4(global const TYPE* p, long step, int vector) {                     \
    if (vector) return FOUR;                                                                    \
    return (ACC4)(NAME##1(p), NAME##1(p + step), NAME##1(p + 2 * step), NAME##1(p + 3 * step)); \
  }
#if defined(T_DOUBLE)
#define TO_ACC4 convert_double4
#else
#define TO_ACC4 convert_float4
#endif
// Four bytes as numbers of float8.
#define FLOATS8(FROM, v) (ACC4)(FROM((v).x), FROM((v).y), FROM((v).z), FROM((v).w))
#if defined(A_E4M3) || defined(A_E5M2)
static inline ACC4 x_numbers(uchar4 v) { return FLOATS8(A_NUMBER, v); }
ELEMENTS(x, uchar, A_NUMBER(*p), x_numbers(*(global const uchar4*)p))
#elif defined(A_CHAR)
ELEMENTS(x, char, (ACC)*p, TO_ACC4(*(global const char4*)p))
#elif defined(A_UCHAR)
ELEMENTS(x, uchar, (ACC)*p, TO_ACC4(*(global const uchar4*)p))
#else
ELEMENTS(x, T, load1(p), load4(p))
#endif
#if defined(B_NIBBLES)
#elif defined(B_E4M3) || defined(B_E5M2)
static inline ACC4 a_numbers(uchar4 v) { return FLOATS8(B_NUMBER, v); }
ELEMENTS(a, uchar, B_NUMBER(*p), a_numbers(*(global const uchar4*)p))
#elif defined(B_CHAR)
ELEMENTS(a, char, (ACC)*p, TO_ACC4(*(global const char4*)p))
#elif defined(B_UCHAR)
ELEMENTS(a, uchar, (ACC)*p, TO_ACC4(*(global const uchar4*)p))
#else
ELEMENTS(a, T, load1(p), load4(p))
#endif

static inline ACC sum4(ACC4 v) { return (v.x + v.y) + (v.z + v.w); }

// Writes the sum v of row r and column n, or its part.
static inline void finish(const GemmGemv* p, global C_T* c, global const T* d, global ACC* partial, ACC alpha, ACC beta,
                          int batch, int r, int n, ACC v EPILOGUE_PARAMETERS) {
  if (p->splits > 1) {
    const long part = (long)get_group_id(1) * p->batch + batch;
    partial[p->partial_offset + (part * p->rows + r) * p->n + n] = v;
    return;
  }
  v *= alpha;
  if (beta != 0) v += beta * load1(d + p->d_offset + batch * p->d_batch + r * p->d_row + n * p->d_n);
  const long at = batch * p->c_batch + r * p->c_row + n * p->c_n;
  store_c(c + p->c_offset + at, FINISH(v, p->low, p->high, at, r, n));
}

static inline void rows_of_x(int* offset, const GemmGemv* p) {
#pragma unroll
  for (int r = 0; r < ROWS; r++)  // rows that do not exist repeat the last one, and are never stored
    offset[r] = (int)(min(r, p->rows - 1) * p->x_row);
}

#ifdef B_NIBBLES
#define GEMV_STEP 8
// Four elements, without scale and zero, whose nibbles are the lowest bits of q: as numbers of 2^23 and more.
static inline ACC4 numbers4(uint4 q) { return as_float4(q & 15 | 0x4b000000) - (float)((1 << 23) + 8); }

// The sums of a work-item along k: of every lanes-th eight of [k0, k1), which one word holds.
static inline void sum_of_groups(ACC acc[GEMV_WIDE][ROWS], const GemmGemv* p, global const uchar* a, int a_next,
                                 global const A_T* x, const int* x_row, int k0, int k1, int column, int next,
                                 int vector GROUP_PARAMETERS) {
  const int step = p->lanes * GEMV_STEP;
#pragma unroll 4  // loads in flight
  for (int k = k0; k < k1; k += step) {
    ACC4 first[GEMV_WIDE], last[GEMV_WIDE];
    ACC scale[GEMV_WIDE], zero[GEMV_WIDE];
    global const T* scales = GROUP_OF(k, column);
#pragma unroll
    for (int i = 0; i < GEMV_WIDE; i++) {
      const uint word = *(global const uint*)(a + k / 2 + i * a_next);
      first[i] = numbers4((uint4)(word >> 4, word, word >> 12, word >> 8));
      last[i] = numbers4((uint4)(word >> 20, word >> 16, word >> 28, word >> 24));
      scale[i] = load1(scales + 2 * i * next), zero[i] = load1(scales + 2 * i * next + 1);
    }
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
      global const A_T* at = x + k * p->x_k + x_row[r];
      const ACC4 u = x4(at, p->x_k, vector), v = x4(at + 4 * p->x_k, p->x_k, vector);
      const ACC sum = sum4(u + v);
#pragma unroll
      for (int i = 0; i < GEMV_WIDE; i++) acc[i][r] += scale[i] * sum4(first[i] * u + last[i] * v) + zero[i] * sum;
    }
  }
}
#else
#define GEMV_STEP 4
// The sums of a work-item along k: of every lanes-th four of [k0, k1), then of what is left.
static inline void sum_along_k(ACC acc[GEMV_WIDE][ROWS], const GemmGemv* p, global const B_T* a, int a_next,
                               global const A_T* x, const int* x_row, int k0, int k1, int vector) {
  const int step = p->lanes * 4;
  int k = k0;
#pragma unroll 4  // loads in flight
  for (; k + 4 <= k1; k += step) {
    ACC4 v[GEMV_WIDE];
#pragma unroll
    for (int i = 0; i < GEMV_WIDE; i++) v[i] = a4(a + k * p->a_k + i * a_next, p->a_k, vector);
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
      const ACC4 u = x4(x + k * p->x_k + x_row[r], p->x_k, vector);
#pragma unroll
      for (int i = 0; i < GEMV_WIDE; i++) acc[i][r] += sum4(v[i] * u);
    }
  }
  for (; k < k1; k++)  // only the work-item that the incomplete four falls to
#pragma unroll
    for (int r = 0; r < ROWS; r++)
#pragma unroll
      for (int i = 0; i < GEMV_WIDE; i++) acc[i][r] += a1(a + k * p->a_k + i * a_next) * x1(x + k * p->x_k + x_row[r]);
}
#endif

// Global size: {batch * groups of rows of a * GEMV_ITEMS, splits}; a work-group takes GEMV_ITEMS / lanes * GEMV_WIDE rows.
__attribute__((reqd_work_group_size(GEMV_ITEMS, 1, 1))) kernel void gemm_gpu_gemv_along_k(
    global const A_T* restrict x, global const B_T* restrict a, global C_T* c, global const T* d, global ACC* partial,
    ACC alpha, ACC beta, GemmGemv p GROUP_PARAMETERS EPILOGUE_PARAMETERS) {
  local ACC sums[GEMV_WIDE * ROWS * (GEMV_ITEMS + 1)];
  const int item = get_local_id(0), lane = item % p.lanes, team = item / p.lanes, teams = GEMV_ITEMS / p.lanes;
  const int groups = (p.n + teams * GEMV_WIDE - 1) / (teams * GEMV_WIDE);
  const int batch = get_group_id(0) / groups, first = get_group_id(0) % groups * teams * GEMV_WIDE;
  const int n = min(first + team * GEMV_WIDE, p.n - 1), a_next = n + 1 < p.n ? (int)p.a_n : 0;
  const int k0 = get_group_id(1) * p.k_part, k1 = min(k0 + p.k_part, p.k);
  a += p.a_offset + B_STEP(batch * p.a_batch + n * p.a_n);
  x += p.x_offset + batch * p.x_batch;
  int x_row[ROWS];
  rows_of_x(x_row, &p);
  ACC acc[GEMV_WIDE][ROWS];
#pragma unroll
  for (int i = 0; i < GEMV_WIDE; i++)
#pragma unroll
    for (int r = 0; r < ROWS; r++) acc[i][r] = 0;
#ifdef B_NIBBLES
  sum_of_groups(
      acc, &p, a, B_STEP(a_next), x, x_row, k0 + lane * GEMV_STEP, k1, n, n + 1 < p.n, p.x_vector GROUP_ARGUMENTS);
#else
  if (p.a_vector && p.x_vector) sum_along_k(acc, &p, a, a_next, x, x_row, k0 + lane * GEMV_STEP, k1, 1);
  else sum_along_k(acc, &p, a, a_next, x, x_row, k0 + lane * GEMV_STEP, k1, 0);
#endif

#pragma unroll
  for (int i = 0; i < GEMV_WIDE; i++)
#pragma unroll
    for (int r = 0; r < ROWS; r++) sums[(i * ROWS + r) * (GEMV_ITEMS + 1) + item] = acc[i][r];
  barrier(CLK_LOCAL_MEM_FENCE);
  for (int o = item; o < teams * GEMV_WIDE * ROWS; o += GEMV_ITEMS) {
    const int which = o / (GEMV_WIDE * ROWS), slot = o % (GEMV_WIDE * ROWS);
    const int row = slot % ROWS, column = first + which * GEMV_WIDE + slot / ROWS;
    if (row >= p.rows || column >= p.n) continue;
    ACC v = 0;
    for (int i = 0; i < p.lanes; i++) v += sums[slot * (GEMV_ITEMS + 1) + which * p.lanes + i];
    finish(&p, c, d, partial, alpha, beta, batch, row, column, v EPILOGUE_ARGUMENTS);
  }
}

#ifndef B_NIBBLES
// The sums of a work-item for four neighbouring columns: of every slices-th k.
static inline void sum_along_n(ACC4 acc[ROWS], const GemmGemv* p, global const B_T* a, long a_step, global const A_T* x,
                               const int* x_row, int k0, int k1, int slices, int vector) {
#pragma unroll 4  // loads in flight
  for (int k = k0; k < k1; k += slices) {
    const ACC4 v = a4(a + k * p->a_k, a_step, vector);
#pragma unroll
    for (int r = 0; r < ROWS; r++) acc[r] += x1(x + k * p->x_k + x_row[r]) * v;
  }
}

// Global size: {batch * groups of columns * GEMV_ITEMS, splits}; a work-group takes lanes * 4 columns.
__attribute__((reqd_work_group_size(GEMV_ITEMS, 1, 1))) kernel void gemm_gpu_gemv_along_n(
    global const A_T* restrict x, global const B_T* restrict a, global C_T* c, global const T* d, global ACC* partial,
    ACC alpha, ACC beta, GemmGemv p GROUP_PARAMETERS EPILOGUE_PARAMETERS) {
  local ACC sums[4 * ROWS * (GEMV_ITEMS + 1)];
  const int item = get_local_id(0), lane = item % p.lanes, slice = item / p.lanes, slices = GEMV_ITEMS / p.lanes;
  const int groups = (p.n + p.lanes * 4 - 1) / (p.lanes * 4);
  const int batch = get_group_id(0) / groups, first = get_group_id(0) % groups * p.lanes * 4;
  const int n = first + lane * 4, left = p.n - n;
  const int k0 = get_group_id(1) * p.k_part, k1 = min(k0 + p.k_part, p.k);
  a += p.a_offset + batch * p.a_batch;
  x += p.x_offset + batch * p.x_batch;
  int x_row[ROWS];
  rows_of_x(x_row, &p);
  ACC4 acc[ROWS];
#pragma unroll
  for (int r = 0; r < ROWS; r++) acc[r] = (ACC4)(0);
  if (left >= 4 && p.a_vector) {
    sum_along_n(acc, &p, a + n * p.a_n, p.a_n, x, x_row, k0 + slice, k1, slices, 1);
  } else if (left >= 4) {
    sum_along_n(acc, &p, a + n * p.a_n, p.a_n, x, x_row, k0 + slice, k1, slices, 0);
  } else if (left > 0) {  // one, two or three columns
    for (int k = k0 + slice; k < k1; k += slices) {
      ACC4 v = (ACC4)(0);
      v.x = a1(a + k * p.a_k + n * p.a_n);
      if (left > 1) v.y = a1(a + k * p.a_k + (n + 1) * p.a_n);
      if (left > 2) v.z = a1(a + k * p.a_k + (n + 2) * p.a_n);
#pragma unroll
      for (int r = 0; r < ROWS; r++) acc[r] += x1(x + k * p.x_k + x_row[r]) * v;
    }
  }

#pragma unroll
  for (int r = 0; r < ROWS; r++) {
    local ACC* o = sums + r * 4 * (GEMV_ITEMS + 1) + item;
    o[0] = acc[r].x, o[GEMV_ITEMS + 1] = acc[r].y, o[2 * (GEMV_ITEMS + 1)] = acc[r].z,
    o[3 * (GEMV_ITEMS + 1)] = acc[r].w;
  }
  barrier(CLK_LOCAL_MEM_FENCE);
  for (int o = item; o < p.lanes * 4 * ROWS; o += GEMV_ITEMS) {
    const int row = o / (p.lanes * 4), j = o % (p.lanes * 4);
    if (row >= p.rows || first + j >= p.n) continue;
    ACC v = 0;
    for (int i = 0; i < slices; i++) v += sums[(row * 4 + j % 4) * (GEMV_ITEMS + 1) + i * p.lanes + j / 4];
    finish(&p, c, d, partial, alpha, beta, batch, row, first + j, v EPILOGUE_ARGUMENTS);
  }
}
#endif
