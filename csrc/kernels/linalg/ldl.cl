// L D L^T and L D L^H factors with Bunch and Kaufman's pivoting, in the form of LAPACK's sytf2 and hetf2 for the lower
// triangle. A_T: the element type.
#include "kernels/linalg/linalg.clh"

#if COMPLEX
#define CONJ_IF(hermitian, v) ((hermitian) ? CONJ(v) : (v))
#define REAL_IF(hermitian, v) ((hermitian) ? OF(RE(v)) : (v))
#else
#define CONJ_IF(hermitian, v) (v)
#define REAL_IF(hermitian, v) (v)
#endif
#define AT(i, j) a[(i) + (j)*ld]

// The place of the largest of n numbers that lie `step` apart; all work-items find it for themselves.
inline int largest(global const T* x, int n, long step) {
  int at = 0;
  for (int i = 1; i < n; ++i)
    if (ABS1(x[i * step]) > ABS1(x[at * step])) at = i;
  return at;
}

// Exchanges rows and columns kk and kp of the part that is not factored yet.
inline void exchange_rows(global T* a, long ld, int n, int k, int kk, int kp, int hermitian) {
  FOR_ITEMS(i, kp + 1, n) {
    const T other = AT(i, kk);
    AT(i, kk) = AT(i, kp), AT(i, kp) = other;
  }
  for (int j = kk + 1 + ITEM; j < kp; j += ITEMS) {
    const T other = CONJ_IF(hermitian, AT(j, kk));
    AT(j, kk) = CONJ_IF(hermitian, AT(kp, j)), AT(kp, j) = other;
  }
  SYNC;
  if (ITEM == 0) {
    AT(kp, kk) = CONJ_IF(hermitian, AT(kp, kk));
    const T other = REAL_IF(hermitian, AT(kk, kk));
    AT(kk, kk) = REAL_IF(hermitian, AT(kp, kp)), AT(kp, kp) = other;
    if (kk > k) {
      const T below = AT(k + 1, k);
      AT(k + 1, k) = AT(kp, k), AT(kp, k) = below;
    }
  }
  SYNC;
}

inline void eliminate_one(global T* a, long ld, int n, int k, int hermitian) {
  const T inverse = DIV(OF(1), AT(k, k));
  for (int j = k + 1; j < n; ++j) {
    const T factor = MUL(inverse, CONJ_IF(hermitian, AT(j, k)));
    FOR_ITEMS(i, j, n) AT(i, j) -= MUL(AT(i, k), factor);
    SYNC;
    if (ITEM == 0) AT(j, j) = REAL_IF(hermitian, AT(j, j));
  }
  SYNC;
  FOR_ITEMS(i, k + 1, n) AT(i, k) = MUL(inverse, AT(i, k));
  SYNC;
}

inline void eliminate_two(global T* a, long ld, int n, int k, int hermitian) {
  const T below = AT(k + 1, k);
  const T d11 = DIV(AT(k + 1, k + 1), below), d22 = DIV(AT(k, k), CONJ_IF(hermitian, below));
  const T t = DIV(OF(1), MUL(d11, d22) - OF(1));
  const T first = DIV(t, CONJ_IF(hermitian, below)), second = DIV(t, below);
  for (int j = k + 2; j < n; ++j) {
    const T x = AT(j, k), y = AT(j, k + 1);
    // The row of L times D's block is (x, y): L's elements are these.
    const T one = MUL(first, MUL(d11, x) - y), two = MUL(second, MUL(d22, y) - x);
    const T c1 = CONJ_IF(hermitian, one), c2 = CONJ_IF(hermitian, two);
    FOR_ITEMS(i, j, n) AT(i, j) -= MUL(AT(i, k), c1) + MUL(AT(i, k + 1), c2);
    SYNC;
    if (ITEM == 0) {
      AT(j, k) = one, AT(j, k + 1) = two;
      AT(j, j) = REAL_IF(hermitian, AT(j, j));
    }
    SYNC;
  }
}

