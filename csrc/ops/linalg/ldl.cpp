// linalg_ldl_factor_ex and linalg_ldl_solve.
#include <ATen/native/BatchLinearAlgebra.h>
#include <ATen/ops/linalg_ldl_factor_ex_native.h>
#include <ATen/ops/linalg_ldl_solve_native.h>
#include <torch/library.h>

#include "ops/common/structured.h"
#include "ops/linalg/matrix.h"

namespace dlb::linalg {
namespace {

// PyTorch asks for the lower triangle alone.
void ldl_factor_kernel(const Tensor& ld, const Tensor& pivots, const Tensor& info, bool upper,
                       bool hermitian) {
  TORCH_INTERNAL_ASSERT(!upper);
  if (ld.numel() == 0) return;
  const Tensor a = collapse(ld);
  const int64_t n = a.size(1);
  run_jobs(Place(ld, "linalg.ldl_factor"), "linalg/ldl.cl", "ldl_factor", a.size(0), n * n * n / 3 + n * n, n,
           a, collapse_vectors(pivots), info.view({-1, 1, 1}), n, static_cast<int>(hermitian));
}

void ldl_solve_kernel(const Tensor& ld, const Tensor& pivots, const Tensor& result, bool upper,
                      bool hermitian) {
  TORCH_INTERNAL_ASSERT(!upper);
  if (result.numel() == 0) return;
  const Tensor a = collapse_or_copy(ld), b = collapse(result);
  const int64_t n = a.size(1);
  run_rows(Place(ld, "linalg.ldl_solve"), "linalg/ldl.cl", "ldl_solve", b.size(0) * b.size(2), n * n * 2, a,
           collapse_or_copy(pivots.unsqueeze(-1)), b, n, b.size(2), static_cast<int>(hermitian));
}

std::tuple<Tensor&, Tensor&, Tensor&> ldl_factor_out(const Tensor& self, bool hermitian, bool check_errors,
                                                     Tensor& ld, Tensor& pivots, Tensor& info) {
  OutOp<at::native::structured_linalg_ldl_factor_ex_out, 3> op(
      {std::cref(ld), std::cref(pivots), std::cref(info)});
  op.meta(self, hermitian, check_errors);
  op.impl(self, hermitian, check_errors, op.result(0), op.result(1), op.result(2));
  op.finish();
  return {ld, pivots, info};
}

Tensor& ldl_solve_out(const Tensor& ld, const Tensor& pivots, const Tensor& b, bool hermitian, Tensor& out) {
  OutOp<at::native::structured_linalg_ldl_solve_out> op(out);
  op.meta(ld, pivots, b, hermitian);
  op.impl(ld, pivots, b, hermitian, op.result());
  op.finish();
  return out;
}

}  // namespace
}  // namespace dlb::linalg

namespace at::native {
REGISTER_PRIVATEUSE1_DISPATCH(ldl_factor_stub, &dlb::linalg::ldl_factor_kernel)
REGISTER_PRIVATEUSE1_DISPATCH(ldl_solve_stub, &dlb::linalg::ldl_solve_kernel)
}  // namespace at::native

namespace dlb::linalg {
TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("linalg_ldl_factor_ex.out", ldl_factor_out);
  m.impl("linalg_ldl_solve.out", ldl_solve_out);
}
}  // namespace dlb::linalg
