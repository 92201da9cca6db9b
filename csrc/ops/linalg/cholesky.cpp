// cholesky, linalg_cholesky_ex, cholesky_solve, cholesky_inverse: recursive on products.
#include <ATen/native/BatchLinearAlgebra.h>
#include <ATen/native/LinearAlgebraUtils.h>
#include <ATen/ops/cholesky_inverse_native.h>
#include <ATen/ops/cholesky_native.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/eye.h>
#include <ATen/ops/linalg_cholesky_ex_native.h>
#include <torch/library.h>

#include "ops/common/structured.h"
#include "ops/linalg/triangular.h"

namespace dlb::linalg {
namespace {

// a := a - left right^H in the lower triangle; what is above it is not kept.
void subtract_lower(const Tensor& a, const Tensor& left, const Tensor& right, int64_t tile) {
  const int64_t n = a.size(1);
  if (n <= 2 * tile) return add_product(a, left, right.mH(), -1);
  const int64_t half = (n / tile + 1) / 2 * tile, rest = n - half;
  subtract_lower(a.narrow(1, 0, half).narrow(2, 0, half), left.narrow(1, 0, half), right.narrow(1, 0, half),
                 tile);
  add_product(a.narrow(1, half, rest).narrow(2, 0, half), left.narrow(1, half, rest),
              right.narrow(1, 0, half).mH(), -1);
  subtract_lower(a.narrow(1, half, rest).narrow(2, half, rest), left.narrow(1, half, rest),
                 right.narrow(1, half, rest), tile);
}

// The same on GPUs, block by block: two launches each, the first of which factors the next block's diagonal
// too.
void factor_by_blocks(const Tensor& a, const Tensor& info, int64_t first) {
  const Place place(a, "linalg.cholesky");
  const int64_t batch = a.size(0), n = a.size(1), block = block_of(a), count = (n + block - 1) / block;
  const Tensor inverse = at::empty({batch, block, block}, a.options());
  const auto subtract_and_factor = [&](int64_t k, int64_t blocks) {
    run_blocks(place, "linalg/gpu_cholesky.cl", "subtract_and_factor", batch * blocks, a, inverse, info, n, k,
               first, blocks);
  };
  subtract_and_factor(-1, 1);
  for (int64_t k = 0; k + 1 < count; ++k) {
    const int64_t below = count - 1 - k;
    run_blocks(place, "linalg/gpu_cholesky.cl", "finish_panel", batch * below, a, inverse, n, k, below);
    subtract_and_factor(k, below * (below + 1) / 2);
  }
}

// Factors the lower triangles of a [batch, n, n] in place. `first`: the number of rows above a in the whole.
void factor(const Tensor& a, const Tensor& info, int64_t first) {
  const int64_t n = a.size(1), tile = tile_of(a);
  if (n <= tile) {
    run_jobs(Place(a, "linalg.cholesky"), "linalg/cholesky.cl", "cholesky_tile", a.size(0),
             n * n * n / 3 + n * n, n * n, a, info, n, first);
    return;
  }
  if (goes_by_blocks(a, n)) return factor_by_blocks(a, info, first);
  const int64_t half = (n / tile + 1) / 2 * tile, rest = n - half;
  const Tensor top = a.narrow(1, 0, half).narrow(2, 0, half),
               below = a.narrow(1, half, rest).narrow(2, 0, half),
               other = a.narrow(1, half, rest).narrow(2, half, rest);
  factor(top, info, first);
  // below := below top^-H, which is the solution of conj(top) x = below^T.
  solve_triangular(a.is_complex() ? top.conj().resolve_conj() : top, below.mT(), false, false);
  subtract_lower(other, below, below, tile);
  factor(other, info, first + half);
}

void cholesky_kernel(const Tensor& input, const Tensor& info, bool upper) {
  if (input.numel() == 0) return;
  info.zero_();
  const Tensor a = collapse(input);
  // The transpose of the memory of U in a = U^H U is conj(L): no element needs to be conjugated.
  factor(upper ? a.mT() : a, info.view({-1, 1, 1}), 0);
}

std::tuple<Tensor&, Tensor&> cholesky_ex_out(const Tensor& self, bool upper, bool check_errors, Tensor& l,
                                             Tensor& info) {
  OutOp<at::native::structured_linalg_cholesky_ex_out, 2> op({std::cref(l), std::cref(info)});
  op.meta(self, upper, check_errors);
  op.impl(self, upper, check_errors, op.result(0), op.result(1));
  op.finish();
  return {l, info};
}

// L of a a factor that is stored as L or as U = L^H, not lazily conjugated.
Tensor lower_factor(const Tensor& factor, bool upper) {
  const Tensor matrices = collapse_or_copy(factor.resolve_conj());
  return upper ? matrices.mH().resolve_conj() : matrices;
}

Tensor cholesky_solve_helper(const Tensor& self, const Tensor& factor, bool upper) {
  TORCH_CHECK(self.dim() >= 2 && factor.dim() >= 2,
              "cholesky_solve: expected matrices or batches of them, but got ", self.sizes(), " and ",
              factor.sizes());
  at::native::linearSolveCheckInputs(self, factor, "cholesky_solve");
  TORCH_CHECK(self.sizes().slice(0, self.dim() - 2) == factor.sizes().slice(0, factor.dim() - 2),
              "cholesky_solve: expected as many matrices of both, but got ", self.sizes(), " and ",
              factor.sizes());
  Tensor result = column_major_copy(self);
  if (result.numel() != 0) solve_cholesky(lower_factor(factor, upper), collapse(result));
  return result;
}

Tensor& cholesky_inverse_kernel(Tensor& result, Tensor& infos, bool upper) {
  infos.zero_();
  if (result.numel() == 0) return result;
  const Tensor matrices = collapse(result);
  const Tensor lower = lower_factor(matrices, upper).clone();
  matrices.copy_(at::eye(matrices.size(1), matrices.options()));
  solve_cholesky(lower, matrices);
  return result;
}

}  // namespace
}  // namespace dlb::linalg

namespace at::native {
REGISTER_PRIVATEUSE1_DISPATCH(cholesky_stub, &dlb::linalg::cholesky_kernel)
REGISTER_PRIVATEUSE1_DISPATCH(cholesky_inverse_stub, &dlb::linalg::cholesky_inverse_kernel)
}  // namespace at::native

namespace dlb::linalg {
TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("linalg_cholesky_ex.L", cholesky_ex_out);
  m.impl("cholesky", at::native::cholesky);
  m.impl("cholesky.out", at::native::cholesky_out);
  m.impl("cholesky_inverse", at::native::cholesky_inverse);
  m.impl("cholesky_inverse.out", at::native::cholesky_inverse_out);
  m.impl("_cholesky_solve_helper", cholesky_solve_helper);
}
}  // namespace dlb::linalg
