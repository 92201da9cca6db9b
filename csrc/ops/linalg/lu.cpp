// LU factors with partial pivoting, recursive on products, and what uses them: solve, inverse, determinants.
#include <ATen/native/BatchLinearAlgebra.h>
#include <ATen/native/TransposeType.h>
#include <ATen/ops/_linalg_det_native.h>
#include <ATen/ops/_linalg_slogdet_native.h>
#include <ATen/ops/_linalg_solve_ex_native.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/linalg_inv_ex_native.h>
#include <ATen/ops/linalg_lu_factor_ex.h>
#include <ATen/ops/linalg_lu_factor_ex_native.h>
#include <ATen/ops/linalg_lu_native.h>
#include <ATen/ops/linalg_lu_solve_native.h>
#include <ATen/ops/lu_unpack_native.h>
#include <ATen/ops/zeros.h>
#include <torch/library.h>

#include "ops/common/structured.h"
#include "ops/linalg/triangular.h"

namespace dlb::linalg {
namespace {

// Columns that one launch factors where the matrix has more: wider ones leave less to products, narrower ones
// cost launches.
constexpr int64_t kPanel = 16;

// Exchanges rows of a as pivots [batch, k, 1] say, which count rows from `first` before a's.
void swap_rows(const Tensor& a, const Tensor& pivots, int64_t first, bool back) {
  if (a.numel() == 0) return;
  run_rows(Place(a, "linalg.lu"), "linalg/lu.cl", "swap_rows", a.size(0) * a.size(2), pivots.size(1) * 4, a,
           pivots, a.size(2), first, int64_t{0}, pivots.size(1), static_cast<int>(back));
}

struct Factored {
  Tensor pivots, info;  // [batch, k, 1] and [batch, 1, 1]

  // Factors a [batch, m, n] in place, the part of the whole that begins at row and column `first`.
  void factor(const Tensor& a, int64_t first) const {
    const int64_t m = a.size(1), n = a.size(2), k = std::min(m, n);
    if (a.numel() == 0) return;
    const int64_t size = std::max(m, n);
    if (is_small(a, size))
      return run_small(Place(a, "linalg.lu_factor"), "lu_small", size, a.size(0), a,
                       pivots.narrow(1, first, k), info, m, n, first);
    if (goes_by_blocks(a, m)) return by_blocks(a, first);
    if (size > tile_of(a) && goes_by_panels(a, n)) return by_panels(a, first);
    if (k <= kPanel || size <= tile_of(a)) {
      run_jobs(Place(a, "linalg.lu_factor"), "linalg/lu.cl", "lu_panel", a.size(0), m * n * k + m * n,
               m * std::min<int64_t>(n, 8), a, pivots.narrow(1, first, k), info, m, n, first);
      return;
    }
    const int64_t half = (k / kPanel + 1) / 2 * kPanel, rest = n - half;
    const Tensor left = a.narrow(2, 0, half), right = a.narrow(2, half, rest), top = right.narrow(1, 0, half);
    factor(left, first);
    swap_rows(right, pivots.narrow(1, first, half), first, false);
    solve_triangular(left.narrow(1, 0, half), top, false, true);
    if (m == half) return;
    const Tensor below = left.narrow(1, half, m - half), corner = right.narrow(1, half, m - half);
    add_product(corner, below, top, -1);
    factor(corner, first + half);
    swap_rows(below, pivots.narrow(1, first + half, k - half), first + half, false);
  }

  // The same on CPUs, one launch for all of it.
  void by_panels(const Tensor& a, int64_t first) const {
    const Place place(a, "linalg.lu_factor");
    const int64_t batch = a.size(0), m = a.size(1), n = a.size(2), k = std::min(m, n);
    const int64_t panel = params::LINALG_PANEL, ld = padded_column(m);
    const int64_t sharers = parts_of_each(place, batch, n / panel),
                  parts = sharers == 1 ? 1 : 3 * sharers + 1;
    const int64_t scratch = 2 * (panel * (ld + panel) + ld) + parts * panel * params::LINALG_STRIP;
    const Tensor panels = at::empty({batch, scratch, 1}, a.options()),
                 tickets = at::zeros({batch, 32, 1}, info.options());
    run_jobs(place, "linalg/cpu_lu.cl", "lu_blocks", batch * sharers, m * n * panel, 1, a,
             pivots.narrow(1, first, k), info, panels, tickets, m, n, first, ld, sharers, parts);
  }

