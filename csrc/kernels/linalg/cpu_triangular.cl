// Solutions with triangular matrices of several blocks on CPU-like devices, from copies of the triangles by columns of NB
// with the inverses of the blocks on the diagonal. A_T: the element type.
#include "kernels/linalg/cpu_blocks.clh"

// A triangle of [n, n] numbers in scratch: its columns, ld apart, then the inverse of each block.
inline long size_of_triangle(int n, int ld) { return (long)n * ld + (n + NB - 1) / NB * NB * NB; }

// Copies the panel of the block at `from`, as what SOLVE_* says of one triangle, and inverts the block. x is the panel's
// first column, where the block itself goes with its rows and columns exchanged if it is of an upper triangle.
inline void copy_triangle(global const T* a, long row, long column, int n, int from, int upper, int what, global T* x,
                          int ld, global T* inverse) {
  const int width = min(NB, n - from), begin = upper ? 0 : from + width, end = upper ? from : n;
  const int mirror = upper && what & SOLVE_MIRROR, unit = what & (upper ? SOLVE_UPPER_UNIT : SOLVE_LOWER_UNIT);
  const long r = mirror ? column : row, c = mirror ? row : column;
  a += from * c;
  if (r == 1)
    for (int k = 0; k < width; ++k) DLB_SIMD for (int i = begin; i < end; ++i) x[i + k * ld] = a[i + k * c];
  else
    for (int i = begin; i < end; ++i)
      for (int k = 0; k < width; ++k) x[i + k * ld] = a[i * r + k * c];
  for (int k = 0; k < width; ++k)
    for (int i = k; i < width; ++i)
      x[from + i + k * ld] = upper ? a[(from + k) * r + i * c] : a[(from + i) * r + k * c];
#if COMPLEX
  for (int k = 0; k < width && mirror; ++k)
    for (int i = 0; i < from + width; ++i) x[i + k * ld] = CONJ(x[i + k * ld]);
#endif
  invert_lower(x + from, ld, width, unit, inverse);
  for (int k = 0; k < NB && upper; ++k)
    for (int i = k + 1; i < NB; ++i) {
      inverse[k + i * NB] = inverse[i + k * NB];
      inverse[i + k * NB] = OF(0);
    }
}

// Prepares what solve_strips takes. A job: one block of one triangle of one matrix.
kernel void copy_triangles(global const T* a, const Matrix ma, global T* triangles, const Matrix mt, const int n,
                           const int ld, const int what, const Jobs jobs) {
  const int blocks = (n + NB - 1) / NB, both = (what & SOLVE_LOWER) && (what & SOLVE_UPPER);
  FOR_JOBS(job, jobs) {
    const int block = job % blocks, second = both && job / blocks % 2;
    const long b = job / blocks / (1 + both);
    global T* const triangle = triangles + mt.offset + b * mt.batch + (second ? size_of_triangle(n, ld) : 0);
    copy_triangle(a + ma.offset + b * ma.batch, ma.row, ma.column, n, block * NB, second || !(what & SOLVE_LOWER), what,
                  triangle + (long)block * NB * ld, ld, triangle + (long)n * ld + block * NB * NB);
  }
}

// x [n, columns] := the solution with one triangle, block after block.
inline void solve_strip(global const T* triangle, int ld, int upper, global T* x, long ldx, int n, int columns,
                        global T* block_of_x) {
  const int blocks = (n + NB - 1) / NB;
  for (int done = 0; done < blocks; ++done) {
    const int block = upper ? blocks - 1 - done : done, from = block * NB, width = min(NB, n - from);
    const int begin = upper ? 0 : from + width, rows = upper ? from : n - begin;
    for (int c = 0; c < columns; ++c)
      for (int i = 0; i < width; ++i) block_of_x[i + c * NB] = x[from + i + c * ldx];
    multiply_block(triangle + (long)n * ld + block * NB * NB, block_of_x, width, columns, x + from, ldx);
    multiply(triangle + begin + (long)from * ld, ld, block_of_x, 1, NB, width, x + begin, ldx, rows, columns, SUBTRACT);
  }
}

// b [n, columns], rows contiguous, replaced by the solution of a x = b, in steps of SOLVE_*. A job is `width` columns of
// one matrix, with scratch for a block of them, one of them and an order of rows.
kernel void solve_strips(global const T* triangles, const Matrix mt, global T* b, const Matrix mb,
                         global const int* pivots, const Matrix mp, global T* scratch, const Matrix ms, const int n,
                         const int columns, const int ld, const int what, const int width, const int strips,
                         const Jobs jobs) {
  FOR_JOBS(job, jobs) {
    const long batch = job / strips;
    const int from = job % strips * width, count = min(width, columns - from);
    if (count <= 0) continue;
    global T* const x = b + mb.offset + batch * mb.batch + from * mb.column;
    global T* const block = scratch + ms.offset + job * ms.batch;
    global const T* triangle = triangles + mt.offset + batch * mt.batch;
    global const int* const swaps = pivots + mp.offset + batch * mp.batch;
    global T* const column = block + NB * width;
    global int* const order = (global int*)(column + ld);
    if (what & (SOLVE_SWAP_FIRST | SOLVE_SWAP_LAST)) follow_exchanges(order, n, swaps, n, 0, what & SOLVE_SWAP_LAST);
    if (what & SOLVE_SWAP_FIRST) order_rows(x, mb.column, count, order, n, column);
    if (what & SOLVE_LOWER) {
      solve_strip(triangle, ld, 0, x, mb.column, n, count, block);
      triangle += size_of_triangle(n, ld);
    }
    if (what & SOLVE_UPPER) solve_strip(triangle, ld, 1, x, mb.column, n, count, block);
    if (what & SOLVE_SWAP_LAST) order_rows(x, mb.column, count, order, n, column);
  }
}
