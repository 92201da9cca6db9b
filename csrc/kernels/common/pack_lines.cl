// Copies an operand to lines of contiguous elements, for kernels that read no other layout: along k of a product, over the
// channels of a pixel or a tap. A work-group a tile, through local memory, so that both what is read and what is written
// lies together. After common/gpu_tile.clh and common/divider.clh.
#include "kernels/common/pack_lines.h"

// Where a line begins in what is copied.
static inline long line_of(const PackLines* p, uint line) {
  const uint row = dlb_divide(line, p->width), plane = dlb_divide(row, p->height);
  return (line - row * p->width.divisor) * p->from_line[0] + (row - plane * p->height.divisor) * p->from_line[1] +
         plane * p->from_line[2];
}

// Global size: {tiles along the elements * tiles along the lines * inner * outer * PACK_ITEMS}.
__attribute__((reqd_work_group_size(PACK_ITEMS, 1, 1))) kernel void pack_lines(global const T* from, global T* to,
                                                                               PackLines p) {
  local T tile[PACK_TILE * (PACK_TILE + 1)];
  const int x = get_local_id(0) % PACK_TILE, y = get_local_id(0) / PACK_TILE;
  const uint tiles_e = (p.length + PACK_TILE - 1) / PACK_TILE;
  const uint tiles_l = (p.lines + PACK_TILE - 1) / PACK_TILE;
  const uint group = get_group_id(0), matrix = group / tiles_e / tiles_l, outer = dlb_divide(matrix, p.inner);
  const int first_e = group % tiles_e * PACK_TILE, first_l = group / tiles_e % tiles_l * PACK_TILE;
  const uint inner = matrix - outer * p.inner.divisor;
  from += p.from_offset + outer * p.from_outer + inner * p.from_inner;
  to += p.to_offset + outer * p.to_outer + inner * p.to_inner;
#pragma unroll
  for (int i = y; i < PACK_TILE; i += PACK_ITEMS / PACK_TILE) {
    const int line = p.elements_fast ? i : x, element = p.elements_fast ? x : i;
    if (first_l + line < p.lines && first_e + element < p.length)
      tile[line * (PACK_TILE + 1) + element] = from[line_of(&p, first_l + line) + (first_e + element) * p.from_element];
  }
  barrier(CLK_LOCAL_MEM_FENCE);
#pragma unroll
  for (int line = y; line < PACK_TILE; line += PACK_ITEMS / PACK_TILE)
    if (first_l + line < p.lines && first_e + x < p.length)
      to[(first_l + line) * p.to_line + first_e + x] = tile[line * (PACK_TILE + 1) + x];
}
