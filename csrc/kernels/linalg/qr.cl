// QR factors by Householder reflectors. A_T: the element type.
#include "kernels/linalg/linalg.clh"

#ifndef DLB_CPU
#define COLUMN_LANES 8  // work-items that share a column
// Applies the adjoint of the reflector below `column` to the columns from `first` on, counted from that one, as many as
// there are COLUMN_LANES in the work-group: their sums need one barrier together.
inline void reflect_columns(global T* column, long ld, int first, int end, int below, T factor, local T* scratch) {
  const int lane = ITEM % COLUMN_LANES, c = first + ITEM / COLUMN_LANES, team = ITEM - lane;
  global T* const other = column + c * ld;
  T sum = OF(0);
  if (c < end) {
#pragma unroll 8
    for (int i = 1 + lane; i <= below; i += COLUMN_LANES) sum += MUL(CONJ(column[i]), other[i]);
    if (lane == 0) sum += other[0];
  }
  scratch[ITEM] = sum;
  barrier(CLK_LOCAL_MEM_FENCE);
  sum = OF(0);
  for (int i = 0; i < COLUMN_LANES; ++i) sum += scratch[team + i];
  if (c < end) {
    const T along = MUL(CONJ(factor), sum);
    if (lane == 0) other[0] -= along;
#pragma unroll 8
    for (int i = 1 + lane; i <= below; i += COLUMN_LANES) other[i] -= MUL(along, column[i]);
  }
  barrier(CLK_LOCAL_MEM_FENCE);
}
#endif

// a [m, n], rows contiguous: R in its upper triangle, the reflectors' vectors below, as LAPACK's geqr2.
kernel void qr_panel(global T* a, const Matrix ma, global T* tau, const Matrix mt, const int m, const int n,
                     const Jobs jobs) {
  GROUP_SCRATCH
  a += ma.offset, tau += mt.offset;
  FOR_JOBS(b, jobs) {
    for (int j = 0; j < min(m, n); ++j) {
      global T* const column = a + b * ma.batch + j * ma.column + j;
      const int below = m - j - 1;
      const T alpha = column[0];
      REAL beta;
      const T factor = dlb_reflector(alpha, column + 1, below, &beta GROUP_PASS);
      if (ITEM == 0) {
        tau[b * mt.batch + j] = factor;
        column[0] = OF(beta);
      }
      if (IS_ZERO(factor)) continue;
#ifdef DLB_CPU
      for (int c = 1; c < n - j; ++c) {
        global T* const other = column + c * ma.column;
        const T top = other[0];
        const T along = MUL(CONJ(factor), top + dlb_dot(column + 1, other + 1, below GROUP_PASS));
        if (ITEM == 0) other[0] = top - along;
        dlb_axpy(-along, column + 1, other + 1, below);
      }
#else
      for (int c = 1; c < n - j; c += ITEMS / COLUMN_LANES)
        reflect_columns(column, ma.column, c, n - j, below, factor, group_scratch);
#endif
      SYNC;
    }
  }
}

// The factor t [k, k] of I - V t V^H, the product of k reflectors, from g = V^H V, as LAPACK's larft.
kernel void block_reflector(global const T* g, const Matrix mg, global const T* tau, const Matrix mu, global T* t,
                            const Matrix mt, const int k, const Jobs jobs) {
  g += mg.offset, tau += mu.offset, t += mt.offset;
  FOR_JOBS(b, jobs) {
    global const T* const gram = g + b * mg.batch;
    global T* const to = t + b * mt.batch;
    for (int j = 0; j < k; ++j) {
      const T factor = tau[b * mu.batch + j];
      for (int i = ITEM; i < k; i += ITEMS) {
        T sum = OF(0);
        for (int l = i; l < j; ++l) sum -= MUL(to[i * mt.row + l * mt.column], gram[l * mg.row + j * mg.column]);
        to[i * mt.row + j * mt.column] = i < j ? MUL(factor, sum) : i == j ? factor : OF(0);
      }
      SYNC;
    }
  }
}
