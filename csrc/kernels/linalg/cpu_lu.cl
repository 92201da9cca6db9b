// LU factors with partial pivoting on CPU-like devices, block after block of NB columns, as LAPACK's getrf. In each
// step some work-items subtract the last panel's products from the columns that follow, and who has the first of these then
// factors the next panel, while the others go on (look-ahead: Strazdins, "A comparison of lookahead and algorithmic
// blocking techniques for parallel matrix factorization", 1998). A_T: the element type.
#include "kernels/linalg/cpu_blocks.clh"

enum { LEAF = 8 };  // columns of a panel that are factored one by one

// One matrix [m, n], and its two panels in turn: NB columns ld_panel apart, the inverse of L's block in them, and the order
// of rows that its exchanges make; behind them STRIP columns of NB rows for each task of a step.
typedef struct {
  global T* a;
  long ld;
  global int* pivots;
  global T* panels;
  int ld_panel, m, n, first;
} Lu;

inline global T* panel_of(Lu lu, int step) { return lu.panels + (step & 1) * (NB * (lu.ld_panel + NB) + lu.ld_panel); }
inline global T* inverse_of(Lu lu, int step) { return panel_of(lu, step) + NB * lu.ld_panel; }
inline global int* order_of(Lu lu, int step) { return (global int*)(inverse_of(lu, step) + NB * NB); }
inline global T* block_of(Lu lu, int part) {
  return lu.panels + 2 * (NB * (lu.ld_panel + NB) + lu.ld_panel) + part * STRIP * NB;
}
inline int width_of(Lu lu, int step) { return clamp(min(lu.m, lu.n) - step * NB, 0, NB); }

#if PARTS == 1
#define SIZES(x) fabs(VLOAD(0, x))
#else
inline V sizes_of_pairs(global const REAL* x) {
  const V low = fabs(VLOAD(0, x)), high = fabs(VLOAD(1, x));
  return (V)(low.even + low.odd, high.even + high.odd);
}
#define SIZES(x) sizes_of_pairs((global const REAL*)(x))
#endif

// The place of the element of largest size of x[0 .. n), the first of several; a NaN counts as the largest.
inline int largest_of(global const T* x, int n) {
  V most = -1, sizes;
  int whole = n / W * W, unordered = 0;
  for (int i = 0; i < whole; i += W) {
    sizes = SIZES(x + i);
    most = select(most, sizes, sizes > most);
    unordered |= any(sizes != sizes);
  }
  REAL largest = -1, numbers[W];
  VSTORE(most, 0, numbers);
  for (int i = 0; i < W; ++i) largest = fmax(largest, numbers[i]);
  for (int i = whole; i < n; ++i) {
    const REAL size = ABS1(x[i]);
    largest = fmax(largest, size);
    unordered |= size != size;
  }
  int at = 0;
  if (!unordered)
    while (at < whole && !any(SIZES(x + at) == largest)) at += W;
  for (; at < n; ++at) {
    const REAL size = ABS1(x[at]);
    if (unordered ? size != size : size == largest) return at;
  }
  return 0;
}

// Columns [from, to) of a panel x of m rows, column by column; what is right of them in the panel has its rows exchanged.
// Returns the first whose pivot is zero, or NB.
inline int factor_leaf(global T* x, int ld, int m, int from, int to, int width, global int* pivots, int above) {
  int failed = NB;
  for (int j = from; j < to; ++j) {
    global T* const column = x + j * ld;
    const int p = j + largest_of(column + j, m - j);
    pivots[j] = above + p + 1;
    if (p != j)
      for (int c = 0; c < width; ++c) {
        const T other = x[p + c * ld];
        x[p + c * ld] = x[j + c * ld], x[j + c * ld] = other;
      }
    if (IS_ZERO(column[j])) {
      failed = min(failed, j);
      continue;
    }
    divide_column(column + j + 1, column[j], m - j - 1);
    for (int c = j + 1; c < to; ++c) subtract_column(x + j + 1 + c * ld, column + j + 1, x[j + c * ld], m - j - 1);
  }
  return failed;
}

// Copies the panel of that step, factors it, and copies it back.
inline void factor_panel(Lu lu, int step, global int* info) {
  const int top = step * NB, m = lu.m - top, width = width_of(lu, step), ld = lu.ld_panel;
  global T *const a = lu.a + top + top * lu.ld, *const x = panel_of(lu, step);
  int failed = NB;
  for (int c = 0; c < width; ++c) DLB_SIMD for (int i = 0; i < m; ++i) x[i + c * ld] = a[i + c * lu.ld];
  for (int from = 0; from < width; from += LEAF) {
    const int to = min(from + LEAF, width);
    failed = min(failed, factor_leaf(x, ld, m, from, to, width, lu.pivots + top, lu.first + top));
    for (int c = to; c < width; ++c)
      for (int k = from; k < to; ++k) {
        const T factor = x[k + c * ld];
        for (int i = k + 1; i < to; ++i) x[i + c * ld] -= MUL(factor, x[i + k * ld]);
      }
    multiply(x + to + from * ld, ld, x + from + to * ld, 1, ld, to - from, x + to + to * ld, ld, m - to, width - to,
             SUBTRACT);
  }
  for (int c = 0; c < width; ++c) DLB_SIMD for (int i = 0; i < m; ++i) a[i + c * lu.ld] = x[i + c * ld];
  invert_lower(x, ld, width, 1, inverse_of(lu, step));
  follow_exchanges(order_of(lu, step), m, lu.pivots + top, width, lu.first + top, 0);
  if (failed < NB && !*info) *info = lu.first + top + failed + 1;
}

