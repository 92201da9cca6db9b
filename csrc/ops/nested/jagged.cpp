// Conversions between padded and jagged batches: values of all rows one after the other, row i from
// offsets[i] to offsets[i + 1]. Nested tensors of the jagged layout, which are made of dense ones in Python,
// are padded by them.
#include <ATen/Dispatch.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/full.h>
#include <ATen/ops/searchsorted.h>
#include <ATen/ops/zeros.h>
#include <torch/library.h>

#include "ops/fallback.h"

namespace dlb {
namespace {

using at::Tensor;

// A condition of the first dimensions, so that it broadcasts with `like`.
Tensor expand_after(const Tensor& condition, const Tensor& like) {
  std::vector<int64_t> sizes = condition.sizes().vec();
  sizes.resize(static_cast<size_t>(like.dim()), 1);
  return condition.view(sizes);
}

void check_offsets(const Tensor& offsets, const Tensor& values, const char* op) {
  TORCH_CHECK(offsets.dim() == 1 && offsets.size(0) > 0, op,
              ": offsets should be a vector that is not empty, got shape ", offsets.sizes());
  TORCH_CHECK(offsets.device() == values.device(), op,
              ": values and offsets should be on one device, but are on ", values.device(), " and ",
              offsets.device());
}

// `padding` as a number of `type`. PyTorch passes infinities for the largest and the smallest integer.
at::Scalar in_range_of(at::ScalarType type, double padding) {
  if (!at::isIntegralType(type, /*includeBool=*/false)) return padding;
  return AT_DISPATCH_INTEGRAL_TYPES(type, "_jagged_to_padded_dense_forward", [&]() -> at::Scalar {
    using Limits = std::numeric_limits<scalar_t>;
    if (padding >= static_cast<double>(Limits::max())) return Limits::max();
    if (padding <= static_cast<double>(Limits::lowest())) return Limits::lowest();
    return padding;
  });
}

// values [total, ...] to [rows, length, ...], rows cut off or filled with `padding`.
Tensor to_padded(const Tensor& values, at::TensorList offsets, at::IntArrayRef lengths, double padding) {
  TORCH_CHECK(offsets.size() == lengths.size(),
              "_jagged_to_padded_dense_forward: expected a length for each of ", offsets.size(),
              " offsets, got ", lengths.size());
  if (offsets.size() != 1)  // jagged in several dimensions
    return call_cpu_fallback<Tensor, const Tensor&, at::TensorList, at::IntArrayRef, double>(
        "aten::_jagged_to_padded_dense_forward", "", values, offsets, lengths, padding);
  const Tensor& begins = offsets[0];
  check_offsets(begins, values, "_jagged_to_padded_dense_forward");
  const int64_t rows = begins.size(0) - 1, length = lengths[0];
  std::vector<int64_t> sizes = values.sizes().vec();
  sizes[0] = rows, sizes.insert(sizes.begin() + 1, length);
  const at::Scalar fill = in_range_of(values.scalar_type(), padding);
  if (values.size(0) == 0 || rows == 0 || length == 0) return at::full(sizes, fill, values.options());
  const Tensor place = begins.narrow(0, 0, rows).unsqueeze(1).add(at::arange(length, begins.options()));
  const Tensor outside = place.ge(begins.narrow(0, 1, rows).unsqueeze(1));
  const Tensor padded = values.index_select(0, place.masked_fill(outside, 0).view({-1})).view(sizes);
  return padded.masked_fill(expand_after(outside, padded), fill);
}

// The inverse: [rows, length, ...] to [total, ...], zeros where a row is longer than `length`. Without a
// total it waits for the device, which knows it.
Tensor to_jagged(const Tensor& dense, at::TensorList offsets, std::optional<int64_t> total) {
  if (offsets.size() != 1)
    return call_cpu_fallback<Tensor, const Tensor&, at::TensorList, std::optional<int64_t>>(
        "aten::_padded_dense_to_jagged_forward", "", dense, offsets, total);
  const Tensor& begins = offsets[0];
  check_offsets(begins, dense, "_padded_dense_to_jagged_forward");
  TORCH_CHECK(dense.dim() >= 2 && begins.size(0) == dense.size(0) + 1,
              "_padded_dense_to_jagged_forward: expected a batch of ", begins.size(0) - 1,
              " rows, got shape ", dense.sizes());
  const int64_t rows = dense.size(0), length = dense.size(1);
  const int64_t count = total ? *total : begins.select(0, rows).item<int64_t>();
  std::vector<int64_t> sizes = dense.sizes().vec();
  sizes.erase(sizes.begin());
  sizes[0] = count;
  if (count == 0 || rows * length == 0) return at::zeros(sizes, dense.options());
  const Tensor place = at::arange(count, begins.options());
  const Tensor row = at::searchsorted(begins.narrow(0, 1, rows), place, /*out_int32=*/false, /*right=*/true);
  const Tensor column = place.sub(begins.index_select(0, row)), outside = column.ge(length);
  const Tensor flat = row.mul(length).add(column.clamp_max(length - 1));
  sizes[0] = rows * length;
  const Tensor values = dense.reshape(sizes).index_select(0, flat);
  return values.masked_fill(expand_after(outside, values), 0);
}

}  // namespace

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("_jagged_to_padded_dense_forward", to_padded);
  m.impl("_padded_dense_to_jagged_forward", to_jagged);
}

}  // namespace dlb
