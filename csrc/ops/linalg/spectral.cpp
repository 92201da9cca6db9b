// _linalg_eigh and _linalg_svd. Eigenvalues of general matrices are left to the CPU's LAPACK
// (ops/fallback.cpp).
#include <ATen/native/BatchLinearAlgebra.h>
#include <ATen/ops/_linalg_eigh_native.h>
#include <ATen/ops/_linalg_svd_native.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/linalg_qr.h>
#include <ATen/ops/matmul.h>
#include <torch/library.h>

#include "ops/common/structured.h"
#include "ops/linalg/jacobi.h"

namespace dlb::linalg {
namespace {

void eigh_kernel(const Tensor& values, const Tensor& vectors, const Tensor& infos, bool upper, bool compute) {
  if (vectors.numel() == 0) return;
  const Tensor z = collapse(vectors);
  const Place place(vectors, "linalg.eigh");
  if (!place.cpu())
    return eigh_by_jacobi(z, collapse_vectors(values), infos.view({-1, 1, 1}), upper, compute);
  const Tensor a = compute ? column_major_copy(z) : z;
  const int64_t batch = z.size(0), n = z.size(1);
  const Tensor numbers = at::empty({batch, 2 * n, 1}, z.options()),
               reals = at::empty({batch, 3 * n, 1}, values.options());
  run_jobs(place, "linalg/eigh.cl", "eigh", batch, n * n * n * 8, n, a, z, collapse_vectors(values),
           infos.view({-1, 1, 1}), numbers, reals, n, static_cast<int>(upper), static_cast<int>(compute));
}

std::tuple<Tensor&, Tensor&> eigh_out(const Tensor& a, c10::string_view uplo, bool compute_v, Tensor& values,
                                      Tensor& vectors) {
  OutOp<at::native::structured__linalg_eigh_out, 2> op({std::cref(values), std::cref(vectors)});
  op.meta(a, uplo, compute_v);
  op.impl(a, uplo, compute_v, op.result(0), op.result(1));
  op.finish();
  return {values, vectors};
}

// The same as svd_by_jacobi(), on CPUs.
void jacobi(const Tensor& w, const Tensor& s, const Tensor& v, const Tensor& info) {
  const int64_t m = w.size(1), n = w.size(2);
  run_jobs(Place(w, "linalg.svd"), "linalg/svd.cl", "svd", w.size(0), m * n * n * 30, m, w,
           v.defined() ? v : w, s, info, m, n, static_cast<int>(v.defined()));
}

// Rows and columns from which on a bidiagonal form is faster than Jacobi's rotations.
constexpr int64_t kBidiagonal = 24;

// The same by way of a bidiagonal matrix.
void bidiagonal(const Tensor& w, const Tensor& s, const Tensor& v, const Tensor& info) {
  const int64_t batch = w.size(0), m = w.size(1), n = w.size(2);
  const Tensor right = v.defined() ? v : empty_column_major(batch, n, n, w.options()),
               numbers = at::empty({batch, 3 * n + m, 1}, w.options()),
               reals = at::empty({batch, n, 1}, s.options());
  run_jobs(Place(w, "linalg.svd"), "linalg/bidiagonal.cl", "svd_bidiagonal", batch, m * n * n * 10, m, w,
           right, s, info, numbers, reals, m, n, static_cast<int>(v.defined()));
}

// Whether R is decomposed in the stead of m x n matrices: those much taller than wide, and those that would
// not fit in local memory where R does.
bool by_r(const Tensor& like, int64_t m, int64_t n, bool cpu, bool vectors) {
  constexpr int64_t kTall = 3;
  return m > kTall * n || (!cpu && m > n && !svd_fits(like, m, n, vectors) && svd_fits(like, n, n, vectors));
}

void svd_kernel(const Tensor& a_, bool full_matrices, bool compute_uv,
                const std::optional<std::string_view>& /*driver*/, const Tensor& u, const Tensor& s,
                const Tensor& vh, const Tensor& info) {
  if (a_.numel() == 0) return;
  const Tensor a = collapse_or_copy(a_);
  const bool wide = a.size(1) < a.size(2);
  const Tensor tall = wide ? a.mH() : a;
  const int64_t batch = tall.size(0), m = tall.size(1), n = tall.size(2);
  const bool cpu = Place(a, "linalg.svd").cpu(), reduced = by_r(a, m, n, cpu, compute_uv);
  Tensor q, w;
  if (reduced) {
    std::tie(q, w) = at::linalg_qr(tall, compute_uv ? "reduced" : "r");
    w = column_major_copy(w);
  } else {
    w = column_major_copy(tall);
  }
  const Tensor v = compute_uv ? empty_column_major(batch, n, n, a.options()) : Tensor();
  (!cpu               ? svd_by_jacobi
   : n >= kBidiagonal ? bidiagonal
                      : jacobi)(w, collapse_vectors(s), v, info.view({-1, 1, 1}));
  if (!compute_uv) return;
  if (reduced) {
    const Tensor product = empty_column_major(batch, m, n, a.options());
    set_product(product, q, w);
    w = product;
  }
  // The columns that an orthonormal basis begun with w needs.
  if (full_matrices && m > n)
    w = at::cat({w, std::get<0>(at::linalg_qr(w, "complete")).narrow(2, n, m - n)}, 2);
  collapse(u).copy_(wide ? v : w);
  collapse(vh).copy_((wide ? w : v).mH());
}

std::tuple<Tensor&, Tensor&, Tensor&> svd_out(const Tensor& a, bool full_matrices, bool compute_uv,
                                              std::optional<c10::string_view> driver, Tensor& u, Tensor& s,
                                              Tensor& vh) {
  OutOp<at::native::structured__linalg_svd_out, 3> op({std::cref(u), std::cref(s), std::cref(vh)});
  op.meta(a, full_matrices, compute_uv, driver);
  op.impl(a, full_matrices, compute_uv, driver, op.result(0), op.result(1), op.result(2));
  op.finish();
  return {u, s, vh};
}

}  // namespace
}  // namespace dlb::linalg

namespace at::native {
REGISTER_PRIVATEUSE1_DISPATCH(linalg_eigh_stub, &dlb::linalg::eigh_kernel)
REGISTER_PRIVATEUSE1_DISPATCH(svd_stub, &dlb::linalg::svd_kernel)
}  // namespace at::native

namespace dlb::linalg {
TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("_linalg_eigh.eigenvalues", eigh_out);
  m.impl("_linalg_svd.U", svd_out);
}
}  // namespace dlb::linalg
