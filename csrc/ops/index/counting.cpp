// Counting occurrences: bincount, histc, unique.
#include <ATen/native/Resize.h>
#include <ATen/ops/aminmax.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/cumsum.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/full.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/sort.h>
#include <ATen/ops/zeros.h>

#include <cmath>

#include "ops/fallback.h"
#include "ops/index/access.h"
#include "ops/index/accumulate.h"
#include "ops/index/compact.h"

namespace dlb {
namespace {

at::Tensor bincount(const at::Tensor& self, const std::optional<at::Tensor>& weights, int64_t minlength) {
  TORCH_CHECK_NOT_IMPLEMENTED(c10::isIntegralType(self.scalar_type(), /*includeBool=*/false),
                              "\"bincount\" not implemented for '", c10::toString(self.scalar_type()), "'");
  TORCH_CHECK(minlength >= 0, "minlength should be >= 0");
  const bool weighted = weights && weights->defined();
  TORCH_CHECK(self.dim() == 1, "bincount only supports 1-d non-negative integral inputs.");
  TORCH_CHECK(!weighted || (weights->dim() == 1 && weights->size(0) == self.size(0)),
              "weights should be 1-d and have the same length as input");
  const at::TensorOptions options = self.options();
  if (self.numel() == 0) return at::zeros({minlength}, options.dtype(at::kLong));
  const c10::DeviceGuard guard(self.device());
  const auto [low, high] = at::aminmax(self);
  TORCH_CHECK(low.item<int64_t>() >= 0, "bincount only supports 1-d non-negative integral inputs.");
  const int64_t bins = std::max(minlength, high.item<int64_t>() + 1);
  at::Tensor values = at::ones({1}, options.dtype(at::kLong)).expand(self.sizes());
  if (weighted) values = weights->scalar_type() == at::kFloat ? *weights : weights->to(at::kDouble);
  static const int32_t site = index_error_site("bincount");
  at::Tensor counts = at::zeros({bins}, values.options());
  accumulate(counts, 0, self.to(at::kLong), values, {.site = site});
  return counts;
}

double rounded(double value, at::ScalarType type) {
  switch (type) {
    case at::kHalf:
      return c10::Half(static_cast<float>(value));
    case at::kBFloat16:
      return c10::BFloat16(static_cast<float>(value));
    case at::kFloat:
      return static_cast<float>(value);
    default:
      return value;
  }
}

at::Tensor& histc_out(const at::Tensor& self, int64_t bins, const c10::Scalar& min, const c10::Scalar& max,
                      at::Tensor& out) {
  TORCH_CHECK(bins > 0, "histc(): bins must be > 0, but got ", bins);
  TORCH_CHECK(self.scalar_type() == out.scalar_type(),
              "torch.histogram: input tensor and hist tensor should have the "
              "same dtype, but got input ",
              self.scalar_type(), " and hist ", out.scalar_type());
  if (!self.is_floating_point())
    return call_cpu_fallback<at::Tensor&, const at::Tensor&, int64_t, const c10::Scalar&, const c10::Scalar&,
                             at::Tensor&>("aten::histc", "out", self, bins, min, max, out);
  const c10::DeviceGuard guard(self.device());
  at::native::resize_output(out, {bins});
  out.zero_();
  double low = min.toDouble(), high = max.toDouble();
  if (low == high && self.numel() > 0) {
    const auto [smallest, largest] = at::aminmax(self);
    low = smallest.item().toDouble();
    high = largest.item().toDouble();
  }
  if (low == high) low -= 1, high += 1;
  TORCH_CHECK(std::isfinite(low) && std::isfinite(high), "torch.histc: range of [", low, ", ", high,
              "] is not finite");
  TORCH_CHECK(low <= high, "torch.histc: max must be larger than min");
  // Values on the edge between bins fall where the arithmetic of their own type puts them.
  const at::ScalarType type = self.scalar_type();
  low = rounded(low, type), high = rounded(high, type);
  if (self.numel() == 0) return out;
  const at::Tensor x = self.reshape({-1});
  const at::Tensor inside = x.ge(low).logical_and_(x.le(high));
  // A range that is less than the type's spacing holds one value, in its middle.
  const at::Tensor bin = low == high ? at::full_like(x, bins / 2, x.options().dtype(at::kLong))
                                     : x.sub(low)
                                           .mul_(bins)
                                           .div_(rounded(high - low, type))
                                           .masked_fill_(inside.logical_not(), 0)
                                           .to(at::kLong)
                                           .clamp_(0, bins - 1);
  static const int32_t site = index_error_site("histc");
  accumulate(out, 0, bin, inside.to(out.scalar_type()), {.site = site});
  return out;
}

at::Tensor histc(const at::Tensor& self, int64_t bins, const c10::Scalar& min, const c10::Scalar& max) {
  at::Tensor out = at::empty({0}, self.options());
  histc_out(self, bins, min, max, out);
  return out;
}

struct Groups {
  at::Tensor starts;   // positions where a new value begins, int64
  at::Tensor numbers;  // group of each position, int64; undefined unless wanted
  at::Tensor counts;   // elements of each group, int64; undefined unless wanted
};

// Runs of equal neighbours of a non-empty vector.
Groups group_neighbours(const at::Tensor& vector, bool want_numbers, bool want_counts) {
  const int64_t n = vector.size(0);
  const at::TensorOptions bools = vector.options().dtype(at::kBool);
  const at::Tensor begins =
      at::cat({at::ones({1}, bools), vector.narrow(0, 1, n - 1).ne(vector.narrow(0, 0, n - 1))});
  Groups groups{true_positions(begins), {}, {}};
  if (want_numbers) groups.numbers = at::cumsum(begins, 0, at::kLong).sub_(1);
  if (want_counts) {
    const at::Tensor end = at::full({1}, n, groups.starts.options());
    groups.counts = at::cat({groups.starts.narrow(0, 1, groups.starts.size(0) - 1), end}).sub_(groups.starts);
  }
  return groups;
}

using Unique = std::tuple<at::Tensor, at::Tensor, at::Tensor>;

Unique unique_of(const at::Tensor& self, bool sort, bool return_inverse, bool return_counts) {
  const c10::DeviceGuard guard(self.device());
  const at::TensorOptions longs = self.options().dtype(at::kLong);
  at::Tensor inverse = at::empty({0}, longs), counts = at::empty({0}, longs);
  if (self.numel() == 0) {
    if (return_inverse) inverse.resize_(self.sizes());
    return {at::empty({0}, self.options()), inverse, counts};
  }
  at::Tensor flat = self.reshape({-1}), places;
  if (sort) std::tie(flat, places) = at::sort(flat, /*stable=*/true, /*dim=*/0, /*descending=*/false);
  const Groups groups = group_neighbours(flat, return_inverse, return_counts);
  if (return_inverse)
    inverse = (sort ? at::empty_like(places).scatter_(0, places, groups.numbers) : groups.numbers)
                  .view(self.sizes());
  if (return_counts) counts = groups.counts;
  return {flat.index_select(0, groups.starts), inverse, counts};
}

Unique unique2(const at::Tensor& self, bool sorted, bool return_inverse, bool return_counts) {
  if (self.is_complex())
    return call_cpu_fallback<Unique, const at::Tensor&, bool, bool, bool>("aten::_unique2", "", self, sorted,
                                                                          return_inverse, return_counts);
  return unique_of(self, true, return_inverse, return_counts);
}

Unique unique_consecutive(const at::Tensor& self, bool return_inverse, bool return_counts,
                          std::optional<int64_t> dim) {
  if (dim && !(self.dim() == 1 && self.numel() > 0))
    return call_cpu_fallback<Unique, const at::Tensor&, bool, bool, std::optional<int64_t>>(
        "aten::unique_consecutive", "", self, return_inverse, return_counts, dim);
  return unique_of(self, false, return_inverse, return_counts);
}

}  // namespace

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("bincount", bincount);
  m.impl("histc", histc);
  m.impl("histc.out", histc_out);
  m.impl("_unique2", unique2);
  m.impl("unique_consecutive", unique_consecutive);
}

}  // namespace dlb
