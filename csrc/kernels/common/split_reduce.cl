// Second pass of products and convolutions whose k is split over work-groups: adds the parts in a fixed order.
//   c[b,m,n] = alpha * sum_s partial[s,b,m,n] + beta * d[b,m,n]      (partial is dense; d unread when beta is 0;
// no parts give zero), within bounds
#include "kernels/common/split_reduce.h"

// Global size: at least batch * m * n.
kernel void split_reduce(global const ACC* restrict partial, global C_T* c, global const T* d, FACTOR alpha,
                         FACTOR beta, SplitReduce p EPILOGUE_PARAMETERS) {
  const long size = p.batch * p.m * p.n, i = get_global_id(0);
  if (i >= size) return;
  ACC sum = 0;
  partial += p.partial_offset + i;
#pragma unroll 8  // enough loads in flight for the latency of one
  for (int s = 0; s < p.splits; s++) sum += partial[s * size];
  const long rest = i / p.n, n = i - rest * p.n, batch = rest / p.m, m = rest - batch * p.m;
  sum *= alpha;
  if (beta != 0) sum += beta * load1(d + p.d_offset + batch * p.d_batch + m * p.d_m + n * p.d_n);
  const long at = batch * p.c_batch + m * p.c_m + n * p.c_n;
  store_c(c + p.c_offset + at, FINISH(sum, p.low, p.high, at, m, n));
}
