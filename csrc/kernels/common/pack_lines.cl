// Copies an operand to lines of contiguous elements, for kernels that read no other layout: along k of a product, over the
// channels of a pixel or a tap. A work-group a tile, through local memory, so that both what is read and what is written
// lies together. After common/gpu_tile.clh and common/divider.clh.
#include "kernels/common/pack_lines.h"

#define TILE ((int)(sizeof(T) == 1 ? PACK_BYTE_TILE : PACK_TILE))
#define PITCH (TILE + (int)(sizeof(T) < 4 ? 4 / sizeof(T) : 1))  // lines of an odd number of words, on different banks
#define ROWS (PACK_ITEMS / TILE)                                 // that work-items read or write at once
#define ROUNDS (TILE / ROWS)

// Where a line begins in what is copied.
static inline long line_of(const PackLines* p, uint line) {
  const uint row = dlb_divide(line, p->width), plane = dlb_divide(row, p->height);
  return (line - row * p->width.divisor) * p->from_line[0] + (row - plane * p->height.divisor) * p->from_line[1] +
         plane * p->from_line[2];
}

// Global size: {tiles along the elements * tiles along the lines * inner * outer * PACK_ITEMS}.
__attribute__((reqd_work_group_size(PACK_ITEMS, 1, 1))) kernel void pack_lines(global const T* from, global T* to,
                                                                               PackLines p) {
  local T tile[TILE * PITCH];
  const int x = get_local_id(0) % TILE, y = get_local_id(0) / TILE;
  const uint tiles_e = (p.length + TILE - 1) / TILE, tiles_l = (p.lines + TILE - 1) / TILE;
  const uint group = get_group_id(0), matrix = group / tiles_e / tiles_l, outer = dlb_divide(matrix, p.inner);
  const int first_e = group % tiles_e * TILE, first_l = group / tiles_e % tiles_l * TILE;
  const uint inner = matrix - outer * p.inner.divisor;
  from += p.from_offset + outer * p.from_outer + inner * p.from_inner;
  to += p.to_offset + outer * p.to_outer + inner * p.to_inner;
  T elements[ROUNDS];  // all are loaded before the first is stored
  if (p.elements_fast) {
    const int e = first_e + x;
#pragma unroll
    for (int i = 0; i < ROUNDS; i++) {
      const int line = first_l + y + i * ROWS;
      elements[i] = line < p.lines && e < p.length ? from[line_of(&p, line) + e * p.from_element] : 0;
    }
  } else {
    const int line = first_l + x, e = first_e + y;
    from += line_of(&p, line) + e * p.from_element;
#pragma unroll
    for (int i = 0; i < ROUNDS; i++)
      elements[i] = line < p.lines && e + i * ROWS < p.length ? from[i * ROWS * p.from_element] : 0;
  }
#pragma unroll
  for (int i = 0; i < ROUNDS; i++) {
    const int row = y + i * ROWS;
    tile[p.elements_fast ? row * PITCH + x : x * PITCH + row] = elements[i];
  }
  barrier(CLK_LOCAL_MEM_FENCE);
  to += (first_l + y) * p.to_line + first_e + x;
#pragma unroll
  for (int i = 0; i < ROUNDS; i++)
    if (first_l + y + i * ROWS < p.lines && first_e + x < p.length)
      to[i * ROWS * p.to_line] = tile[(y + i * ROWS) * PITCH + x];
}
