// Batched matrix product of plain tiles, which runs while better kernels are compiled:
//   c[b,m,n] = alpha * sum_k a[b,m,k] * b[b,k,n] + beta * d[b,m,n], within bounds
#include "kernels/gemm/params.h"

// A tile of an operand's rows from `row` on; zeros beyond its end.
INLINE void load_plain(local ACC* tile, global const T* x, const GemmOperand* o, int row, int rows, int k, int depth,
                       int item) {
#pragma unroll
  for (int e = 0; e < 4; e++) {
    const int r = o->k_fast ? item / PLAIN_DEPTH + e * 16 : item % PLAIN;
    const int i = o->k_fast ? item % PLAIN_DEPTH : item / PLAIN + e * 4;
    const bool exists = row + r < rows && k + i < depth;
    tile[i * PLAIN_PITCH + r] = exists ? load1(x + (row + r) * o->row + (k + i) * o->k) : 0;
  }
}

// Global size: tiles of m * tiles of n * batch * PLAIN_ITEMS. `partial` is there because other kernels take it.
__attribute__((reqd_work_group_size(PLAIN_ITEMS, 1, 1))) kernel void gemm_gpu_plain(
    global const T* a, global const T* b, global T* c, global const T* d, global ACC* partial, ACC alpha, ACC beta,
    GemmTiled p) {
  PLAIN_MEMORY(memory);
  const int item = get_local_id(0), group = get_group_id(0);
  const int rows = (p.m + PLAIN - 1) / PLAIN, columns = (p.n + PLAIN - 1) / PLAIN, matrix = group / columns / rows;
  const int row = group / columns % rows * PLAIN, column = group % columns * PLAIN;
  a += p.a.offset + matrix * p.a.batch, b += p.b.offset + matrix * p.b.batch;
  ACC4 sums[4] = {0, 0, 0, 0};
  for (int k = 0; k < p.k; k += PLAIN_DEPTH) {
    load_plain(memory, a, &p.a, row, p.m, k, p.k, item);
    load_plain(memory + PLAIN_TILE, b, &p.b, column, p.n, k, p.k, item);
    multiply_plain(sums, memory, item);
  }
  spread_plain(memory, sums, item);
#pragma unroll 1
  for (int i = item; i < PLAIN * PLAIN; i += PLAIN_ITEMS) {
    const int m = row + i / PLAIN, n = column + i % PLAIN;
    if (m >= p.m || n >= p.n) continue;
    ACC v = alpha * memory[i];
    if (beta != 0) v += beta * load1(d + p.d_offset + matrix * p.d_batch + m * p.d_m + n * p.d_n);
    const long at = matrix * p.c_batch + m * p.c_m + n * p.c_n;
    store1(c + p.c_offset + at, bounded1(v, p.low, p.high));
  }
}