  // The same on GPUs, three launches for a few columns: they are factored, the others' rows exchanged and the
  // top ones solved for, and the product subtracted.
  void by_blocks(const Tensor& a, int64_t first) const {
    const Place place(a, "linalg.lu_factor");
    const int64_t batch = a.size(0), m = a.size(1), n = a.size(2), k = std::min(m, n), block = block_of(a);
    const Tensor places = pivots.narrow(1, first, k);
    const auto blocks_of = [](int64_t size, int64_t block) { return (size + block - 1) / block; };
    for (int64_t from = 0; from < k; from += params::LU_COLUMNS) {
      const int64_t count = std::min<int64_t>(params::LU_COLUMNS, k - from), others = n - count;
      run_groups(place, "linalg/gpu_lu_columns.cl", "lu_columns", held_rows(m - from), batch,
                 params::LINALG_GROUP, a, places, info, m, from, count, first);
      const int64_t groups = blocks_of(others, params::LINALG_GROUP);
      if (groups)
        run_blocks(place, "linalg/gpu_lu.cl", "swap_and_solve", batch * groups, a, places, n, from, count,
                   first, groups);
      const int64_t rows = blocks_of(m - from - count, block), columns = blocks_of(n - from - count, block);
      if (rows && columns)
        run_blocks(place, "linalg/gpu_lu.cl", "subtract_columns", batch * rows * columns, a, m, n, from,
                   count, rows, rows * columns);
    }
  }

