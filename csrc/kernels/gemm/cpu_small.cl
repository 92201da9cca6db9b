// clang-format off
// Small products, many at a time, for CPU-like devices: register tiles that read A where it lies, whatever its strides,
// and B too where its rows are whole vectors; else B is packed, all of its depth at once. Follows gemm/cpu_packed.cl.
#ifndef B_NIBBLES
#define SMALL_PTR(r) global const A_T* a##r = a + row[r];
#define SMALL_FMA1(r) const float16 x##r = (float16)(A_LOAD1(a##r + i)); c##r##0 = fma(x##r, b0, c##r##0);
#define SMALL_FMA2(r) SMALL_FMA1(r) c##r##1 = fma(x##r, b1, c##r##1);
#define SMALL_FMA3(r) SMALL_FMA2(r) c##r##2 = fma(x##r, b2, c##r##2);
#define SMALL_FMA4(r) SMALL_FMA3(r) c##r##3 = fma(x##r, b3, c##r##3);
#define SMALL_B1(LOAD) const float16 b0 = LOAD(b);
#define SMALL_B2(LOAD) SMALL_B1(LOAD) const float16 b1 = LOAD(b + 16);
#define SMALL_B3(LOAD) SMALL_B2(LOAD) const float16 b2 = LOAD(b + 32);
#define SMALL_B4(LOAD) SMALL_B3(LOAD) const float16 b3 = LOAD(b + 48);
#define LOAD_PACKED(p) vload16(0, p)

// c[r][16 * NV] (pitch NR) = sum over k of a[row[r] + k * sak] * b[k * ldb + 16 * NV].
#define SMALL(NV, SPACE, BT, LOAD)                                                                        \
  inline void small##NV##_##SPACE(global const A_T* a, const int* row, int sak, int K, SPACE const BT* b,   \
                                  int ldb, local float* c) {                                              \
    const int ldc = NR;                                                                                   \
    ROWS(SMALL_PTR)                                                                                       \
    ROWS(ROW_ZERO##NV)                                                                                    \
    int i = 0;                                                                                            \
    for (int k = 0; k < K; k++, i += sak, b += ldb) { SMALL_B##NV(LOAD) ROWS(SMALL_FMA##NV) }             \
    ROWS(ROW_SET##NV)                                                                                     \
  }
#ifdef NARROW_TILE
#define SMALLS(SPACE, BT, LOAD)                                                                           \
  SMALL(1, SPACE, BT, LOAD)                                                                               \
  inline void small_##SPACE(int nv, global const A_T* a, const int* row, int sak, int K, SPACE const BT* b, \
                            int ldb, local float* c) {                                                    \
    small1_##SPACE(a, row, sak, K, b, ldb, c);                                                            \
  }
#else
#define SMALLS(SPACE, BT, LOAD)                                                                           \
  SMALL(1, SPACE, BT, LOAD) SMALL(2, SPACE, BT, LOAD) SMALL(3, SPACE, BT, LOAD) SMALL(4, SPACE, BT, LOAD) \
  inline void small_##SPACE(int nv, global const A_T* a, const int* row, int sak, int K, SPACE const BT* b, \
                            int ldb, local float* c) {                                                    \
    if (nv == 1) small1_##SPACE(a, row, sak, K, b, ldb, c);                                               \
    else if (nv == 2) small2_##SPACE(a, row, sak, K, b, ldb, c);                                          \
    else if (nv == 3) small3_##SPACE(a, row, sak, K, b, ldb, c);                                          \
    else small4_##SPACE(a, row, sak, K, b, ldb, c);                                                       \
  }
#endif
SMALLS(global, B_T, B_LOAD16)
SMALLS(local, float, LOAD_PACKED)

// As pack_rows(), in whole vectors: what is read beyond nj columns lies in the same matrix and its sums are not used.
inline void pack_loose(global const B_T* src, long si, int ni, int nj, int njp, local float* dst) {
  const long end = (ni - 1) * si + nj;
  for (int i = 0; i < ni; i++, dst += njp)
    for (int j = 0; j < njp; j += 16) {
      if (i * si + j + 16 <= end)
        vstore16(B_LOAD16(src + i * si + j), 0, dst + j);
      else
        for (int q = j; q < j + 16; q++) dst[q] = q < nj ? B_LOAD1(src + i * si + q) : 0.f;
    }
}

// Range: blocks of mc rows, of nc columns, of `items` products.
kernel __attribute__((reqd_work_group_size(1, 1, 1))) void gemm_cpu_small(
    global const A_T* A, long oa, long sab, long sam, long sak, global const B_T* B, long ob, long sbb, long sbk, long sbn,
    global T* C, long oc, long scb, long scm, long scn, global const T* D, long od, long sdb, long sdm, long sdn,
    float alpha, float beta, int has_d, float low, float high, int M, int N, int K, int mc, int nc, int items, int batch,
    local float* scratch EPILOGUE_PARAMETERS) {
  const int m0 = get_global_id(0) * mc, m1 = min(m0 + mc, M), n0 = get_global_id(1) * nc, n1 = min(n0 + nc, N);
  const int first = get_global_id(2) * items, last = min(first + items, batch);
  global const T* first_of_all = C + oc;
  local float* sc = scratch;            // [MR][NR]
  local float* sb = scratch + MR * NR;  // [K][columns]
  for (int p = first; p < last; p++)
    for (int j = n0; j < n1; j += NR) {
      // Rows of B that lie a kilobyte's multiple apart share few sets of the caches, from where they would be gone before
      // they are read again; a narrow tile also waits for rows that lie in a page each.
      const int crowded = K > 64 && (sbk % 256 == 0 ? m1 - m0 > 2 * MR : NR == 16 && m1 - m0 > 12 * MR);
      const int jn = min(NR, n1 - j), nv = (jn + 15) / 16, direct = sbn == 1 && jn % 16 == 0 && !crowded;
      global const B_T* b = B + ob + p * sbb + j * sbn;
      if (!direct && sbn == 1) pack_loose(b, sbk, K, jn, nv * 16, sb);
      else if (!direct) b_pack(b, sbk, sbn, K, jn, nv * 16, sb, nv * 16);
      global const A_T* a = A + oa + p * sab;
      for (int i = m0; i < m1; i += MR) {
        int row[MR];
        for (int r = 0; r < MR; r++) row[r] = min(i + r, M - 1) * (int)sam;
        if (direct) small_global(nv, a, row, sak, K, b, sbk, sc);
        else small_local(nv, a, row, sak, K, sb, nv * 16, sc);
        const int rows = min(MR, m1 - i);
        global T* c = C + oc + p * scb + i * scm + j * scn;
        global const T* d = D + od + p * sdb + i * sdm + j * sdn;
        for (int r = 0; r < rows; r++, c += scm, d += sdm) {
          int q = 0;
          if (scn == 1 && (!has_d || sdn <= 1))
            for (; q + 16 <= jn; q += 16) {
              float16 v = alpha * vload16(0, sc + r * NR + q);
              if (has_d) v += beta * (sdn ? load16(d + q) : (float16)(load1(d)));
              store16(c + q, FINISH16(v, low, high, c - first_of_all + q, 1, i + r, j + q, 1, 16));
            }
          for (; q < jn; q++) {
            float v = alpha * sc[r * NR + q];
            if (has_d) v += beta * load1(d + q * sdn);
            store1(c + q * scn, FINISH(v, low, high, c - first_of_all + q * scn, i + r, j + q));
          }
        }
      }
    }
}
#endif
