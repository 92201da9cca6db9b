// Brings extra operands to one of the places that kernels know.
#include "ops/common/then.h"

#include <ATen/ops/empty_strided.h>

#include <stdexcept>

namespace dlb {
namespace {

using solver::Lies;

// Whether `extra`, aligned with the result's last dimensions, has no more than one element in every dimension
// of the result but `only`.
bool varies_along(const at::Tensor& extra, const at::Tensor& result, int64_t only) {
  const int64_t before = result.dim() - extra.dim();
  for (int64_t d = 0; d < extra.dim(); d++)
    if (extra.size(d) != 1 && before + d != only) return false;
  return only >= before && extra.size(only - before) == result.size(only) &&
         (extra.size(only - before) == 1 || extra.stride(only - before) == 1);
}

bool lies_alike(const at::Tensor& a, const at::Tensor& b) {
  if (a.sizes() != b.sizes()) return false;
  for (int64_t d = 0; d < a.dim(); d++)
    if (a.size(d) != 1 && a.stride(d) != b.stride(d)) return false;
  return true;
}

// Where the extra lies; it becomes a copy with the result's strides where it lies in no place that kernels
// know.
Lies place(at::Tensor& extra, const at::Tensor& result, int64_t column, int64_t row) {
  if (extra.numel() == 1) return Lies::kOnce;
  if (column >= 0 && varies_along(extra, result, column)) return Lies::kColumn;
  if (row >= 0 && varies_along(extra, result, row)) return Lies::kRow;
  if (lies_alike(extra, result)) return Lies::kResult;
  at::Tensor copy = at::empty_strided(result.sizes(), result.strides(), extra.options());
  copy.copy_(extra.expand(result.sizes()));
  extra = copy;
  return Lies::kResult;
}

}  // namespace

Then::Then(const FusedOp& op_, at::TensorList extras_, const at::Tensor& result, int64_t column, int64_t row,
           std::optional<c10::ScalarType> computes_)
    : op(op_), extras(extras_), computes(computes_.value_or(result.scalar_type())) {
  TORCH_CHECK_VALUE(!op.reduction() && op.front().scalars.empty() && op.reduced.size() <= 2,
                    "rows behind a product: no reductions, no scalars, and at most two results");
  TORCH_CHECK_VALUE(op.front().inputs == 1 + extras.size(), "rows behind a product: they take ",
                    op.front().inputs, " inputs, of which x0 is the product, but there are ", extras.size(),
                    " other operands");
  c10::SmallVector<codegen::DType, 1 + solver::kMostExtras> types{storage_dtype_of(computes, "rows")};
  for (const at::Tensor& extra : extras) {
    TORCH_CHECK(extra.device() == result.device(), "rows: expected all tensors on ", result.device(),
                ", but an operand is on ", extra.device());
    types.push_back(storage_dtype_of(extra.scalar_type(), "rows"));
  }
  TORCH_CHECK_TYPE(op.dtype_of(0, types.data()) == storage_dtype_of(result.scalar_type(), "rows"),
                   "rows behind a product: y0 is of another dtype than ", result.scalar_type(),
                   ", the result's");
  if (op.reduced.size() > 1)
    second = at::empty_strided(result.sizes(), result.strides(),
                               result.options().dtype(scalar_type_of(op.dtype_of(1, types.data()))));
  if (extras.size() > solver::kMostExtras) return;
  c10::SmallVector<Lies, solver::kMostExtras> lies;
  for (const at::Tensor& extra : extras) {
    placed_.push_back(extra);
    lies.push_back(place(placed_.back(), result, column, row));
  }
  try {
    epilogue_ = solver::make_epilogue(op.text, types[0], c10::ArrayRef<codegen::DType>(types).slice(1), lies);
  } catch (const std::invalid_argument&) {
    epilogue_ = {};  // computed apart
  }
}

void Then::set_operands(solver::EpilogueOperands& operands) const {
  for (size_t e = 0; e < placed_.size(); e++) operands.extra(e) = buffer_of(placed_[e]);
  if (second.defined()) operands.second = buffer_of(second);
}

uint64_t Then::bytes(const at::Tensor& result) const {
  uint64_t each = c10::elementSize(computes) + result.element_size();
  if (second.defined()) each += second.element_size();
  uint64_t small = 0;
  for (const at::Tensor& extra : extras)
    if (extra.numel() == result.numel())
      each += extra.element_size();
    else
      small += extra.nbytes();
  return each * static_cast<uint64_t>(result.numel()) + small;
}

at::Tensor Then::product_for(const at::Tensor& result) const {
  if (computes == result.scalar_type()) return result;
  return at::empty_strided(result.sizes(), result.strides(), result.options().dtype(computes));
}

void Then::run_apart(const at::Tensor& product, const at::Tensor& result) const {
  c10::SmallVector<at::Tensor, 1 + solver::kMostExtras> inputs{product};
  inputs.append(extras.begin(), extras.end());
  c10::SmallVector<at::Tensor, 2> outputs{result};
  if (second.defined()) outputs.push_back(second);
  run_fused_out(op, {inputs}, outputs);
}

c10::ScalarType first_dtype(const FusedOp& op, c10::ScalarType computes, at::TensorList extras) {
  c10::SmallVector<codegen::DType, 1 + solver::kMostExtras> types{storage_dtype_of(computes, "rows")};
  for (const at::Tensor& extra : extras) types.push_back(storage_dtype_of(extra.scalar_type(), "rows"));
  TORCH_CHECK_VALUE(op.front().inputs <= types.size(), "rows behind a product: they take ", op.front().inputs,
                    " inputs, of which x0 is the product, but there are ", extras.size(), " other operands");
  return scalar_type_of(op.dtype_of(0, types.data()));
}

std::vector<at::Tensor> Then::with(const at::Tensor& result) const {
  if (second.defined()) return {result, second};
  return {result};
}

}  // namespace dlb