kernel void ldl_factor(global T* matrices, const Matrix ma, global int* pivots, const Matrix mp, global int* info,
                       const Matrix mi, const int n, const int hermitian, const Jobs jobs) {
  const REAL alpha = (REAL)0.6403882032022076;  // (1 + sqrt(17)) / 8
  matrices += ma.offset, pivots += mp.offset, info += mi.offset;
  FOR_JOBS(b, jobs) {
    global T* const a = matrices + b * ma.batch;
    global int* const swaps = pivots + b * mp.batch;
    const long ld = ma.column;
    int failed = 0;
    for (int k = 0, step; k < n; k += step) {
      step = 1;
      SYNC;
      const REAL size = hermitian ? fabs(RE(AT(k, k))) : ABS1(AT(k, k));
      const int most = k + 1 < n ? k + 1 + largest(&AT(k + 1, k), n - k - 1, 1) : k;
      const REAL in_column = most > k ? ABS1(AT(most, k)) : 0;
      int kp = k;
      if (fmax(size, in_column) == 0 || size != size) {
        if (!failed) failed = k + 1;
      } else if (size < alpha * in_column) {
        REAL in_row = ABS1(AT(most, k + largest(&AT(most, k), most - k, ld)));
        if (most + 1 < n)
          in_row = fmax(in_row, ABS1(AT(most + 1 + largest(&AT(most + 1, most), n - most - 1, 1), most)));
        const REAL there = hermitian ? fabs(RE(AT(most, most))) : ABS1(AT(most, most));
        if (size < alpha * in_column * (in_column / in_row)) {
          kp = most;
          if (there < alpha * in_row) step = 2;
        }
      }
      SYNC;
      const int kk = k + step - 1;
      if (kp != kk) exchange_rows(a, ld, n, k, kk, kp, hermitian);
      if (ITEM == 0) {
        AT(k, k) = REAL_IF(hermitian, AT(k, k));
        if (step == 2) AT(k + 1, k + 1) = REAL_IF(hermitian, AT(k + 1, k + 1));
        swaps[k] = step == 1 ? kp + 1 : -(kp + 1);
        if (step == 2) swaps[k + 1] = -(kp + 1);
      }
      SYNC;
      if (step == 2) eliminate_two(a, ld, n, k, hermitian);
      else if (!IS_ZERO(AT(k, k))) eliminate_one(a, ld, n, k, hermitian);
    }
    if (ITEM == 0) info[b] = failed;
  }
}

#define SIDE(i) x[(i)*row]
inline void exchange_sides(global T* x, long row, int i, int j) {
  const T other = SIDE(i);
  SIDE(i) = SIDE(j), SIDE(j) = other;
}
inline T rest_of_product(global const T* column, global const T* x, long row, int from, int n, int hermitian) {
  T sum = OF(0);
  for (int i = from; i < n; ++i) sum += MUL(CONJ_IF(hermitian, column[i]), SIDE(i));
  return sum;
}

// sides [n, columns], replaced by the solution. A row of the team: one column of one matrix.
kernel void ldl_solve(global const T* matrices, const Matrix ma, global const int* pivots, const Matrix mp,
                      global T* sides, const Matrix ms, const int n, const int columns, const int hermitian,
                      const Team team) {
  matrices += ma.offset, pivots += mp.offset, sides += ms.offset;
  FOR_ROWS(job, team) {
    if (!job_active) continue;
    const uint b = job / columns;
    global const T* const a = matrices + b * ma.batch;
    global const int* const swaps = pivots + b * mp.batch;
    global T* const x = sides + b * ms.batch + (job % columns) * ms.column;
    const long ld = ma.column, row = ms.row;
    for (int k = 0; k < n;) {
      if (swaps[k] > 0) {
        exchange_sides(x, row, k, swaps[k] - 1);
        for (int i = k + 1; i < n; ++i) SIDE(i) -= MUL(AT(i, k), SIDE(k));
        SIDE(k) = DIV(SIDE(k), AT(k, k));
        k += 1;
      } else {
        exchange_sides(x, row, k + 1, -swaps[k] - 1);
        for (int i = k + 2; i < n; ++i) SIDE(i) -= MUL(AT(i, k), SIDE(k)) + MUL(AT(i, k + 1), SIDE(k + 1));
        const T below = AT(k + 1, k), above = CONJ_IF(hermitian, below);
        const T d1 = DIV(AT(k, k), above), d2 = DIV(AT(k + 1, k + 1), below), det = MUL(d1, d2) - OF(1);
        const T x1 = DIV(SIDE(k), above), x2 = DIV(SIDE(k + 1), below);
        SIDE(k) = DIV(MUL(d2, x1) - x2, det);
        SIDE(k + 1) = DIV(MUL(d1, x2) - x1, det);
        k += 2;
      }
    }
    for (int k = n - 1; k >= 0;) {
      SIDE(k) -= rest_of_product(a + k * ld, x, row, k + 1, n, hermitian);
      if (swaps[k] > 0) {
        exchange_sides(x, row, k, swaps[k] - 1);
        k -= 1;
      } else {
        SIDE(k - 1) -= rest_of_product(a + (k - 1) * ld, x, row, k + 1, n, hermitian);
        exchange_sides(x, row, k, -swaps[k] - 1);
        k -= 2;
      }
    }
  }
}
