// Products of 32x32 blocks by a CPU's instructions for bfloat16, operands and sums in the nearest cache; after
// cpu_tile.clh and cpu_bf16.clh. `scratch`: the configuration, two tiles of A, two of B, four of sums.
kernel __attribute__((reqd_work_group_size(1, 1, 1))) void rates_bf16(global float* out, int count,
                                                                      local float* scratch) {
  local float* a = scratch + BF16_CONFIG_BYTES / 4;
  for (int i = 0; i < 4 * TILE_BYTES / 4; i++) a[i] = 0.f;
  const size_t first = (size_t)a;
  bf16_begin((local uchar*)scratch);
  bf16_multiply(
      first, first + TILE_BYTES, 64, 0, count, 0, first + 2 * TILE_BYTES, 0, first + 4 * TILE_BYTES, 0, 32, 1);
  bf16_end();
  out[get_global_id(0)] = a[4 * TILE_BYTES / 4];
}
