// Eigenvalues and vectors of Hermitian matrices: Householder's tridiagonal form and the implicit QL method (Martin and
// Wilkinson; Dubrulle: Handbook for Automatic Computation II, 1971), a matrix a work-item. For CPUs; GPUs have
// eigh_jacobi.cl. A_T: the element type.
#include "kernels/linalg/linalg.clh"

#define MOST_STEPS 60     // of the QL method for one eigenvalue
#define APPLIED_ROWS 256  // rows of the vectors that take a step's rotations before the next rows do

// y = factor a x for a full matrix a.
inline void multiply(global const T* a, long ld, global const T* x, global T* y, int n, T factor) {
  FOR_ITEMS(i, 0, n) y[i] = OF(0);
  for (int j = 0; j < n; ++j) dlb_axpy(MUL(factor, x[j]), a + j * ld, y, n);
}

// a := Q^H a Q, tridiagonal: d and e. Reflectors stay below the diagonal.
inline void to_tridiagonal(global T* a, long ld, int n, global REAL* d, global REAL* e, global T* tau,
                           global T* w GROUP_PARAMETER) {
  for (int i = 0; i < n - 1; ++i) {
    global T* const v = a + i * ld + i + 1;
    global T* const rest = a + (i + 1) * ld + i + 1;
    const int m = n - i - 1;
    REAL beta;
    const T factor = dlb_reflector(v[0], v + 1, m - 1, &beta GROUP_PASS);
    SYNC;
    if (ITEM == 0) e[i] = beta, tau[i] = factor, v[0] = OF(1);
    SYNC;
    if (IS_ZERO(factor)) continue;
    multiply(rest, ld, v, w, m, factor);
    SYNC;
    const T shift = MUL(factor, dlb_dot(w, v, m GROUP_PASS)) * (REAL)-0.5;
    dlb_axpy(shift, v, w, m);
    SYNC;
    for (int j = 0; j < m; ++j) {
      global T* const column = rest + j * ld;
      const T of_v = CONJ(w[j]), of_w = CONJ(v[j]);
      FOR_ITEMS(k, 0, m) column[k] -= MUL(v[k], of_v) + MUL(w[k], of_w);
    }
    SYNC;
  }
  FOR_ITEMS(i, 0, n) d[i] = RE(a[i * ld + i]);
  SYNC;
}

// z = Q from the reflectors.
inline void form_vectors(global const T* a, long ld, global const T* tau, global T* z, long ldz,
                         int n GROUP_PARAMETER) {
  for (int j = 0; j < n; ++j) FOR_ITEMS(i, 0, n) z[j * ldz + i] = OF(i == j ? 1 : 0);
  SYNC;
  for (int i = n - 2; i >= 0; --i) {
    global const T* const v = a + i * ld + i + 1;
    const T factor = tau[i];
    if (IS_ZERO(factor)) continue;
    for (int c = i + 1; c < n; ++c) {
      global T* const column = z + c * ldz + i + 1;
      dlb_axpy(-MUL(factor, dlb_dot(v, column, n - i - 1 GROUP_PASS)), v, column, n - i - 1);
    }
    SYNC;
  }
}

// One step of the QL method on rows l .. m: the rotations go to c and s.
inline void find_rotations(global REAL* d, global REAL* e, global REAL* c, global REAL* s, int l, int m) {
  REAL g = (d[l + 1] - d[l]) / (2 * e[l]);
  g = d[m] - d[l] + e[l] / (g + copysign(sqrt(g * g + 1), g));
  REAL sine = 1, cosine = 1, p = 0, next = d[m];
  for (int i = m - 1; i >= l; --i) {
    const REAL f = sine * e[i], b = cosine * e[i], r = sqrt(f * f + g * g);
    e[i + 1] = r;
    if (r == 0) {
      d[i + 1] = next - p, e[m] = 0;
      for (; i >= l; --i) c[i] = 1, s[i] = 0;
      return;
    }
    const REAL inverse = 1 / r, here = d[i];
    sine = f * inverse, cosine = g * inverse;
    g = next - p;
    const REAL h = (here - g) * sine + 2 * cosine * b;
    p = sine * h;
    d[i + 1] = g + p;
    g = cosine * h - b;
    next = here;
    c[i] = cosine, s[i] = sine;
  }
  d[l] = next - p, e[l] = g, e[m] = 0;
}

