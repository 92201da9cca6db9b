// Singular values and vectors by one-sided Jacobi rotations (Hestenes 1958; de Rijk 1989 for the order that rotations
// bring columns into). A_T: the element type.
#include "kernels/linalg/linalg.clh"

#define MOST_SWEEPS 40

// (x, y) := (x, y) [a, c; b, d] for two columns.
inline void combine(global T* x, global T* y, int n, REAL a, T b, REAL c, T d) {
  FOR_ITEMS(i, 0, n) {
    const T f = x[i], g = y[i];
    x[i] = a * f + MUL(b, g);
    y[i] = c * f + MUL(d, g);
  }
}

// Makes two columns of w orthogonal, the longer one first. Returns whether they were not.
inline int rotate_pair(global T* w, long ldw, int m, global T* v, long ldv, int n, global REAL* squares, int p, int q,
                       REAL tolerance, REAL least, int vectors GROUP_PARAMETER) {
  const T product = dlb_dot(w + p * ldw, w + q * ldw, m GROUP_PASS);
  const REAL alpha = squares[p], beta = squares[q], g = ABS(product);
  if (!(g > tolerance * sqrt(alpha) * sqrt(beta)) || fmin(alpha, beta) <= least) return 0;
  const REAL zeta = (beta - alpha) / (2 * g);
  const REAL t = copysign((REAL)1, zeta) / (fabs(zeta) + sqrt(1 + zeta * zeta)), c = 1 / sqrt(1 + t * t), s = c * t;
  const T phase = CONJ(product) / g;
  const REAL first = fmax(alpha - t * g, (REAL)0), second = beta + t * g;
  const int turn = first < second;
  const REAL x1 = turn ? s : c, x2 = turn ? c : -s, x3 = turn ? c : s, x4 = turn ? -s : c;
  combine(w + p * ldw, w + q * ldw, m, x1, phase * x2, x3, phase * x4);
  if (vectors) combine(v + p * ldv, v + q * ldv, n, x1, phase * x2, x3, phase * x4);
  SYNC;
  if (ITEM == 0) squares[p] = turn ? second : first, squares[q] = turn ? first : second;
  SYNC;
  return 1;
}

inline void measure(global const T* w, long ldw, int m, int n, global REAL* squares GROUP_PARAMETER) {
  for (int j = 0; j < n; ++j) {
    const REAL square = RE(dlb_dot(w + j * ldw, w + j * ldw, m GROUP_PASS));
    if (ITEM == 0) squares[j] = square;
  }
  SYNC;
}

inline void exchange_columns(global T* x, long ld, int n, int i, int j) {
  FOR_ITEMS(k, 0, n) {
    const T other = x[i * ld + k];
    x[i * ld + k] = x[j * ld + k], x[j * ld + k] = other;
  }
}

inline void sort_descending(global T* w, long ldw, int m, global T* v, long ldv, int n, global REAL* squares,
                            int vectors) {
  for (int i = 0; i < n - 1; ++i) {
    SYNC;
    int most = i;
    for (int j = i + 1; j < n; ++j)
      if (squares[j] > squares[most]) most = j;
    if (most == i) continue;
    SYNC;
    if (ITEM == 0) {
      const REAL other = squares[i];
      squares[i] = squares[most], squares[most] = other;
    }
    if (vectors) {
      exchange_columns(w, ldw, m, i, most);
      exchange_columns(v, ldv, n, i, most);
    }
  }
  SYNC;
}

// Column j becomes a unit vector that is orthogonal to those before it.
inline void complete_column(global T* w, long ldw, int m, int j GROUP_PARAMETER) {
  global T* const column = w + j * ldw;
  for (int trial = 0; trial < m; ++trial) {
    FOR_ITEMS(i, 0, m) column[i] = OF(i == (trial + j) % m ? 1 : 0);
    SYNC;
    for (int pass = 0; pass < 2; ++pass) {
      for (int k = 0; k < j; ++k) {
        dlb_axpy(-dlb_dot(w + k * ldw, column, m GROUP_PASS), w + k * ldw, column, m);
        SYNC;
      }
    }
    const REAL square = RE(dlb_dot(column, column, m GROUP_PASS));
    if (square * 2 * m < m - j) continue;
    const REAL inverse = 1 / sqrt(square);
    FOR_ITEMS(i, 0, m) column[i] *= inverse;
    SYNC;
    return;
  }
}

// w [m, n] with m >= n, rows contiguous, replaced by U; s [n] descending; v [n, n], w = U s V^H. Without `vectors` w is
// destroyed and v not touched. info: -4 for numbers that are not finite, positive where rotations did not end.
kernel void svd(global T* w, const Matrix mw, global T* v, const Matrix mv, global REAL* s, const Matrix ms,
                global int* info, const Matrix mi, const int m, const int n, const int vectors, const Jobs jobs) {
  GROUP_SCRATCH
  w += mw.offset, v += mv.offset, s += ms.offset, info += mi.offset;
  FOR_JOBS(b, jobs) {
    global T* const left = w + b * mw.batch;
    global T* const right = v + b * mv.batch;
    global REAL* const squares = s + b * ms.batch;
    const long ldw = mw.column, ldv = mv.column;
    REAL most = 0, wrong = 0;
    for (int j = 0; j < n; ++j)
      for (int i = ITEM; i < m; i += ITEMS) {
        const REAL size = ABS1(left[j * ldw + i]);
        most = fmax(most, size);
        if (!(size <= MAXIMUM)) wrong = 1;
      }
    most = GROUP_MAX(most), wrong = GROUP_MAX(wrong);
    if (wrong > 0) {
      FOR_ITEMS(i, 0, n) squares[i] = NAN;
      if (ITEM == 0) info[b] = -4;
      continue;
    }
    const REAL scale = dlb_scale(most);
    for (int j = 0; j < n; ++j) FOR_ITEMS(i, 0, m) left[j * ldw + i] *= scale;
    if (vectors)
      for (int j = 0; j < n; ++j) FOR_ITEMS(i, 0, n) right[j * ldv + i] = OF(i == j ? 1 : 0);
    SYNC;
    const REAL tolerance = EPSILON * sqrt((REAL)m), least = EPSILON * EPSILON * (REAL)0x1p-20;
    int sweep = 0;
    for (int rotated = n > 1; rotated && sweep < MOST_SWEEPS; ++sweep) {
      rotated = 0;
      measure(left, ldw, m, n, squares GROUP_PASS);
      for (int p = 0; p < n - 1; ++p)
        for (int q = p + 1; q < n; ++q)
          rotated |= rotate_pair(left, ldw, m, right, ldv, n, squares, p, q, tolerance, least, vectors GROUP_PASS);
    }
    measure(left, ldw, m, n, squares GROUP_PASS);
    sort_descending(left, ldw, m, right, ldv, n, squares, vectors);
    for (int j = 0; j < n; ++j) {
      const REAL square = squares[j], length = sqrt(square);
      SYNC;
      if (ITEM == 0) squares[j] = length / scale;
      if (!vectors) continue;
      if (square <= least) {
        complete_column(left, ldw, m, j GROUP_PASS);
      } else {
        const REAL inverse = 1 / length;
        FOR_ITEMS(i, 0, m) left[j * ldw + i] *= inverse;
      }
      SYNC;
    }
    if (ITEM == 0) info[b] = sweep == MOST_SWEEPS ? n : 0;
  }
}
