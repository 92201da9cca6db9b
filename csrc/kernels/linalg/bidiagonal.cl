// Singular values and vectors by way of a bidiagonal matrix (Golub and Kahan 1965; Golub and Reinsch: Handbook for
// Automatic Computation II, 1971), a matrix a work-item. For CPUs. A_T: the element type.
#include "kernels/linalg/linalg.clh"

#define MOST_STEPS 60  // of the QR method for one value
#if defined(DLB_COMPUTE_f64) || defined(DLB_COMPUTE_c128)
// A vector shorter than this, beside a largest element of 1 to 2, counts as zero: its reflector would not be unitary.
#define LEAST_NORM 0x1p-400
#else
#define LEAST_NORM 0x1p-60f
#endif

// Scratch of one matrix.
typedef struct {
  global T *left, *right, *sums, *product;  // the reflectors' factors; n of row sums; m of a product
  global REAL* off;                         // [n], off[i] stands above the diagonal's i, off[0] is 0
} gk_scratch;

inline T reflector(global T* x, int n, REAL* beta) {
  if (dlb_norm(x, n) > LEAST_NORM) return dlb_reflector(x[0], x + 1, n - 1, beta);
  for (int i = 0; i < n; ++i) x[i] = OF(0);
  *beta = 0;
  return OF(0);
}

// a [m, n] := Q^H a P, bidiagonal: d and off. Reflectors stay below the diagonal of a, and those of rows go to the columns
// of v, one to the right of where they belong, so that they lie below its diagonal too.
inline void to_bidiagonal(global T* a, long ld, global T* v, long ldv, int m, int n, global REAL* d, gk_scratch w) {
  w.off[0] = 0;
  for (int i = 0; i < n; ++i) {
    global T* const x = a + i * ld + i;
    const int high = m - i;
    REAL beta;
    const T factor = reflector(x, high, &beta);
    d[i] = beta, w.left[i] = factor, x[0] = OF(1);
    if (i + 1 == n) break;
    // The row as it will be, conjugated, in the place of its reflector.
    global T* const u = v + (i + 1) * ldv + i + 1;
    const int wide = n - i - 1;
    for (int j = 0; j < wide; ++j) {
      global const T* const column = x + (j + 1) * ld;
      w.sums[j] = -MUL(CONJ(factor), dlb_dot(x, column, high));
      u[j] = CONJ(column[0] + w.sums[j]);
    }
    const T other = reflector(u, wide, &beta);
    w.off[i + 1] = beta, w.right[i + 1] = other, u[0] = OF(1);
    DLB_SIMD for (int k = 0; k < high; ++k) w.product[k] = OF(0);
    for (int j = 0; j < wide; ++j) {
      global T* const column = x + (j + 1) * ld;
      const T share = w.sums[j], along = u[j];
      DLB_SIMD for (int k = 0; k < high; ++k) {
        const T changed = column[k] + MUL(share, x[k]);
        column[k] = changed;
        w.product[k] += MUL(along, changed);
      }
    }
    for (int j = 0; j < wide; ++j) dlb_axpy(-MUL(other, CONJ(u[j])), w.product + 1, x + (j + 1) * ld + 1, high - 1);
  }
}

// The first n columns of the product of the reflectors that lie below the diagonal of q [m, n], in their place.
inline void form_columns(global T* q, long ld, int m, int n, global const T* factors) {
  for (int i = n - 1; i >= 0; --i) {
    global T* const x = q + i * ld + i;
    const T factor = factors[i];
    for (int j = 1; j < n - i; ++j) dlb_axpy(-MUL(factor, dlb_dot(x, x + j * ld, m - i)), x, x + j * ld, m - i);
    DLB_SIMD for (int k = 0; k < m - i; ++k) x[k] = -MUL(factor, x[k]);
    x[0] += OF(1);
    for (int k = 1; k <= i; ++k) x[-k] = OF(0);
  }
}

// (x, y) := (c x + s y, c y - s x)
inline void turn(global T* x, global T* y, int n, REAL c, REAL s) {
  DLB_SIMD for (int k = 0; k < n; ++k) {
    const T f = x[k], g = y[k];
    x[k] = c * f + s * g;
    y[k] = c * g - s * f;
  }
}

// Rotates off[l] away, where d[l - 1] is negligible.
inline void cancel(global REAL* d, global REAL* off, int l, int k, REAL least, global T* u, long ldu, int m,
                   int vectors) {
  REAL c = 0, s = 1;
  for (int i = l; i <= k; ++i) {
    const REAL f = s * off[i], g = d[i];
    off[i] *= c;
    if (fabs(f) <= least) return;
    const REAL h = sqrt(f * f + g * g);
    d[i] = h, c = g / h, s = -f / h;
    if (vectors) turn(u + (l - 1) * ldu, u + i * ldu, m, c, s);
  }
}