inline void rotate_columns(global T* z, long ldz, global const REAL* c, global const REAL* s, int n, int l, int m) {
  for (int first = 0; first < n; first += APPLIED_ROWS) {
    const int rows = min(n - first, APPLIED_ROWS);
    for (int i = m - 1; i >= l; --i) {
      global T* const left = z + i * ldz + first;
      global T* const right = left + ldz;
      const REAL cosine = c[i], sine = s[i];
      FOR_ITEMS(k, 0, rows) {
        const T f = right[k], g = left[k];
        right[k] = sine * g + cosine * f;
        left[k] = cosine * g - sine * f;
      }
    }
  }
}

// Diagonalises d, e; zero, or the number of an eigenvalue that was not found.
inline int diagonalise(global REAL* d, global REAL* e, global REAL* c, global REAL* s, global T* z, long ldz, int n,
                       int vectors) {
  for (int l = 0; l < n; ++l) {
    for (int step = 0;; ++step) {
      SYNC;
      int m = l;
      for (; m < n - 1; ++m)
        if (fabs(e[m]) <= EPSILON * (fabs(d[m]) + fabs(d[m + 1]))) break;
      if (m == l) break;
      if (step == MOST_STEPS) return l + 1;
      SYNC;
      if (ITEM == 0) find_rotations(d, e, c, s, l, m);
      SYNC;
      if (vectors) rotate_columns(z, ldz, c, s, n, l, m);
    }
  }
  return 0;
}

inline void sort_ascending(global REAL* d, global T* z, long ldz, int n, int vectors) {
  for (int i = 0; i < n - 1; ++i) {
    SYNC;
    int least = i;
    for (int j = i + 1; j < n; ++j)
      if (d[j] < d[least]) least = j;
    if (least == i) continue;
    SYNC;
    if (ITEM == 0) {
      const REAL other = d[i];
      d[i] = d[least], d[least] = other;
    }
    if (vectors) FOR_ITEMS(k, 0, n) {
        const T other = z[i * ldz + k];
        z[i * ldz + k] = z[least * ldz + k], z[least * ldz + k] = other;
      }
  }
  SYNC;
}

// a: Hermitian matrices in one triangle, destroyed. z (where `vectors`), d: vectors in columns, values ascending.
// `numbers` and `real_numbers` are scratch of 2 n and 3 n numbers a matrix.
kernel void eigh(global T* a, const Matrix ma, global T* z, const Matrix mz, global REAL* d, const Matrix md,
                 global int* info, const Matrix mi, global T* numbers, const Matrix mn, global REAL* real_numbers,
                 const Matrix mr, const int n, const int upper, const int vectors, const Jobs jobs) {
  GROUP_SCRATCH
  a += ma.offset, z += mz.offset, d += md.offset, info += mi.offset;
  numbers += mn.offset, real_numbers += mr.offset;
  FOR_JOBS(b, jobs) {
    global T* const matrix = a + b * ma.batch;
    global T* const columns = z + b * mz.batch;
    global REAL* const values = d + b * md.batch;
    global T* const tau = numbers + b * mn.batch;
    global REAL* const e = real_numbers + b * mr.batch;
    REAL most = 0, wrong = 0;
    for (int j = 0; j < n; ++j)
      for (int i = j + ITEM; i < n; i += ITEMS) {
        T v = upper ? CONJ(matrix[i * ma.column + j]) : matrix[j * ma.column + i];
        if (i == j) v = OF(RE(v));
        most = fmax(most, ABS1(v));
        if (!(ABS1(v) <= MAXIMUM)) wrong = 1;
        matrix[j * ma.column + i] = v, matrix[i * ma.column + j] = CONJ(v);
      }
    most = GROUP_MAX(most), wrong = GROUP_MAX(wrong);
    if (wrong > 0) {
      FOR_ITEMS(i, 0, n) values[i] = NAN;
      if (ITEM == 0) info[b] = n;
      continue;
    }
    const REAL scale = dlb_scale(most);
    for (int j = 0; j < n; ++j) FOR_ITEMS(i, 0, n) matrix[j * ma.column + i] *= scale;
    SYNC;
    to_tridiagonal(matrix, ma.column, n, values, e, tau, tau + n GROUP_PASS);
    if (vectors) form_vectors(matrix, ma.column, tau, columns, mz.column, n GROUP_PASS);
    const int failed = diagonalise(values, e, e + n, e + 2 * n, columns, mz.column, n, vectors);
    sort_ascending(values, columns, mz.column, n, vectors);
    FOR_ITEMS(i, 0, n) values[i] /= scale;
    if (ITEM == 0) info[b] = failed;
  }
}
