// Reductions through indices: scatter_reduce and index_reduce.
#include <ATen/WrapDimUtils.h>
#include <ATen/ops/index_reduce_meta.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/scatter_reduce_meta.h>
#include <ATen/ops/zeros_like.h>

#include <limits>

#include "ops/common/structured.h"
#include "ops/index/access.h"
#include "ops/index/scatter.h"
#include "runtime/tensor.h"

namespace dlb {
namespace {

struct Reduction {
  std::string_view name;
  Combine op;
};
constexpr std::array<Reduction, 5> kReductions = {{{"sum", Combine::Sum},
                                                   {"mean", Combine::Sum},
                                                   {"prod", Combine::Product},
                                                   {"amax", Combine::Maximum},
                                                   {"amin", Combine::Minimum}}};

Combine combine_of(std::string_view reduce) {
  for (const Reduction& r : kReductions)
    if (r.name == reduce) return r.op;
  TORCH_CHECK(false, "reduce argument must be either sum, prod, mean, amax or amin, got ", reduce);
}

// The value that combining starts from where the target's own value does not count.
c10::Scalar identity_of(Combine op, at::ScalarType type) {
  if (op == Combine::Sum) return 0;
  if (op == Combine::Product) return 1;
  const bool lowest = op == Combine::Maximum;
  if (at::isFloatingType(type)) {
    constexpr double inf = std::numeric_limits<double>::infinity();
    return lowest ? -inf : inf;
  }
  if (type == at::kBool) return !lowest;
  c10::Scalar value;
  AT_DISPATCH_INTEGRAL_TYPES(type, "scatter_reduce", [&] {
    value = static_cast<int64_t>(lowest ? std::numeric_limits<scalar_t>::lowest()
                                        : std::numeric_limits<scalar_t>::max());
  });
  return value;
}

void divide_by_counts(const at::Tensor& result, at::Tensor counts) {
  counts.masked_fill_(counts.eq(0), 1);
  if (result.is_floating_point() || result.is_complex())
    result.div_(counts);
  else
    result.div_(counts, "floor");
}

at::Tensor& scatter_reduce_out(const at::Tensor& self, int64_t dim, const at::Tensor& index,
                               const at::Tensor& src, std::string_view reduce, bool include_self,
                               at::Tensor& out) {
  static const int32_t site = index_error_site("scatter_reduce", false);
  OutOp<at::meta::structured_scatter_reduce_two> op(out);
  op.meta(self, dim, index, src, reduce, include_self);
  const c10::DeviceGuard guard(self.device());
  const at::Tensor& result = op.result();
  if (!self.is_same(result)) result.copy_(self);
  if (index.numel() == 0) return op.finish(), out;
  const Combine combine = combine_of(reduce);
  TORCH_CHECK(!self.is_complex() || combine <= Combine::Product, "scatter_reduce: ", reduce,
              " is not defined for complex numbers");
  check_same_device(self, index, "scatter_reduce");
  check_same_device(self, src, "scatter_reduce");
  if (!include_self) result.scatter_(dim, index, identity_of(combine, self.scalar_type()));
  scatter_combine(result, dim, index, src, combine, site);
  if (reduce == "mean") {
    at::Tensor counts = include_self ? at::ones_like(result) : at::zeros_like(result);
    scatter_combine(counts, dim, index, at::ones({}, self.options().memory_format(std::nullopt)),
                    Combine::Sum, site);
    divide_by_counts(result, counts);
  }
  op.finish();
  return out;
}

// Refuses the dtypes that the CPU refuses. Its loops over single numbers, for one dimension and for clearing
// what shall not count, are for integers and floats alone. In more dimensions it combines slices by ops that
// take bool too, and complex numbers where these need no order; without an index it calls none of them.
void check_index_reduces(const at::Tensor& result, const at::Tensor& index, Combine op, bool mean,
                         bool include_self) {
  const at::ScalarType type = result.scalar_type();
  if (at::isFloatingType(type) || c10::isIntegralType(type, /*includeBool=*/false)) return;
  const bool slices = include_self && result.dim() > 1 && (type == at::kBool || at::isComplexType(type));
  const bool combines = type == at::kBool ? !mean : op <= Combine::Product;
  TORCH_CHECK_NOT_IMPLEMENTED(slices && (combines || index.numel() == 0),
                              "\"index_reduce\" not implemented for '", c10::toString(type), "'");
}

at::Tensor& index_reduce_out(const at::Tensor& self, int64_t dim, const at::Tensor& index,
                             const at::Tensor& source, std::string_view reduce, bool include_self,
                             at::Tensor& out) {
  static const int32_t site = index_error_site("index_reduce");
  OutOp<at::meta::structured_index_reduce> op(out);
  op.meta(self, dim, index, source, reduce, include_self);
  TORCH_CHECK(reduce == "prod" || reduce == "mean" || reduce == "amax" || reduce == "amin",
              "index_reduce(): Expected reduce to be one of prod, mean, amax or amin but got ", reduce, ".");
  const Combine combine = combine_of(reduce);
  check_index_reduces(self, index, combine, reduce == "mean", include_self);
  const c10::DeviceGuard guard(self.device());
  const at::Tensor& result = op.result();
  if (!self.is_same(result)) result.copy_(self);
  if (index.numel() == 0) return op.finish(), out;
  check_same_device(self, index, "index_reduce");
  check_same_device(self, source, "index_reduce");
  const int64_t along = at::maybe_wrap_dim(dim, self.dim());
  TORCH_CHECK_INDEX(self.dim() == 0 || self.size(along) != 0,
                    "index_reduce(): index out of range of dimension ", along, ", which has no elements");
  if (!include_self) result.index_fill_(dim, index, identity_of(combine, self.scalar_type()));
  const at::Tensor numbers = index.reshape({-1}), values = at_least_1d(source);
  accumulate(at_least_1d(result), along, numbers, values, {.op = combine, .site = site});
  if (reduce == "mean") {
    const at::Tensor counts = include_self ? at::ones_like(result) : at::zeros_like(result);
    accumulate(at_least_1d(counts), along, numbers, at::ones_like(values), {.site = site});
    divide_by_counts(result, counts);
  }
  op.finish();
  return out;
}

}  // namespace

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("scatter_reduce.two_out", scatter_reduce_out);
  m.impl("index_reduce.out", index_reduce_out);
}

}  // namespace dlb
