// GEMM by a CPU's instructions for bfloat16: C = alpha * A * B + beta * D within bounds in bfloat16, any strides. One
// work-item computes a block of mc x nc, kc of the reduction at a time: B is packed in pairs of rows into scratch, A
// is read where it lies along k, or packed.
kernel __attribute__((reqd_work_group_size(1, 1, 1))) void gemm_cpu_bf16(
    global const T* A, long oa, long sab, long sam, long sak, global const T* B, long ob, long sbb, long sbk, long sbn,
    global T* C, long oc, long scb, long scm, long scn, global const T* D, long od, long sdb, long sdm, long sdn,
    float alpha, float beta, int has_d, float low, float high, int M, int N, int K, int mc, int nc, int kc, int copy_a,
    local float* scratch) {
  const int m0 = get_global_id(0) * mc, n0 = get_global_id(1) * nc;
  const long batch = get_global_id(2);
  Bf16Block block = {min(mc, M - m0), min(nc, N - n0), K <= kc};
  const int tiles = (block.cols + 15) / 16;
  block.tail = scratch + 16, block.sums = scratch + BF16_HEAD / 4;
  block.b = block.sums + (block.whole ? 1 : (block.rows + 31) / 32 * ((block.cols + 31) / 32)) * TILE_BYTES;
  block.a = block.b + tiles * ((kc + TILE_K - 1) / TILE_K) * (TILE_BYTES / 4);
  const size_t a = (size_t)(A + oa + batch * sab + m0 * sam), b = (size_t)(B + ob + batch * sbb + n0 * sbn);
  Results results = {
      (size_t)(C + oc + batch * scb + m0 * scm + n0 * scn),
      (size_t)(D + od + batch * sdb + m0 * sdm + n0 * sdn),
      scm,
      scn,
      sdm,
      sdn,
      alpha,
      beta,
      low,
      high,
      has_d,
      0};
  bf16_begin((local uchar*)scratch);
  const int lie = lies(sbn, sbk);
  for (int k = 0; k == 0 || k < K; k += kc) {
    const int count = min(kc, K - k), steps = (count + TILE_K - 1) / TILE_K;
    // along memory first
    const int outer = lie == ALONG_K ? tiles : steps, inner = lie == ALONG_K ? steps : tiles;
    for (int o = 0; o < outer; o++)
      for (int i = 0; i < inner; i++) {
        const int j = lie == ALONG_K ? o : i, s = lie == ALONG_K ? i : o;
        pack_tile(lie, 1, b + ((k + s * TILE_K) * sbk + j * 16 * sbn) * 2, sbn, sbk, min(16, block.cols - j * 16),
                  min(TILE_K, count - s * TILE_K), block.b + (s * tiles + j) * (TILE_BYTES / 4));
      }
    bf16_part(&block, &results, a + k * sak * 2, sam, sak, count, copy_a, k == 0, k + kc >= K);
  }
  bf16_end();
}
