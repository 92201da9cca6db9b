// Eigenvalues and singular values by Jacobi's methods, on GPUs.
#pragma once
#include "ops/linalg/matrix.h"

namespace dlb::linalg {

// z [batch, n, n], column-major: Hermitian matrices in one triangle, replaced by their vectors in columns
// where `compute`, else destroyed. values [batch, n, 1], ascending. info [batch, 1, 1]: zero, or n for
// numbers that are not finite and where rotations do not end.
void eigh_by_jacobi(const Tensor& z, const Tensor& values, const Tensor& info, bool upper, bool compute);

// w [batch, m, n] with m >= n, column-major: replaced by the left singular vectors, an orthonormal basis
// whatever the rank. s [batch, n, 1], descending; v [batch, n, n], undefined where no vectors are asked for.
// info [batch, 1, 1]: zero, -4 for numbers that are not finite, n where rotations do not end.
void svd_by_jacobi(const Tensor& w, const Tensor& s, const Tensor& v, const Tensor& info);

// Whether one work-group's local memory takes the singular value decomposition of an m x n matrix.
bool svd_fits(const Tensor& like, int64_t m, int64_t n, bool vectors);

}  // namespace dlb::linalg