// block := the top rows of c [m, columns] as the panel of that step exchanged them, whose former ones go where it says.
inline void exchange_top(Lu lu, int step, global T* c, int columns, global T* block) {
  const int top = step * NB, width = width_of(lu, step);
  global const int* const order = order_of(lu, step);
  int to[NB], from[NB], moved = 0;
  for (int k = 0; k < width; ++k) {
    const int p = lu.pivots[top + k] - 1 - lu.first - top;
    if (p >= width) to[moved] = p, from[moved++] = order[p];
  }
  for (int j = 0; j < columns; ++j, c += lu.ld, block += NB) {
    for (int k = 0; k < width; ++k) block[k] = c[order[k]];
    for (int k = 0; k < moved; ++k) c[to[k]] = c[from[k]];
  }
}

// Exchanges rows of columns [from, to) as the panel of that step did, solves for U's block in them and subtracts the
// product.
inline void update_columns(Lu lu, int step, int from, int to, global T* block) {
  const int top = step * NB, width = width_of(lu, step), ld = lu.ld_panel;
  for (; from < to; from += STRIP) {
    const int columns = min(to - from, STRIP);
    global T* const c = lu.a + top + from * lu.ld;
    exchange_top(lu, step, c, columns, block);
    multiply_block(inverse_of(lu, step), block, width, columns, c, lu.ld);
    multiply(
        panel_of(lu, step) + width, ld, block, 1, NB, width, c + width, lu.ld, lu.m - top - width, columns, SUBTRACT);
  }
}

// Exchanges rows of a block of columns as the panels right of it did.
inline void order_left(Lu lu, int block) {
  const int top = (block + 1) * NB, left = min(lu.m, lu.n) - top;
  global T* const room = lu.panels + 2 * block * lu.ld_panel;  // of panels, which are no longer needed
  global int* const order = (global int*)(room + lu.ld_panel);
  if (left <= 0) return;
  follow_exchanges(order, lu.m - top, lu.pivots + top, left, lu.first + top, 0);
  order_rows(lu.a + top + block * NB * lu.ld, lu.ld, NB, order, lu.m - top, room);
}

// Task `part` of `parts` of a step: -1 for the first panel alone, and behind the last one for what is left of panels. The
// next panel is the first task, alone where there are others.
inline void lu_task(Lu lu, int step, int steps, int part, int parts, global int* info) {
  const int next = step < 0 ? 0 : step * NB + width_of(lu, step), left = step < 0 ? 0 : lu.n - next;
  const int width = width_of(lu, step + 1), first = parts == 1 ? left : min(left, width);
  const int share = (left - first + parts - 2) / max(parts - 1, 1);
  const int from = part ? min(first + (part - 1) * share, left) : 0, to = part ? min(from + share, left) : first;
  if (step == steps) {
    for (int block = part; block < steps; block += parts) order_left(lu, block);
    return;
  }
  if (step >= 0) update_columns(lu, step, next + from, next + to, block_of(lu, part));
  if (part == 0 && width) factor_panel(lu, step + 1, info);
}

// Another work-item may change it meanwhile.
inline int count_of(volatile global int* counter) { return atomic_or(counter, 0); }

// Factors a [m, n], rows contiguous. pivots[j] becomes first + 1 + the row exchanged with row j. info, zero or what an
// earlier part found, becomes first + j + 1 for the first pivot j that is zero.
//
// Several work-items may share a matrix, without counting on each other to run at the same time: each takes the next task
// of the current step until there is none, and who runs late or never finds less to do. A step's tasks may be taken when
// all of the one before are done, which those do that took them and so run. `tickets`, zeros: how many tasks were taken,
// and 16 places on how many are done.
kernel void lu_blocks(global T* a, const Matrix ma, global int* pivots, const Matrix mp, global int* info,
                      const Matrix mi, global T* panels, const Matrix mw, global int* tickets, const Matrix mt,
                      const int m, const int n, const int first, const int ld_panel, const int sharers, const int parts,
                      const Jobs jobs) {
  const int steps = (min(m, n) + NB - 1) / NB, tasks = (steps + 2) * parts;
  FOR_JOBS(job, jobs) {
    const long b = job / sharers;
    const Lu lu = {
        a + ma.offset + b * ma.batch,
        ma.column,
        pivots + mp.offset + b * mp.batch,
        panels + mw.offset + b * mw.batch,
        ld_panel,
        m,
        n,
        first};
    volatile global int *const taken = tickets + mt.offset + b * mt.batch, *const done = taken + 16;
    for (int task = count_of(taken); task < tasks; task = count_of(taken)) {
      if (task / parts > count_of(done) / parts || atomic_cmpxchg(taken, task, task + 1) != task) continue;
      mem_fence(CLK_GLOBAL_MEM_FENCE);
      lu_task(lu, task / parts - 1, steps, task % parts, parts, info + mi.offset + b * mi.batch);
      mem_fence(CLK_GLOBAL_MEM_FENCE);
      atomic_inc(done);
    }
  }
}
