// Batched matrix product for GPU-class devices, sizes and strides at run time:
//   c[b,m,n] = alpha * sum_k a[b,m,k] * b[b,k,n] + beta * d[b,m,n], within bounds
// Any strides (so any transposition), d broadcast by zero strides (a bias, or c itself) and unread when beta is 0.
// A work-group computes one TM x TN tile of one batch element over one part of k; with several parts the sums go to
// `partial` and common/split_reduce.cl finishes them in a fixed order, so results never depend on timing.
#include "common/operands.clh"
#include "kernels/gemm/params.h"

#ifndef GROUP_TILES  // rows of tiles that run together, so that their columns of b are still in the cache
#define GROUP_TILES 8
#endif

INLINE void group_offsets(int* offset, const GemmOperand* o, int item, int rows, int rows_left) {
#pragma unroll
  for (int i = 0; i < GROUPS(rows); i++) {
    const int row = group_row(item, i, rows, o->k_fast), k = group_k(item, i, rows, o->k_fast);
    // rows beyond the matrix repeat its last one: what they yield is never stored
    offset[i] = (int)((o->k_fast ? min(row, rows_left - 1) : row) * o->row + k * o->k);
  }
}

// An element of T on its way to local memory.
INLINE ELEM elem_of(ACC v) {
#if defined(MMA) && defined(T_BFLOAT16)
  return dlb_to_bf16(v);
#elif defined(MMA) && defined(T_HALF)
  ushort bits;
  vstore_half_rte(v, 0, (half*)&bits);
  return bits;
#elif defined(T_INT)
  return (uchar)v;
#else
  return v;
#endif
}

#define OPERAND_T A_T
#ifdef A_NARROW
#define OPERAND_NUMBER A_NUMBER
#endif
#define OPERAND(name) a_##name
#include "gemm/gpu_tiled_load.clh"
#ifdef B_NIBBLES
// The k-tile of B at p, which begins at that column and k, and of which k_left elements of every column exist.
INLINE void load_of_groups(ELEM4* reg, global const uchar* p, const int* offset, int item, int column, int columns_left,
                           int k, int k_left GROUP_PARAMETERS) {
#pragma unroll
  for (int i = 0; i < GROUPS(TN); i++) {
    const int at = group_k(item, i, TN, 1), row = min(group_row(item, i, TN, 1), columns_left - 1);
    reg[i] = (ELEM4)(0);
    if (!group_exists(item, i, TN) || at >= k_left) continue;
    const uint pairs = *(global const ushort*)(p + B_STEP(offset[i]));
    const float4 q = as_float4((uint4)(pairs >> 4, pairs, pairs >> 12, pairs >> 8) & 15 | 0x4b000000);
    global const T* scales = GROUP_OF(k + at, column + row);
    const ACC4 v = (q - (float)((1 << 23) + 8)) * load1(scales) + load1(scales + 1);
    reg[i] = four(elem_of(v.x), elem_of(v.y), elem_of(v.z), elem_of(v.w));
  }
}
#define B_LOAD_GROUPS(reg, k) load_of_groups(reg, b, b_offset, item, tile_n, p.n - tile_n, k, k1 - (k)GROUP_ARGUMENTS)
#else
#define OPERAND_T B_T
#ifdef B_NARROW
#define OPERAND_NUMBER B_NUMBER
#endif
#define OPERAND(name) b_##name
#include "gemm/gpu_tiled_load.clh"
#define B_LOAD_GROUPS(reg, k) b_load_groups(reg, b, b_offset, &p.b, item, TN, p.n - tile_n, k1 - (k))
#endif

// A piece of 4 x 4 results from (row, col) on.
INLINE void store_piece(const ACC4* acc, const GemmTiled* p, global C_T* c, global const T* d, FACTOR alpha,
                        FACTOR beta, int row, int col, long begin EPILOGUE_PARAMETERS) {
#pragma unroll
  for (int r = 0; r < 4; r++, row++) {
    if (row >= p->m || col >= p->n) continue;
    ACC v[4] = {alpha * acc[r].x, alpha * acc[r].y, alpha * acc[r].z, alpha * acc[r].w};
    if (beta != 0)
      for (int e = 0; e < 4; e++)
        if (col + e < p->n) v[e] += beta * load1(d + row * p->d_m + (col + e) * p->d_n);
    global C_T* o = c + row * p->c_m + col * p->c_n;
    long at[4];
    for (int e = 0; e < 4; e++) at[e] = col + e < p->n ? begin + row * p->c_m + (col + e) * p->c_n : -1;
#ifdef EPILOGUE_T
    for (int e = 0; e < 4; e++)
      if (at[e] >= 0) store_c(o + e * p->c_n, dlb_epilogue(v[e], at[e], row, col + e EPILOGUE_ARGUMENTS));
#else
    finish4(v, p->low, p->high, at, row, col, 1 EPILOGUE_ARGUMENTS);
    if (p->c_vector && col + 4 <= p->n) store4(o, (ACC4)(v[0], v[1], v[2], v[3]));
    else
      for (int e = 0; e < 4; e++)
        if (col + e < p->n) store1(o + e * p->c_n, v[e]);
#endif
  }
}

