// Copies an operand of a product to lines along k, for kernels that take no other: a work-group a tile, through local
// memory, so that both what is read and what is written lies together. After common/gpu_tile.clh.
#include "kernels/gemm/pack_lines.h"

// Global size: {tiles along k * tiles along the rows * matrices * PACK_ITEMS}; in one dimension, since drivers allow few
// work-groups in the others.
__attribute__((reqd_work_group_size(PACK_ITEMS, 1, 1))) kernel void pack_lines(global const T* from, global T* to,
                                                                                PackLines p) {
  local T tile[PACK_TILE * (PACK_TILE + 1)];
  const int x = get_local_id(0) % PACK_TILE, y = get_local_id(0) / PACK_TILE;
  const int tiles_k = (p.k + PACK_TILE - 1) / PACK_TILE, tiles_rows = (p.rows + PACK_TILE - 1) / PACK_TILE;
  const int group = get_group_id(0), first_k = group % tiles_k * PACK_TILE;
  const int first_row = group / tiles_k % tiles_rows * PACK_TILE, matrix = group / tiles_k / tiles_rows;
  from += p.from_offset + matrix * p.from_batch;
  to += p.to_offset + (long)matrix * p.rows * p.pitch;
#pragma unroll
  for (int i = y; i < PACK_TILE; i += PACK_ITEMS / PACK_TILE) {
    const int row = p.k_fast ? i : x, k = p.k_fast ? x : i;
    if (first_row + row < p.rows && first_k + k < p.k)
      tile[row * (PACK_TILE + 1) + k] = from[(first_row + row) * p.from_row + (first_k + k) * p.from_k];
  }
  barrier(CLK_LOCAL_MEM_FENCE);
#pragma unroll
  for (int row = y; row < PACK_TILE; row += PACK_ITEMS / PACK_TILE)
    if (first_row + row < p.rows && first_k + x < p.k)
      to[(first_row + row) * p.pitch + first_k + x] = tile[row * (PACK_TILE + 1) + x];
}