// One step of the QR method on l .. k, with the shift of the last two rows.
inline void step_values(global REAL* d, global REAL* off, int l, int k, global T* u, long ldu, int m, global T* v,
                        long ldv, int n, int vectors) {
  REAL x = d[l], y = d[k - 1], z = d[k], g = off[k - 1], h = off[k];
  REAL f = ((y - z) * (y + z) + (g - h) * (g + h)) / (2 * h * y);
  f = ((x - z) * (x + z) + h * (y / (f + copysign(sqrt(f * f + 1), f)) - h)) / x;
  REAL c = 1, s = 1;
  for (int j = l; j < k; ++j) {
    g = c * off[j + 1], h = s * off[j + 1], y = d[j + 1];
    z = sqrt(f * f + h * h);
    off[j] = z;
    c = z > 0 ? f / z : 1, s = z > 0 ? h / z : 0;
    f = x * c + g * s, g = g * c - x * s, h = y * s, y *= c;
    if (vectors) turn(v + j * ldv, v + (j + 1) * ldv, n, c, s);
    z = sqrt(f * f + h * h);
    d[j] = z;
    if (z > 0) c = f / z, s = h / z;
    f = c * g + s * y, x = c * y - s * g;
    if (vectors) turn(u + j * ldu, u + (j + 1) * ldu, m, c, s);
  }
  off[l] = 0, off[k] = f, d[k] = x;
}

// Diagonalises d, off; zero, or the number of a value that was not found.
inline int find_values(global REAL* d, global REAL* off, global T* u, long ldu, int m, global T* v, long ldv, int n,
                       int vectors) {
  REAL most = 0;
  for (int i = 0; i < n; ++i) most = fmax(most, fabs(d[i]) + fabs(off[i]));
  const REAL least = EPSILON * most * (REAL)0.5;
  for (int k = n - 1; k >= 0; --k)
    for (int step = 0;; ++step) {
      int l = k;
      for (; l > 0; --l) {
        if (fabs(off[l]) <= least) break;
        if (fabs(d[l - 1]) <= least) {
          cancel(d, off, l, k, least, u, ldu, m, vectors);
          break;
        }
      }
      if (l == 0 || fabs(off[l]) <= least) off[l] = 0;
      if (l == k) break;
      if (step == MOST_STEPS) return k + 1;
      step_values(d, off, l, k, u, ldu, m, v, ldv, n, vectors);
    }
  for (int k = 0; k < n; ++k) {
    if (d[k] >= 0) continue;
    d[k] = -d[k];
    if (vectors) DLB_SIMD for (int i = 0; i < n; ++i) v[k * ldv + i] = -v[k * ldv + i];
  }
  return 0;
}

inline void exchange(global T* x, long ld, int n, int i, int j) {
  DLB_SIMD for (int k = 0; k < n; ++k) {
    const T other = x[i * ld + k];
    x[i * ld + k] = x[j * ld + k], x[j * ld + k] = other;
  }
}

// w [m, n] with m >= n, rows contiguous, replaced by U; s [n] descending; v [n, n], w = U s V^H. Without `vectors` both
// are destroyed. `numbers` and `reals` are scratch of 3 n + m and n numbers a matrix. info: -4 for numbers that are not
// finite, positive where the QR method did not end.
kernel void svd_bidiagonal(global T* w, const Matrix mw, global T* v, const Matrix mv, global REAL* s, const Matrix ms,
                           global int* info, const Matrix mi, global T* numbers, const Matrix mn, global REAL* reals,
                           const Matrix mr, const int m, const int n, const int vectors, const Jobs jobs) {
  w += mw.offset, v += mv.offset, s += ms.offset, info += mi.offset, numbers += mn.offset, reals += mr.offset;
  FOR_JOBS(b, jobs) {
    global T* const left = w + b * mw.batch;
    global T* const right = v + b * mv.batch;
    global REAL* const d = s + b * ms.batch;
    const long ldw = mw.column, ldv = mv.column;
    gk_scratch scratch;
    scratch.left = numbers + b * mn.batch, scratch.right = scratch.left + n, scratch.sums = scratch.right + n;
    scratch.product = scratch.sums + n, scratch.off = reals + b * mr.batch;
    REAL most = 0, wrong = 0;
    for (int j = 0; j < n; ++j)
      for (int i = 0; i < m; ++i) {
        const REAL size = ABS1(left[j * ldw + i]);
        most = fmax(most, size);
        if (!(size <= MAXIMUM)) wrong = 1;
      }
    if (wrong > 0) {
      for (int i = 0; i < n; ++i) d[i] = NAN;
      info[b] = -4;
      continue;
    }
    const REAL scale = dlb_scale(most);
    for (int j = 0; j < n; ++j) DLB_SIMD for (int i = 0; i < m; ++i) left[j * ldw + i] *= scale;
    to_bidiagonal(left, ldw, right, ldv, m, n, d, scratch);
    if (vectors) {
      form_columns(left, ldw, m, n, scratch.left);
      if (n > 1) form_columns(right + ldv + 1, ldv, n - 1, n - 1, scratch.right + 1);
      for (int i = 0; i < n; ++i) right[i] = right[i * ldv] = OF(i == 0 ? 1 : 0);
    }
    info[b] = find_values(d, scratch.off, left, ldw, m, right, ldv, n, vectors);
    for (int i = 0; i < n - 1; ++i) {
      int largest = i;
      for (int j = i + 1; j < n; ++j)
        if (d[j] > d[largest]) largest = j;
      if (largest == i) continue;
      const REAL other = d[i];
      d[i] = d[largest], d[largest] = other;
      if (vectors) exchange(left, ldw, m, i, largest), exchange(right, ldv, n, i, largest);
    }
    for (int i = 0; i < n; ++i) d[i] /= scale;
  }
}
