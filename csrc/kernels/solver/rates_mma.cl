// Products of small matrices on tensor cores, operands and sums in registers; after gpu_tile.clh and gpu_mma.clh.
kernel __attribute__((reqd_work_group_size(ITEMS, 1, 1))) void rates_mma(global float* out, uint operand, int count) {
  local CELL tiles[TILES];
  const int item = get_local_id(0);
  uint a[MI][4], b[NI][2];
#pragma unroll
  for (int i = 0; i < MI; i++)
#pragma unroll
    for (int r = 0; r < 4; r++) a[i][r] = operand;
#pragma unroll
  for (int j = 0; j < NI; j++)
#pragma unroll
    for (int r = 0; r < 2; r++) b[j][r] = operand;
  ACCUMULATORS(acc);
  clear(acc);
  for (int i = 0; i < count; i++) multiply_add(acc, a, b, tiles + 2 * (A_TILE + B_TILE), item);
  float sum = 0.f;
#pragma unroll
  for (int i = 0; i < MI; i++)
#pragma unroll
    for (int j = 0; j < NI; j++)
#pragma unroll
      for (int r = 0; r < 4; r++) sum += acc[i][j][r];
  out[get_global_id(0)] = sum;
}
