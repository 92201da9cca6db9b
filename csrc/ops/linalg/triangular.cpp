// linalg_solve_triangular and triangular_solve: PyTorch's own functions, with the kernel that they ask for.
#include "ops/linalg/triangular.h"

#include <ATen/native/BatchLinearAlgebra.h>
#include <ATen/native/TransposeType.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/linalg_solve_triangular_native.h>
#include <ATen/ops/triangular_solve_native.h>
#include <torch/library.h>

#include "ops/common/structured.h"

namespace dlb::linalg {

namespace {

// solve_at_once() of several blocks on CPUs. Work-items have columns of b, which walk through the cache with
// a copy of a whose blocks on the diagonal are inverted.
void solve_by_strips(const Tensor& a, const Tensor& b, const Tensor& pivots, int steps) {
  if (b.stride(1) != 1) {
    const Tensor columns = column_major_copy(b);
    solve_by_strips(a, columns, pivots, steps);
    b.copy_(columns);
    return;
  }
  const Place place(a, "linalg_solve_triangular");
  const int64_t batch = b.size(0), n = a.size(1), columns = b.size(2), ld = padded_column(n);
  const int64_t panel = params::LINALG_PANEL, blocks = (n + panel - 1) / panel;
  const bool both = (steps & params::SOLVE_LOWER) && (steps & params::SOLVE_UPPER);
  const int64_t size = (1 + both) * (n * ld + blocks * panel * panel) + ld;
  // A batch of one matrix may be solved for many: then a's batch stride is zero.
  const int64_t matrices = a.stride(0) == 0 ? 1 : batch;
  const Tensor triangles = at::empty({matrices, size, 1}, a.options());
  run_jobs(place, "linalg/cpu_triangular.cl", "copy_triangles", matrices * (1 + both) * blocks, n * panel / 2,
           1, a, triangles, n, ld, steps);
  constexpr int64_t kTile = 6;  // columns
  const int64_t parts = parts_of_each(place, batch, columns / kTile);
  const int64_t width =
      std::min<int64_t>((columns + parts * kTile - 1) / (parts * kTile) * kTile, params::LINALG_STRIP);
  const int64_t strips = (columns + width - 1) / width;
  const Tensor scratch = at::empty({batch * strips, panel * width + 2 * ld, 1}, a.options());
  run_jobs(place, "linalg/cpu_triangular.cl", "solve_strips", batch * strips, n * n * width, 1,
           triangles.expand({batch, size, 1}), b, pivots, scratch, n, columns, ld, steps, width, strips);
}

}  // namespace

bool solves_at_once(const Tensor& a) {
  return a.size(1) <= tile_of(a) || goes_by_panels(a, a.size(1));
}

void solve_at_once(const Tensor& a, const Tensor& b, const Tensor& pivots, int steps) {
  const Place place(a, "linalg_solve_triangular");
  const int64_t n = a.size(1), columns = b.size(2);
  const Tensor no_pivots = pivots.defined() ? pivots : b;
  if (goes_by_panels(a, n)) return solve_by_strips(a, b, no_pivots, steps);
  if (is_small(a, n))
    return run_small(place, "solve_small", n, b.size(0), a, b, no_pivots, n, columns, steps);
  const int64_t lanes = place.cpu() ? params::LINALG_LANES_CPU : params::LINALG_LANES_GPU;
  const int64_t tiles = (columns + lanes - 1) / lanes;
  run_jobs(place, "linalg/triangular.cl", "solve_tile", b.size(0) * tiles,
           n * n * (2 + std::min(columns, lanes)), lanes, a, b, no_pivots, n, columns, steps, tiles);
}

namespace {

// solve_triangular() on GPUs, a launch for each block of rows, with the inverses of the blocks on the
// diagonal.
void solve_by_blocks(const Tensor& a, const Tensor& b, bool upper, bool unit) {
  const Place place(a, "linalg_solve_triangular");
  const int64_t batch = b.size(0), n = a.size(1), columns = b.size(2), block = block_of(a);
  const int64_t count = (n + block - 1) / block, column_blocks = (columns + block - 1) / block;
  // A batch of one matrix may be solved for many: then a's batch stride is zero.
  const Tensor inverse = at::empty({batch * count, block, block}, a.options());
  run_blocks(place, "linalg/gpu_triangular.cl", "invert_blocks", batch * count, upper ? a.mT() : a,
             upper ? inverse.mT() : inverse, n, static_cast<int>(unit), count);
  const int step = upper ? -1 : 1;
  for (int64_t done = 0; done < count; ++done) {
    const int64_t k = upper ? count - done : done - 1, row_blocks = done == 0 ? 1 : count - done;
    run_blocks(place, "linalg/gpu_triangular.cl", "substitute", batch * row_blocks * column_blocks, a, b,
               inverse, n, columns, k, step, row_blocks, row_blocks * column_blocks);
  }
}

}  // namespace

void solve_triangular(const Tensor& a, const Tensor& b, bool upper, bool unit) {
  const int64_t n = a.size(1), tile = tile_of(a);
  if (b.numel() == 0) return;
  if (solves_at_once(a)) {
    using namespace params;
    return solve_at_once(
        a, b, Tensor(),
        upper ? SOLVE_UPPER | (unit ? SOLVE_UPPER_UNIT : 0) : SOLVE_LOWER | (unit ? SOLVE_LOWER_UNIT : 0));
  }
  if (goes_by_blocks(a, n)) return solve_by_blocks(a, b, upper, unit);
  const int64_t half = (n / tile + 1) / 2 * tile, rest = n - half;
  const Tensor a1 = a.narrow(1, 0, half).narrow(2, 0, half),
               a2 = a.narrow(1, half, rest).narrow(2, half, rest);
  const Tensor b1 = b.narrow(1, 0, half), b2 = b.narrow(1, half, rest);
  if (upper) {
    solve_triangular(a2, b2, upper, unit);
    add_product(b1, a.narrow(1, 0, half).narrow(2, half, rest), b2, -1);
    solve_triangular(a1, b1, upper, unit);
  } else {
    solve_triangular(a1, b1, upper, unit);
    add_product(b2, a.narrow(1, half, rest).narrow(2, 0, half), b1, -1);
    solve_triangular(a2, b2, upper, unit);
  }
}

void solve_cholesky(const Tensor& lower, const Tensor& b) {
  using namespace params;
  if (b.numel() == 0) return;
  if (solves_at_once(lower))
    return solve_at_once(lower, b, Tensor(), SOLVE_LOWER | SOLVE_MIRROR | SOLVE_UPPER);
  solve_triangular(lower, b, false, false);
  solve_triangular(lower.mH().resolve_conj(), b, true, false);
}

namespace {

void triangular_solve_kernel(const Tensor& a, const Tensor& b, bool left, bool upper,
                             at::native::TransposeType transpose, bool unit) {
  if (b.numel() == 0) return;
  // As BLAS, the caller means the memory: column-major whatever the strides say, and without lazy
  // conjugation.
  const Tensor stored = a.is_conj() ? a.conj() : a;
  Tensor matrices = collapse_or_copy(stored.mT().is_contiguous() ? stored : stored.mT());
  if (transpose != at::native::TransposeType::NoTranspose) {
    matrices =
        transpose == at::native::TransposeType::ConjTranspose ? matrices.mH().resolve_conj() : matrices.mT();
    upper = !upper;
  }
  const Tensor sides = collapse(b);
  left ? solve_triangular(matrices, sides, upper, unit)
       : solve_triangular_right(matrices, sides, upper, unit);
}

std::tuple<Tensor&, Tensor&> triangular_solve_out(const Tensor& self, const Tensor& a, bool upper,
                                                  bool transpose, bool unit, Tensor& x, Tensor& m) {
  OutOp<at::native::structured_triangular_solve_out, 2> op({std::cref(x), std::cref(m)});
  op.meta(self, a, upper, transpose, unit);
  op.impl(self, a, upper, transpose, unit, op.result(0), op.result(1));
  op.finish();
  return {x, m};
}

Tensor checked_solve_triangular(const Tensor& a, const Tensor& b, bool upper, bool left, bool unit) {
  check_common_device(a, b);
  return at::native::linalg_solve_triangular(a, b, upper, left, unit);
}

Tensor& checked_solve_triangular_out(const Tensor& a, const Tensor& b, bool upper, bool left, bool unit,
                                     Tensor& out) {
  check_common_device(a, b, out);
  return at::native::linalg_solve_triangular_out(a, b, upper, left, unit, out);
}

}  // namespace
}  // namespace dlb::linalg

namespace at::native {
REGISTER_PRIVATEUSE1_DISPATCH(triangular_solve_stub, &dlb::linalg::triangular_solve_kernel)
}

namespace dlb::linalg {
TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("linalg_solve_triangular", checked_solve_triangular);
  m.impl("linalg_solve_triangular.out", checked_solve_triangular_out);
  m.impl("triangular_solve.X", triangular_solve_out);
}
}  // namespace dlb::linalg
