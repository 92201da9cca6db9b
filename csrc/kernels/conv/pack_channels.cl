// Copies an image, or weights, so that the channels of a pixel, or of a tap, lie together: for kernels that read no other
// layout. A work-group a tile, through local memory, so that both what is read and what is written lies together. After
// common/gpu_tile.clh and common/divider.clh.
#include "kernels/conv/pack_channels.h"

// Where a line begins in what is copied.
static inline long line_of(const PackChannels* p, uint line) {
  const uint row = dlb_divide(line, p->width), plane = dlb_divide(row, p->height);
  return (line - row * p->width.divisor) * p->from_line[0] + (row - plane * p->height.divisor) * p->from_line[1] +
         plane * p->from_line[2];
}

// Global size: {tiles along the channels * tiles along the lines * inner * outer * PACK_CHANNELS_ITEMS}.
__attribute__((reqd_work_group_size(PACK_CHANNELS_ITEMS, 1, 1))) kernel void pack_channels(global const T* from,
                                                                                            global T* to,
                                                                                            PackChannels p) {
  local T tile[PACK_CHANNELS_TILE * (PACK_CHANNELS_TILE + 1)];
  const int x = get_local_id(0) % PACK_CHANNELS_TILE, y = get_local_id(0) / PACK_CHANNELS_TILE;
  const uint tiles_c = (p.channels + PACK_CHANNELS_TILE - 1) / PACK_CHANNELS_TILE;
  const uint tiles_l = (p.lines + PACK_CHANNELS_TILE - 1) / PACK_CHANNELS_TILE;
  const uint group = get_group_id(0), matrix = group / tiles_c / tiles_l, outer = dlb_divide(matrix, p.inner);
  const int first_c = group % tiles_c * PACK_CHANNELS_TILE, first_l = group / tiles_c % tiles_l * PACK_CHANNELS_TILE;
  const uint inner = matrix - outer * p.inner.divisor;
  from += p.from_offset + outer * p.from_outer + inner * p.from_inner;
  to += p.to_offset + outer * p.to_outer + inner * p.to_inner;
#pragma unroll
  for (int i = y; i < PACK_CHANNELS_TILE; i += PACK_CHANNELS_ITEMS / PACK_CHANNELS_TILE) {
    const int line = p.channels_fast ? i : x, channel = p.channels_fast ? x : i;
    if (first_l + line < p.lines && first_c + channel < p.channels)
      tile[line * (PACK_CHANNELS_TILE + 1) + channel] =
          from[line_of(&p, first_l + line) + (first_c + channel) * p.from_channel];
  }
  barrier(CLK_LOCAL_MEM_FENCE);
#pragma unroll
  for (int line = y; line < PACK_CHANNELS_TILE; line += PACK_CHANNELS_ITEMS / PACK_CHANNELS_TILE)
    if (first_l + line < p.lines && first_c + x < p.channels)
      to[(first_l + line) * p.to_line + first_c + x] = tile[line * (PACK_CHANNELS_TILE + 1) + x];
}
