// LU factors with partial pivoting, and what is read from them. A_T: the element type.
#include "kernels/linalg/linalg.clh"

// The row of the element of largest size of x[from .. m), the first of several; a NaN counts as the largest.
inline int pivot_row(global const T* x, int from, int m, local REAL* sizes, local int* rows) {
  REAL most = -1;
  int at = from;
  for (int i = from + ITEM; i < m; i += ITEMS) {
    const REAL size = ABS1(x[i]);
    if (size > most || (size != size && most == most)) most = size, at = i;
  }
#ifndef DLB_CPU
  sizes[ITEM] = most, rows[ITEM] = at;
  SYNC;
  for (int reach = ITEMS / 2; reach; reach /= 2) {
    if (ITEM < reach) {
      const REAL other = sizes[ITEM + reach], mine = sizes[ITEM];
      if (other > mine || (other == mine && rows[ITEM + reach] < rows[ITEM]) || (other != other && mine == mine))
        sizes[ITEM] = other, rows[ITEM] = rows[ITEM + reach];
    }
    SYNC;
  }
  at = rows[0];
  SYNC;
#endif
  return at;
}

// a [m, n], rows contiguous, replaced by its factors. pivots[j] becomes first + 1 + the row exchanged with row j.
// info, zero or what an earlier panel found, becomes first + j + 1 for the first pivot j that is zero.
kernel void lu_panel(global T* a, const Matrix ma, global int* pivots, const Matrix mp, global int* info,
                     const Matrix mi, const int m, const int n, const int first, const Jobs jobs) {
#ifdef DLB_CPU
  local REAL* sizes = 0;
  local int* rows = 0;
#else
  local REAL sizes[LINALG_GROUP];
  local int rows[LINALG_GROUP];
#endif
  a += ma.offset, pivots += mp.offset, info += mi.offset;
  FOR_JOBS(b, jobs) {
    global T* const matrix = a + b * ma.batch;
    const long ld = ma.column;
    int failed = 0;
    for (int j = 0; j < min(m, n); ++j) {
      global T* const column = matrix + j * ld;
      const int p = pivot_row(column, j, m, sizes, rows);
      if (ITEM == 0) pivots[b * mp.batch + j] = first + p + 1;
      if (p != j) {
        for (int c = ITEM; c < n; c += ITEMS) {
          const T other = matrix[p + c * ld];
          matrix[p + c * ld] = matrix[j + c * ld];
          matrix[j + c * ld] = other;
        }
      }
      SYNC;
      const T pivot = column[j];
      if (IS_ZERO(pivot)) {
        if (!failed) failed = first + j + 1;
        continue;
      }
      if (ABS1(pivot) >= TINY) {
        const T inverse = DIV(OF(1), pivot);
        FOR_ITEMS(i, j + 1, m) column[i] = MUL(column[i], inverse);
      } else {
        FOR_ITEMS(i, j + 1, m) column[i] = DIV(column[i], pivot);
      }
      SYNC;
#ifdef DLB_CPU
      for (int c = j + 1; c < n; ++c) {
        const T factor = matrix[j + c * ld];
        global T* const to = matrix + c * ld;
        FOR_ITEMS(i, j + 1, m) to[i] -= MUL(factor, column[i]);
      }
#else
      const int high = m - j - 1;
      FOR_ITEMS(q, 0, high * (n - j - 1)) {
        const int c = j + 1 + q / high, i = j + 1 + q % high;
        matrix[i + c * ld] -= MUL(matrix[j + c * ld], column[i]);
      }
#endif
      SYNC;
    }
    if (failed && ITEM == 0 && !info[b]) info[b] = failed;
  }
}

// Exchanges row k with row pivots[k] - 1 - first for k in [from, to), backward where `back`. A row of the team: one
// column of one matrix.
kernel void swap_rows(global T* a, const Matrix ma, global const int* pivots, const Matrix mp, const int columns,
                      const int first, const int from, const int to, const int back, const Team team) {
  a += ma.offset, pivots += mp.offset;
  FOR_ROWS(row, team) {
    if (!row_active) continue;
    const uint b = row / columns;
    global T* const column = a + b * ma.batch + (row % columns) * ma.column;
    global const int* const swaps = pivots + b * mp.batch;
    for (int step = from; step < to; ++step) {
      const int k = back ? from + to - 1 - step : step, p = swaps[k] - 1 - first;
      if (p == k) continue;
      const T other = column[p * ma.row];
      column[p * ma.row] = column[k * ma.row];
      column[k * ma.row] = other;
    }
  }
}

// The permutation of `rows` rows: to[b, i] is the row that the exchanges bring to place i.
kernel void permutation(global long* to, const Matrix mt, global const int* pivots, const Matrix mp, const int rows,
                        const int count, const Team team) {
  to += mt.offset, pivots += mp.offset;
  FOR_ROWS(b, team) {
    if (!b_active) continue;
    global long* const places = to + b * mt.batch;
    global const int* const swaps = pivots + b * mp.batch;
    for (int k = 0; k < count; ++k) {
      const int p = swaps[k] - 1;
      const long other = places[p];
      places[p] = places[k];
      places[k] = other;
    }
  }
}

// The determinant of each matrix from its factors; or, where `logs`, its sign and the logarithm of its size.
kernel void determinant(global const T* lu, const Matrix ma, global const int* pivots, const Matrix mp,
                        global T* result, const Matrix mr, global REAL* size, const Matrix ms, const int n,
                        const int logs, const Team team) {
  lu += ma.offset, pivots += mp.offset, result += mr.offset, size += ms.offset;
  FOR_ROWS(b, team) {
    if (!b_active) continue;
    T product = OF(1);
    REAL sum = 0;
    for (int i = 0; i < n; ++i) {
      T d = lu[b * ma.batch + i * (ma.row + ma.column)];
      if (pivots[b * mp.batch + i] != i + 1) d = -d;
      if (logs) {
        const REAL distance = ABS(d);
        sum += log(distance);
#if COMPLEX
        d = distance == 0 ? OF(0) : d / distance;
#else
        d = d > 0 ? OF(1) : d < 0 ? OF(-1) : d;
#endif
      }
      product = MUL(product, d);
    }
    result[b * mr.batch] = product;
    if (logs) size[b * ms.batch] = sum;
  }
}
