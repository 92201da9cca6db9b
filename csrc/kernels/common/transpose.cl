// to[b][j][i] = from[b][i][j] for CPUs, in blocks whose lines are read and written whole. E: an unsigned type of the
// element's size. Strips are BLOCK rows of `from`, of all matrices.
enum { BLOCK = sizeof(E) >= 4 ? 16 : 64 / sizeof(E) };

kernel void dlb_transpose(global const E* from, long from_offset, global E* to, long to_offset, long from_pitch,
                          long to_pitch, long from_batch, long to_batch, uint rows, uint columns, uint strips,
                          uint count, uint per_item) {
  const uint begin = get_global_id(0) * per_item, end = min(begin + per_item, count);
  for (uint strip = begin; strip < end; ++strip) {
    const uint batch = strip / strips, i0 = (strip - batch * strips) * BLOCK, n = min((uint)BLOCK, rows - i0);
    global const E* x = from + from_offset + batch * from_batch + i0 * from_pitch;
    global E* y = to + to_offset + batch * to_batch + i0;
    for (uint j0 = 0; j0 < columns; j0 += BLOCK, x += BLOCK, y += BLOCK * to_pitch) {
      const uint m = min((uint)BLOCK, columns - j0);
      if (n == BLOCK && m == BLOCK) {
        E held[BLOCK * BLOCK];
        for (uint i = 0; i < BLOCK; ++i)
          for (uint j = 0; j < BLOCK; ++j) held[i * BLOCK + j] = x[i * from_pitch + j];
        for (uint j = 0; j < BLOCK; ++j)
          for (uint i = 0; i < BLOCK; ++i) y[j * to_pitch + i] = held[i * BLOCK + j];
      } else {
        for (uint j = 0; j < m; ++j)
          for (uint i = 0; i < n; ++i) y[j * to_pitch + i] = x[i * from_pitch + j];
      }
    }
  }
}
