// Batched matrix product for GPU-class devices, sizes and strides at run time:
//   c[b,m,n] = alpha * sum_k a[b,m,k] * b[b,k,n] + beta * d[b,m,n]
// Any strides (so any transposition), d broadcast by zero strides (a bias, or c itself) and unread when beta is 0.
// A work-group computes one TM x TN tile of one batch element over one part of k; with several parts the sums go to
// `partial` and split_reduce.cl finishes them in a fixed order, so results never depend on timing.
#include "gemm_gpu_tile.clh"

#ifndef A_KFAST  // 1 where a's k stride is the smaller one
#define A_KFAST 1
#endif
#ifndef A_VEC
#define A_VEC 1
#endif
#ifndef B_KFAST
#define B_KFAST 0
#endif
#ifndef B_VEC
#define B_VEC 1
#endif
#ifndef GROUP_TILES  // rows of tiles that run together, so that their columns of b are still in the cache
#define GROUP_TILES 8
#endif

#define A_REGS ((TM * TK / A_VEC + ITEMS - 1) / ITEMS * A_VEC)
#define B_REGS ((TN * TK / B_VEC + ITEMS - 1) / ITEMS * B_VEC)

#define OP a
#define OP_TILE TM
#define OP_PITCH PITCH_M
#define OP_KFAST A_KFAST
#define OP_VEC A_VEC
#include "gemm_gpu_operand.clh"
#define OP b
#define OP_TILE TN
#define OP_PITCH PITCH_N
#define OP_KFAST B_KFAST
#define OP_VEC B_VEC
#include "gemm_gpu_operand.clh"

// Offsets and strides in elements. One row, column or k-tile of an operand must span less than 2^31 elements.
typedef struct {
  long a_offset, b_offset, c_offset, d_offset;
  long a_batch, a_m, a_k;
  long b_batch, b_n, b_k;
  long c_batch, c_m, c_n;
  long d_batch, d_m, d_n;
  int batch, m, n, k;
  int splits, k_part;  // parts of k and the size of each, a multiple of TK
  int c_vector;        // c has unit stride along n, and four neighbours are aligned
  int unused;
} GemmArgs;

static inline void store_tile(ACC4 acc[WM][FN], const GemmArgs* p, global T* c, global const T* d, ACC alpha, ACC beta,
                       int row0, int col0) {
#pragma unroll
  for (int i = 0; i < WM; i++) {
    const int row = row0 + i / 4 * STEP_M + i % 4;
#pragma unroll
    for (int j = 0; j < FN; j++) {
      const int col = col0 + j * STEP_N;
      if (row >= p->m || col >= p->n) continue;
      ACC v[4] = {alpha * acc[i][j].x, alpha * acc[i][j].y, alpha * acc[i][j].z, alpha * acc[i][j].w};
      if (beta != 0)
        for (int e = 0; e < 4; e++)
          if (col + e < p->n) v[e] += beta * load1(d + row * p->d_m + (col + e) * p->d_n);
      global T* o = c + row * p->c_m + col * p->c_n;
      if (p->c_vector && col + 4 <= p->n)
        store4(o, (ACC4)(v[0], v[1], v[2], v[3]));
      else
        for (int e = 0; e < 4; e++)
          if (col + e < p->n) store1(o + e * p->c_n, v[e]);
    }
  }
}

static inline void store_partial(ACC4 acc[WM][FN], const GemmArgs* p, global ACC* o, int row0, int col0) {
#pragma unroll
  for (int i = 0; i < WM; i++) {
    const int row = row0 + i / 4 * STEP_M + i % 4;
#pragma unroll
    for (int j = 0; j < FN; j++) {
      const int col = col0 + j * STEP_N;
      if (row >= p->m || col >= p->n) continue;
      const ACC v[4] = {acc[i][j].x, acc[i][j].y, acc[i][j].z, acc[i][j].w};
      if (p->n % 4 == 0)
        *(global ACC4*)(o + (long)row * p->n + col) = acc[i][j];
      else
        for (int e = 0; e < 4; e++)
          if (col + e < p->n) o[(long)row * p->n + col + e] = v[e];
    }
  }
}