INLINE void store_partial_piece(const ACC4* acc, const GemmTiled* p, global ACC* o, int row, int col) {
#pragma unroll
  for (int r = 0; r < 4; r++, row++) {
    if (row >= p->m || col >= p->n) continue;
    const ACC v[4] = {acc[r].x, acc[r].y, acc[r].z, acc[r].w};
    if (p->n % 4 == 0) *(global ACC4*)(o + (long)row * p->n + col) = acc[r];
    else
      for (int e = 0; e < 4; e++)
        if (col + e < p->n) o[(long)row * p->n + col + e] = v[e];
  }
}

// The work-item's pieces of a tile, whose first element is in that row and column: as sums where the product has several
// parts of k, else as results. `begin` is the place of the batch's first result in memory.
INLINE void store_tile(ACCUMULATORS(acc), local CELL* tiles, Place place, const GemmTiled* p, global ACC* partial,
                       global C_T* c, global const T* d, FACTOR alpha, FACTOR beta, int tile_m, int tile_n,
                       long begin EPILOGUE_PARAMETERS) {
#pragma unroll
  for (int i = 0; i < PIECES_M; i++) {
    const int row = tile_m + piece_row(place, i, 0);
#pragma unroll
    for (int j = 0; j < PIECES_N; j++) {
      const int col = tile_n + piece_column(place, j, 0);
      ACC4 v[4];
      take_piece(v, acc, i, j, tiles, place, 0);
      if (p->splits > 1) store_partial_piece(v, p, partial, row, col);
      else store_piece(v, p, c, d, alpha, beta, row, col, begin EPILOGUE_ARGUMENTS);
    }
  }
}

// Global size: {tiles of m * tiles of n * batch * ITEMS, splits}.
__attribute__((reqd_work_group_size(ITEMS, 1, 1))) kernel void gemm_gpu_tiled(
    global const A_T* restrict a, global const B_T* restrict b, global C_T* c, global const T* d, global ACC* partial,
    FACTOR alpha, FACTOR beta, GemmTiled p GROUP_PARAMETERS EPILOGUE_PARAMETERS) {
  local CELL tiles[TILES] __attribute__((aligned(32)));
  const int item = get_local_id(0);
#ifdef CONSTANTS  // a program for one problem: sets all of GemmTiled but the offsets and bounds
  CONSTANTS(p)
#endif
  const int tiles_m = (p.m + TM - 1) / TM, tiles_n = (p.n + TN - 1) / TN;
  const int batch = get_group_id(0) / (tiles_m * tiles_n), tile = get_group_id(0) % (tiles_m * tiles_n);
  const int first = tile / (GROUP_TILES * tiles_n) * GROUP_TILES, rows = min(tiles_m - first, GROUP_TILES);
  const int tile_m = (first + tile % (GROUP_TILES * tiles_n) % rows) * TM;
  const int tile_n = tile % (GROUP_TILES * tiles_n) / rows * TN;
  const int k0 = get_group_id(1) * p.k_part, k1 = min(k0 + p.k_part, p.k);

  a += p.a.offset + batch * p.a.batch + tile_m * p.a.row + k0 * p.a.k;
  b += p.b.offset + B_STEP(batch * p.b.batch + tile_n * p.b.row + k0 * p.b.k);
  int a_offset[GROUPS(TM)], b_offset[GROUPS(TN)];
  group_offsets(a_offset, &p.a, item, TM, p.m - tile_m);
  group_offsets(b_offset, &p.b, item, TN, p.n - tile_n);

  ACCUMULATORS(acc);
  clear(acc);

  ELEM4 a_reg[GROUPS(TM)], b_reg[GROUPS(TN)];
  a_load_groups(a_reg, a, a_offset, &p.a, item, TM, p.m - tile_m, k1 - k0);
  B_LOAD_GROUPS(b_reg, k0);
  store_groups(a_reg, tiles, item, TM, p.a.k_fast);
  store_groups(b_reg, tiles + 2 * A_TILE, item, TN, p.b.k_fast);
  barrier(CLK_LOCAL_MEM_FENCE);

  const Place place = place_of(item);
  int buffer = 0;
  for (int k = k0; k < k1; k += TK) {
    const bool more = k + TK < k1;
    if (more) {
      a += TK * p.a.k, b += B_STEP(TK * p.b.k);
      a_load_groups(a_reg, a, a_offset, &p.a, item, TM, p.m - tile_m, k1 - k - TK);
      B_LOAD_GROUPS(b_reg, k + TK);
    }
    tile_multiply_add(acc, tiles, buffer, place);
    buffer ^= 1;
    if (more) {
      store_groups(a_reg, tiles + buffer * A_TILE, item, TM, p.a.k_fast);
      store_groups(b_reg, tiles + 2 * A_TILE + buffer * B_TILE, item, TN, p.b.k_fast);
    }
    barrier(CLK_LOCAL_MEM_FENCE);
  }

  const long part = (long)get_group_id(1) * p.batch + batch;
  partial += p.partial_offset + part * p.m * p.n;
  c += p.c_offset + batch * p.c_batch, d += p.d_offset + batch * p.d_batch;
  store_tile(acc, tiles, place, &p, partial, c, d, alpha, beta, tile_m, tile_n, batch * p.c_batch EPILOGUE_ARGUMENTS);
}
