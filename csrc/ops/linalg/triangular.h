// Triangular solves, the part of linear algebra that most other ops use.
#pragma once
#include "ops/linalg/matrix.h"

namespace dlb::linalg {

// b := a^-1 b for a [batch, n, n], of which one triangle is read, and b [batch, n, k], both of one dtype in
// any layout and not lazily conjugated. Recursive: products do most of the work.
void solve_triangular(const Tensor& a, const Tensor& b, bool upper, bool unit);

// b := b a^-1 for b [batch, k, n].
inline void solve_triangular_right(const Tensor& a, const Tensor& b, bool upper, bool unit) {
  solve_triangular(a.mT(), b.mT(), !upper, unit);
}

// Whether solve_at_once() takes matrices of so many rows.
bool solves_at_once(const Tensor& a);
// b := a^-1 b in `steps`, which are SOLVE_*, of one launch or two. `pivots` [batch, n, 1] may be undefined
// where no step exchanges rows.
void solve_at_once(const Tensor& a, const Tensor& b, const Tensor& pivots, int steps);

// b := (L L^H)^-1 b from L in the lower triangle of a.
void solve_cholesky(const Tensor& lower, const Tensor& b);

}  // namespace dlb::linalg