// Global size: {tiles of m * tiles of n * batch * ITEMS, splits}.
__attribute__((reqd_work_group_size(ITEMS, 1, 1))) kernel void gemm_gpu(global const T* restrict a,
                                                                       global const T* restrict b, global T* c,
                                                                       global const T* d, global ACC* partial,
                                                                       ACC alpha, ACC beta, GemmArgs p) {
  local ACC tiles[2 * (A_TILE + B_TILE)] __attribute__((aligned(32)));
  const int item = get_local_id(0);
  const int tiles_m = (p.m + TM - 1) / TM, tiles_n = (p.n + TN - 1) / TN;
  const int batch = get_group_id(0) / (tiles_m * tiles_n), tile = get_group_id(0) % (tiles_m * tiles_n);
  const int first = tile / (GROUP_TILES * tiles_n) * GROUP_TILES, rows = min(tiles_m - first, GROUP_TILES);
  const int tile_m = (first + tile % (GROUP_TILES * tiles_n) % rows) * TM;
  const int tile_n = tile % (GROUP_TILES * tiles_n) / rows * TN;
  const int k0 = get_group_id(1) * p.k_part, k1 = min(k0 + p.k_part, p.k);

  a += p.a_offset + batch * p.a_batch + tile_m * p.a_m + k0 * p.a_k;
  b += p.b_offset + batch * p.b_batch + tile_n * p.b_n + k0 * p.b_k;
  int a_offset[A_REGS / A_VEC], b_offset[B_REGS / B_VEC];
  a_offsets(a_offset, item, p.m - tile_m, p.a_m, p.a_k);
  b_offsets(b_offset, item, p.n - tile_n, p.b_n, p.b_k);

  ACC4 acc[WM][FN];
#pragma unroll
  for (int i = 0; i < WM; i++)
#pragma unroll
    for (int j = 0; j < FN; j++) acc[i][j] = (ACC4)(0);

  ACC a_reg[A_REGS], b_reg[B_REGS];
  a_load(a_reg, a, a_offset, item, k1 - k0);
  b_load(b_reg, b, b_offset, item, k1 - k0);
  a_store(a_reg, tiles, item);
  b_store(b_reg, tiles + 2 * A_TILE, item);
  barrier(CLK_LOCAL_MEM_FENCE);

  const int row = tile_row(item), col = tile_column(item), slice = item / SLICE_ITEMS * (TK / SLICES);
  local const ACC* as = tiles + slice * PITCH_M + row;
  local const ACC* bs = tiles + 2 * A_TILE + slice * PITCH_N + col;
  int buffer = 0;
  for (int k = k0; k < k1; k += TK) {
    const bool more = k + TK < k1;
    if (more) {
      a += TK * p.a_k, b += TK * p.b_k;
      a_load(a_reg, a, a_offset, item, k1 - k - TK);
      b_load(b_reg, b, b_offset, item, k1 - k - TK);
    }
    tile_multiply_add(acc, as + buffer * A_TILE, bs + buffer * B_TILE);
    buffer ^= 1;
    if (more) {
      a_store(a_reg, tiles + buffer * A_TILE, item);
      b_store(b_reg, tiles + 2 * A_TILE + buffer * B_TILE, item);
    }
    barrier(CLK_LOCAL_MEM_FENCE);
  }

#if SLICES > 1
  tile_add_slices(acc, (local ACC4*)tiles, item);
  if (item >= SLICE_ITEMS) return;
#endif
  if (p.splits > 1) {
    const long part = (long)get_group_id(1) * p.batch + batch;
    store_partial(acc, &p, partial + part * p.m * p.n, tile_m + row, tile_n + col);
  } else {
    store_tile(acc, &p, c + p.c_offset + batch * p.c_batch, d + p.d_offset + batch * p.d_batch, alpha, beta,
               tile_m + row, tile_n + col);
  }
}