  // The build option of lu_columns for so many rows.
  static const char* held_rows(int64_t rows) {
    const int64_t held = (rows + params::LINALG_GROUP - 1) / params::LINALG_GROUP;
    return held <= 1 ? "-DHELD=1" : held <= 2 ? "-DHELD=2" : held <= 4 ? "-DHELD=4" : "-DHELD=8";
  }
};

void lu_factor_kernel(const Tensor& input, const Tensor& pivots, const Tensor& infos,
                      bool /*compute_pivots*/) {
  infos.zero_();
  if (input.numel() == 0) return;
  Factored{collapse_vectors(pivots), infos.view({-1, 1, 1})}.factor(collapse(input), 0);
}

void lu_solve_kernel(const Tensor& lu_, const Tensor& pivots_, const Tensor& b_,
                     at::native::TransposeType transpose) {
  using namespace params;
  if (b_.numel() == 0) return;
  // PyTorch leaves it to the kernel to repeat the factors along batch dimensions that only the right-hand
  // sides have. One matrix for all of them stays one in memory.
  const auto batch = b_.sizes().slice(0, b_.dim() - 2);
  const auto repeated = [&](const Tensor& matrices) {
    auto sizes = batch.vec();
    sizes.push_back(matrices.size(-2)), sizes.push_back(matrices.size(-1));
    return collapse_or_copy(matrices.expand(sizes));
  };
  const Tensor b = collapse(b_), pivots = repeated(pivots_.unsqueeze(-1));
  Tensor lu = repeated(lu_);
  const bool transposed = transpose != at::native::TransposeType::NoTranspose;
  if (transposed)
    lu = transpose == at::native::TransposeType::ConjTranspose ? lu.mH().resolve_conj() : lu.mT();
  if (solves_at_once(lu))
    return solve_at_once(lu, b, pivots,
                         transposed ? SOLVE_LOWER | SOLVE_UPPER | SOLVE_UPPER_UNIT | SOLVE_SWAP_LAST
                                    : SOLVE_SWAP_FIRST | SOLVE_LOWER | SOLVE_LOWER_UNIT | SOLVE_UPPER);
  if (!transposed) swap_rows(b, pivots, 0, false);
  solve_triangular(lu, b, false, !transposed);
  solve_triangular(lu, b, true, transposed);
  if (transposed) swap_rows(b, pivots, 0, true);
}

void unpack_pivots_kernel(at::TensorIterator& iter, int64_t dim_size, int64_t max_pivot) {
  const Tensor &places = iter.tensor(0), &pivots = iter.tensor(1);
  if (places.numel() == 0 || dim_size == 0) return;
  const int64_t batch = places.numel() / max_pivot;
  const Tensor to = places.view({batch, max_pivot, 1}), from = pivots.view({batch, dim_size, 1});
  Stream& stream = current_stream(places.device().index());
  const Team team = make_team(stream.device(), batch, dim_size * 4, 1);
  fetch_kernel(stream.device(), "linalg/lu.cl", "permutation", codegen::DType::F32, {codegen::DType::F32})
      .launch_with(stream.queue(), range_of(stream.device(), team), [&](auto& arguments) {
        add_argument(arguments, to), add_argument(arguments, from);
        add_argument(arguments, max_pivot), add_argument(arguments, dim_size);
        arguments.add(team);
      });
}

// Writes the determinants of LU's factors, or their signs and the logarithms of their sizes.
void determinant(const Tensor& lu, const Tensor& pivots, const Tensor& result, const Tensor& logs) {
  if (result.numel() == 0) return;
  const Tensor matrices = collapse(lu), values = result.reshape({-1, 1, 1});
  const Tensor sizes = logs.defined() ? logs.reshape({-1, 1, 1}) : values;
  run_rows(Place(lu, "linalg.det"), "linalg/lu.cl", "determinant", values.size(0), lu.size(-1) * 4, matrices,
           collapse_vectors(pivots), values, sizes, lu.size(-1), static_cast<int>(logs.defined()));
}

// The factors of a, or of its transpose where that needs no transposing copy: the gradients count on the same
// choice.
void factor_either(const Tensor& a, const Tensor& lu, const Tensor& pivots) {
  lu.copy_(a.is_contiguous() && !a.is_complex() ? a.mT() : a);
  const Tensor info = at::empty(a.sizes().slice(0, a.dim() - 2), a.options().dtype(at::kInt));
  lu_factor_kernel(lu, pivots, info, true);
}

std::tuple<Tensor&, Tensor&, Tensor&> det_out(const Tensor& a, Tensor& result, Tensor& lu, Tensor& pivots) {
  OutOp<at::meta::structured__linalg_det, 3> op({std::cref(result), std::cref(lu), std::cref(pivots)});
  op.meta(a);
  factor_either(a, op.result(1), op.result(2));
  determinant(op.result(1), op.result(2), op.result(0), Tensor());
  op.finish();
  return {result, lu, pivots};
}

std::tuple<Tensor&, Tensor&, Tensor&, Tensor&> slogdet_out(const Tensor& a, Tensor& sign, Tensor& logabsdet,
                                                           Tensor& lu, Tensor& pivots) {
  OutOp<at::meta::structured__linalg_slogdet, 4> op(
      {std::cref(sign), std::cref(logabsdet), std::cref(lu), std::cref(pivots)});
  op.meta(a);
  factor_either(a, op.result(2), op.result(3));
  determinant(op.result(2), op.result(3), op.result(0), op.result(1));
  op.finish();
  return {sign, logabsdet, lu, pivots};
}

std::tuple<Tensor&, Tensor&, Tensor&> lu_factor_ex_out(const Tensor& a, bool pivot, bool check_errors,
                                                       Tensor& lu, Tensor& pivots, Tensor& info) {
  OutOp<at::native::structured_linalg_lu_factor_ex_out, 3> op(
      {std::cref(lu), std::cref(pivots), std::cref(info)});
  op.meta(a, pivot, check_errors);
  op.impl(a, pivot, check_errors, op.result(0), op.result(1), op.result(2));
  op.finish();
  return {lu, pivots, info};
}

std::tuple<Tensor&, Tensor&, Tensor&> lu_out(const Tensor& a, bool pivot, Tensor& p, Tensor& l, Tensor& u) {
  OutOp<at::native::structured_linalg_lu_out, 3> op({std::cref(p), std::cref(l), std::cref(u)});
  op.meta(a, pivot);
  op.impl(a, pivot, op.result(0), op.result(1), op.result(2));
  op.finish();
  return {p, l, u};
}

std::tuple<Tensor&, Tensor&, Tensor&> lu_unpack_out(const Tensor& lu, const Tensor& pivots, bool unpack_data,
                                                    bool unpack_pivots, Tensor& p, Tensor& l, Tensor& u) {
  OutOp<at::native::structured_lu_unpack_out, 3> op({std::cref(p), std::cref(l), std::cref(u)});
  op.meta(lu, pivots, unpack_data, unpack_pivots);
  op.impl(lu, pivots, unpack_data, unpack_pivots, op.result(0), op.result(1), op.result(2));
  op.finish();
  return {p, l, u};
}

Tensor& lu_solve_out(const Tensor& lu, const Tensor& pivots, const Tensor& b, bool left, bool adjoint,
                     Tensor& out) {
  OutOp<at::native::structured_linalg_lu_solve_out> op(out);
  op.meta(lu, pivots, b, left, adjoint);
  op.impl(lu, pivots, b, left, adjoint, op.result());
  op.finish();
  return out;
}

std::tuple<Tensor&, Tensor&, Tensor&, Tensor&> solve_ex_out(const Tensor& a, const Tensor& b, bool left,
                                                            bool check_errors, Tensor& result, Tensor& lu,
                                                            Tensor& pivots, Tensor& info) {
  OutOp<at::native::structured__linalg_solve_ex_out, 4> op(
      {std::cref(result), std::cref(lu), std::cref(pivots), std::cref(info)});
  op.meta(a, b, left, check_errors);
  op.impl(a, b, left, check_errors, op.result(0), op.result(1), op.result(2), op.result(3));
  op.finish();
  return {result, lu, pivots, info};
}

std::tuple<Tensor, Tensor, Tensor, Tensor> solve_ex(const Tensor& a, const Tensor& b, bool left,
                                                    bool check_errors) {
  check_common_device(a, b);
  NewOp<at::native::structured__linalg_solve_ex_out, 4> op;
  op.meta(a, b, left, check_errors);
  op.impl(a, b, left, check_errors, op[0], op[1], op[2], op[3]);
  return {op[0], op[1], op[2], op[3]};
}

std::tuple<Tensor&, Tensor&> inv_ex_out(const Tensor& a, bool check_errors, Tensor& inverse, Tensor& info) {
  OutOp<at::native::structured_linalg_inv_ex_out, 2> op({std::cref(inverse), std::cref(info)});
  op.meta(a, check_errors);
  op.impl(a, check_errors, op.result(0), op.result(1));
  op.finish();
  return {inverse, info};
}

}  // namespace
}  // namespace dlb::linalg

namespace at::native {
REGISTER_PRIVATEUSE1_DISPATCH(lu_factor_stub, &dlb::linalg::lu_factor_kernel)
REGISTER_PRIVATEUSE1_DISPATCH(lu_solve_stub, &dlb::linalg::lu_solve_kernel)
REGISTER_PRIVATEUSE1_DISPATCH(unpack_pivots_stub, &dlb::linalg::unpack_pivots_kernel)
}  // namespace at::native

namespace dlb::linalg {
TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("linalg_lu_factor_ex.out", lu_factor_ex_out);
  m.impl("linalg_lu.out", lu_out);
  m.impl("lu_unpack.out", lu_unpack_out);
  m.impl("linalg_lu_solve.out", lu_solve_out);
  m.impl("_linalg_solve_ex", solve_ex);
  m.impl("_linalg_solve_ex.result", solve_ex_out);
  m.impl("linalg_inv_ex.inverse", inv_ex_out);
  m.impl("_linalg_det.result", det_out);
  m.impl("_linalg_slogdet.sign", slogdet_out);
}
}  // namespace dlb::linalg
