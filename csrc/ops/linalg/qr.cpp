// geqrf, linalg_qr, linalg_householder_product and ormqr: blocks of reflectors in compact WY form, applied by
// products (Schreiber and Van Loan 1989).
#include <ATen/native/BatchLinearAlgebra.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/geqrf_native.h>
#include <ATen/ops/linalg_householder_product_native.h>
#include <ATen/ops/linalg_qr_native.h>
#include <ATen/ops/ormqr_native.h>
#include <torch/library.h>

#include "ops/common/structured.h"
#include "ops/linalg/matrix.h"

namespace dlb::linalg {
namespace {

constexpr int64_t kPanel = 32;  // reflectors of a block

// A block of reflectors, I - v t v^H.
struct Block {
  Tensor v, t;  // [batch, m, k] and [batch, k, k]

  // `panel` [batch, m, k] holds the vectors below its diagonal; tau [batch, k, 1].
  Block(const Tensor& panel, const Tensor& tau) : v(panel.tril(-1)) {
    const int64_t k = panel.size(2);
    v.diagonal(0, 1, 2).fill_(1);
    const Tensor gram = at::empty({panel.size(0), k, k}, panel.options());
    t = at::empty_like(gram);
    set_product(gram, v.mH(), v);
    run_jobs(Place(panel, "geqrf"), "linalg/qr.cl", "block_reflector", panel.size(0), k * k * k, k, gram, tau,
             t, k);
  }

  Tensor factor(bool adjoint) const { return adjoint ? t.mH() : t; }

  // c := block c, or its adjoint times c.
  void apply_left(const Tensor& c, bool adjoint) const {
    if (c.numel() == 0) return;
    const Tensor along = at::empty({c.size(0), t.size(1), c.size(2)}, c.options()),
                 scaled = at::empty_like(along);
    set_product(along, v.mH(), c);
    set_product(scaled, factor(adjoint), along);
    add_product(c, v, scaled, -1);
  }
  // c := c block, or c times its adjoint.
  void apply_right(const Tensor& c, bool adjoint) const {
    if (c.numel() == 0) return;
    const Tensor along = at::empty({c.size(0), c.size(1), t.size(1)}, c.options()),
                 scaled = at::empty_like(along);
    set_product(along, c, v);
    set_product(scaled, along, factor(adjoint));
    add_product(c, scaled, v.mH(), -1);
  }
};

// Calls use(first, block) for the blocks of k reflectors in a [batch, m, .], from the last one where `back`.
template <class Use>
void for_blocks(const Tensor& a, const Tensor& tau, bool back, Use&& use) {
  const int64_t k = tau.size(1), count = (k + kPanel - 1) / kPanel;
  for (int64_t step = 0; step < count; ++step) {
    const int64_t first = (back ? count - 1 - step : step) * kPanel, size = std::min(kPanel, k - first);
    use(first,
        Block(a.narrow(1, first, a.size(1) - first).narrow(2, first, size), tau.narrow(1, first, size)));
  }
}

void geqrf_kernel(const Tensor& input, const Tensor& tau_) {
  if (input.numel() == 0) return;
  const Tensor a = collapse(input), tau = collapse_vectors(tau_);
  const int64_t m = a.size(1), n = a.size(2), k = std::min(m, n), panel = n <= tile_of(a) ? n : kPanel;
  for (int64_t first = 0; first < k; first += panel) {
    const int64_t size = std::min(panel, k - first), rest = n - first - size, rows = m - first;
    const Tensor columns =
        a.narrow(1, first, rows).narrow(2, first, rest && first + size == k ? n - first : size);
    const Tensor factors = tau.narrow(1, first, size);
    run_jobs(Place(a, "geqrf"), "linalg/qr.cl", "qr_panel", a.size(0), rows * columns.size(2) * size * 2,
             rows, columns, factors, rows, columns.size(2));
    if (columns.size(2) == n - first) return;
    Block(columns, factors).apply_left(a.narrow(1, first, rows).narrow(2, first + size, rest), true);
  }
}

Tensor& orgqr_kernel(Tensor& result, const Tensor& tau_) {
  if (result.numel() == 0) return result;
  const Tensor a = collapse(result), tau = collapse_or_copy(tau_.unsqueeze(-1));
  const Tensor q = empty_column_major(a.size(0), a.size(1), a.size(2), a.options());
  q.zero_();
  q.diagonal(0, 1, 2).fill_(1);
  for_blocks(a, tau, true, [&](int64_t first, const Block& block) {
    block.apply_left(q.narrow(1, first, q.size(1) - first).narrow(2, first, q.size(2) - first), false);
  });
  a.copy_(q);
  return result;
}

void ormqr_kernel(const Tensor& input, const Tensor& tau_, const Tensor& other, bool left, bool adjoint) {
  if (other.numel() == 0 || tau_.numel() == 0) return;
  const Tensor a = collapse_or_copy(input.resolve_conj()), tau = collapse_or_copy(tau_.unsqueeze(-1)),
               c = collapse(other);
  for_blocks(a, tau, left != adjoint, [&](int64_t first, const Block& block) {
    const int64_t dim = left ? 1 : 2;
    const Tensor part = c.narrow(dim, first, c.size(dim) - first);
    left ? block.apply_left(part, adjoint) : block.apply_right(part, adjoint);
  });
}

std::tuple<Tensor&, Tensor&> qr_out(const Tensor& a, c10::string_view mode, Tensor& q, Tensor& r) {
  OutOp<at::native::structured_linalg_qr_out, 2> op({std::cref(q), std::cref(r)});
  op.meta(a, mode);
  op.impl(a, mode, op.result(0), op.result(1));
  op.finish();
  return {q, r};
}

}  // namespace
}  // namespace dlb::linalg

namespace at::native {
REGISTER_PRIVATEUSE1_DISPATCH(geqrf_stub, &dlb::linalg::geqrf_kernel)
REGISTER_PRIVATEUSE1_DISPATCH(orgqr_stub, &dlb::linalg::orgqr_kernel)
REGISTER_PRIVATEUSE1_DISPATCH(ormqr_stub, &dlb::linalg::ormqr_kernel)
}  // namespace at::native

namespace dlb::linalg {
TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("linalg_qr.out", qr_out);
  m.impl("geqrf", at::native::geqrf);
  m.impl("geqrf.a", at::native::geqrf_out);
  m.impl("linalg_householder_product", at::native::linalg_householder_product);
  m.impl("linalg_householder_product.out", at::native::linalg_householder_product_out);
  m.impl("ormqr", at::native::ormqr);
  m.impl("ormqr.out", at::native::ormqr_out);
}
}  // namespace dlb::linalg
