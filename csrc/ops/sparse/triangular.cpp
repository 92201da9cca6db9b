// triangular_solve of sparse matrices.
#include <ATen/ops/triangular_solve_meta.h>
#include <torch/library.h>

#include <limits>

#include "kernels/sparse/params.h"
#include "ops/common/structured.h"
#include "ops/sparse/parts.h"
#include "runtime/fetch_kernel.h"
#include "runtime/tensor.h"

namespace dlb::sparse {
namespace {

using at::Tensor;

// x = a^-1 @ x in place, of the triangle of a that is meant, for x [n, columns] of any strides.
void solve(const Rows& a, const Tensor& x, bool upper, bool unit) {
  if (x.numel() == 0) return;
  const auto type = dtype_of(x.scalar_type(), "triangular_solve");
  Stream& stream = current_stream(x.device().index());
  check_device_supports(stream.device(), type, "triangular_solve");
  const Tensor column = a.column.contiguous(), values = a.values.contiguous();
  const Buffer begin = buffer_of(a.begin), to = buffer_of(x);
  const Buffer at_column = column.numel() ? buffer_of(column) : begin,
               from = values.numel() ? buffer_of(values) : to;
  params::SparseSolve p{};
  p.row_begin = begin.offset, p.column = at_column.offset, p.a = from.offset, p.x = to.offset;
  p.rows = x.size(0), p.columns = x.size(1), p.x_row = x.stride(0), p.x_column = x.stride(1);
  p.upper = upper, p.unit = unit;
  const size_t group = stream.device().cls == cl::DeviceClass::kCpu ? 1 : 64;
  const size_t items = (static_cast<size_t>(p.columns) + group - 1) / group * group;
  fetch_kernel(stream.device(), "sparse/solve.cl", "dlb_sparse_solve", codegen::compute_type(type), {type},
               codegen::class_of(type) == codegen::DClass::Complex ? "-DIS_COMPLEX" : "")
      .launch(stream.queue(), cl::Range::linear(items, group), begin.mem, at_column.mem, from.mem, to.mem, p);
}

std::tuple<Tensor&, Tensor&> triangular_solve_out(const Tensor& self, const Tensor& a, bool upper,
                                                  bool transpose, bool unit, Tensor& x, Tensor& m) {
  OutOp<at::meta::structured_triangular_solve, 2> op({std::cref(x), std::cref(m)});
  op.meta(self, a, upper, transpose, unit);
  // The meta function has refused all but CSR and BSR matrices.
  const Tensor& result = op.result(0);
  if (a._nnz() == 0) {  // PyTorch calls this singular, whether the diagonal counts or not
    result.fill_(std::numeric_limits<double>::quiet_NaN());
  } else {
    result.copy_(self);
    solve(rows_of(transpose ? a.t() : a), result, upper != transpose, unit);
  }
  op.finish();
  return {x, m};
}

}  // namespace

TORCH_LIBRARY_IMPL(aten, SparseCsrPrivateUse1, m) {
  m.impl("triangular_solve.X", triangular_solve_out);
}

}  // namespace dlb::sparse
