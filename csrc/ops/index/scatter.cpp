// Writing through indices: scatter, index_copy, index_fill, put, index_put, and the accumulating forms of
// each.
#include <ATen/Context.h>
#include <ATen/ExpandUtils.h>
#include <ATen/MemoryOverlap.h>
#include <ATen/WrapDimUtils.h>
#include <ATen/ops/full.h>
#include <ATen/ops/index_add_meta.h>
#include <ATen/ops/index_copy_meta.h>
#include <ATen/ops/scatter_add_meta.h>
#include <ATen/ops/scatter_meta.h>

#include "ops/common/overlap.h"
#include "ops/common/structured.h"
#include "ops/index/access.h"
#include "ops/index/accumulate.h"
#include "ops/index/advanced.h"
#include "ops/index/scatter.h"
#include "ops/pointwise/rows.h"
#include "runtime/tensor.h"

namespace dlb {
namespace {

at::Tensor scalar_on(const at::Tensor& like, const c10::Scalar& value) {
  check_scalar_fits(value, like.scalar_type());
  return at::full({}, value, like.options());
}

// out[.., index, ..] = source along dim, index of the full shape.
void scatter_write(const at::Tensor& out, int64_t dim, const at::Tensor& index, const at::Tensor& source,
                   int32_t site) {
  if (sorts_writes(out)) return scatter_combine(out, dim, index, source, Combine::Last, site);
  const at::Tensor to = at_least_1d(out), at = at_least_1d(index), from = source.resolve_conj().resolve_neg();
  const auto d = static_cast<size_t>(at::maybe_wrap_dim(dim, to.dim()));
  IndexAccess access = access_elements(from, to, at, d, site);
  if (from.dim() == 0) access.plain_strides = at::DimVector(at.sizes().size(), 0);
  access.write = true;
  access.ordered = at::globalContext().deterministicAlgorithms();
  run_index_access(access);
}

// source cut to the index's shape, as the scatter family reads it.
at::Tensor cut(const at::Tensor& source, const at::Tensor& index) {
  at::Tensor part = source;
  for (int64_t d = 0; d < index.dim(); ++d) part = part.narrow(d, 0, index.size(d));
  return part;
}

}  // namespace

void scatter_combine(const at::Tensor& out, int64_t dim, const at::Tensor& index, const at::Tensor& source,
                     Combine op, int32_t site) {
  const at::Tensor at = at_least_1d(index);
  const at::Tensor values =
      source.dim() == 0 && index.dim() > 0 ? source.expand(at.sizes()) : cut(at_least_1d(source), at);
  accumulate(at_least_1d(out), at::maybe_wrap_dim(dim, at.dim()), at, values.resolve_conj().resolve_neg(),
             {.op = op, .site = site});
}

namespace {

template <class Meta, class Value, class... Reduce>
at::Tensor& scatter_op(const at::Tensor& self, int64_t dim, const at::Tensor& index, const Value& value,
                       at::Tensor& out, std::optional<std::string_view> reduce,
                       const Reduce&... meta_reduce) {
  static const int32_t site = index_error_site("scatter", false);
  OutOp<Meta> op(out);
  op.meta(self, dim, index, value, meta_reduce...);
  const c10::DeviceGuard guard(self.device());
  const at::Tensor& result = op.result();
  if (!self.is_same(result)) result.copy_(self);
  if (index.numel() == 0) return op.finish(), out;
  check_same_device(self, index, "scatter");
  at::Tensor source;
  if constexpr (std::is_same_v<Value, at::Tensor>) {
    check_same_device(self, value, "scatter");
    source = value;
  } else {
    source = scalar_on(self, value);
  }
  if (reduce)
    scatter_combine(result, dim, index, source, *reduce == "add" ? Combine::Sum : Combine::Product, site);
  else
    scatter_write(result, dim, index, source, site);
  op.finish();
  return out;
}

at::Tensor& scatter_src(const at::Tensor& self, int64_t dim, const at::Tensor& index, const at::Tensor& src,
                        at::Tensor& out) {
  return scatter_op<at::meta::structured_scatter_src>(self, dim, index, src, out, std::nullopt);
}
at::Tensor& scatter_value(const at::Tensor& self, int64_t dim, const at::Tensor& index,
                          const c10::Scalar& value, at::Tensor& out) {
  return scatter_op<at::meta::structured_scatter_value>(self, dim, index, value, out, std::nullopt);
}
at::Tensor& scatter_src_reduce(const at::Tensor& self, int64_t dim, const at::Tensor& index,
                               const at::Tensor& src, std::string_view reduce, at::Tensor& out) {
  return scatter_op<at::meta::structured_scatter_reduce>(self, dim, index, src, out, reduce, reduce);
}
at::Tensor& scatter_value_reduce(const at::Tensor& self, int64_t dim, const at::Tensor& index,
                                 const c10::Scalar& value, std::string_view reduce, at::Tensor& out) {
  return scatter_op<at::meta::structured_scatter_value_reduce>(self, dim, index, value, out, reduce, reduce);
}

at::Tensor& scatter_add_out(const at::Tensor& self, int64_t dim, const at::Tensor& index,
                            const at::Tensor& src, at::Tensor& out) {
  static const int32_t site = index_error_site("scatter_add", false);
  OutOp<at::meta::structured_scatter_add> op(out);
  op.meta(self, dim, index, src);
  const c10::DeviceGuard guard(self.device());
  const at::Tensor& result = op.result();
  if (!self.is_same(result)) result.copy_(self);
  if (index.numel() > 0) {
    check_same_device(self, index, "scatter_add");
    check_same_device(self, src, "scatter_add");
    scatter_combine(result, dim, index, src, Combine::Sum, site);
  }
  op.finish();
  return out;
}

at::Tensor& index_add_out(const at::Tensor& self, int64_t dim, const at::Tensor& index,
                          const at::Tensor& source, const c10::Scalar& alpha, at::Tensor& out) {
  static const int32_t site = index_error_site("index_add", false);
  OutOp<at::meta::structured_index_add> op(out);
  op.meta(self, dim, index, source, alpha);
  const c10::DeviceGuard guard(self.device());
  const at::Tensor& result = op.result();
  if (!self.is_same(result)) result.copy_(self);
  if (index.numel() == 0) return op.finish(), out;
  check_same_device(self, index, "index_add");
  check_same_device(self, source, "index_add");
  const bool unit = !alpha.isComplex() && alpha.toDouble() == 1.0;
  const at::Tensor values = (unit ? source : source.mul(alpha)).resolve_conj().resolve_neg();
  accumulate(at_least_1d(result), at::maybe_wrap_dim(dim, self.dim()), index.reshape({-1}),
             at_least_1d(values), {.op = Combine::Sum, .site = site});
  op.finish();
  return out;
}

// Writes `source` (expandable to the slices) over the slices that a vector of indices names.
void write_slices(const at::Tensor& target, int64_t dim, const at::Tensor& index, const at::Tensor& source,
                  bool wraps, int32_t site) {
  const at::Tensor to = at_least_1d(target), at = index.reshape({-1});
  const auto d = static_cast<size_t>(at::maybe_wrap_dim(dim, to.dim()));
  at::DimVector sizes(to.sizes());
  sizes[d] = at.numel();
  const at::Tensor from = at_least_1d(source.resolve_conj().resolve_neg()).expand(sizes);
  if (sorts_writes(target))
    return accumulate(to, static_cast<int64_t>(d), at, from,
                      {.op = Combine::Last, .site = site, .wraps = wraps});
  IndexAccess access = access_slices(from, to, at, d, site);
  access.wraps = wraps;
  access.write = true;
  access.ordered = at::globalContext().deterministicAlgorithms();
  run_index_access(access);
}

// An index into a dimension without elements, of slices that have some.
void check_has_slices(const at::Tensor& self, int64_t dim, const at::Tensor& index, const char* op) {
  if (self.numel() > 0 || self.dim() == 0 || index.numel() == 0) return;
  const auto d = static_cast<size_t>(at::maybe_wrap_dim(dim, self.dim()));
  const bool others_empty = c10::multiply_integers(self.sizes().slice(0, d)) == 0 ||
                            c10::multiply_integers(self.sizes().slice(d + 1)) == 0;
  TORCH_CHECK(others_empty, op, "(): index out of bounds: dimension ", d, " has no elements");
}

at::Tensor& index_copy_out(const at::Tensor& self, int64_t dim, const at::Tensor& index,
                           const at::Tensor& source, at::Tensor& out) {
  static const int32_t site = index_error_site("index_copy");
  OutOp<at::meta::structured_index_copy> op(out);
  op.meta(self, dim, index, source);
  check_has_slices(self, dim, index, "index_copy");
  const c10::DeviceGuard guard(self.device());
  const at::Tensor& result = op.result();
  if (!self.is_same(result)) result.copy_(self);
  check_same_device(self, index, "index_copy");
  check_same_device(self, source, "index_copy");
  if (index.numel() > 0 && result.numel() > 0) write_slices(result, dim, index, source, false, site);
  op.finish();
  return out;
}

at::Tensor& index_fill_tensor(at::Tensor& self, int64_t dim, const at::Tensor& index,
                              const at::Tensor& value) {
  static const int32_t site = index_error_site("index_fill_");
  TORCH_CHECK(value.dim() == 0,
              "index_fill_ only supports a 0-dimensional value tensor, but got tensor with ", value.dim(),
              " dimension(s).");
  TORCH_CHECK_INDEX(index.scalar_type() == at::kLong || index.scalar_type() == at::kInt,
                    "index_fill_(): Expected dtype int64 for index.");
  TORCH_CHECK(index.dim() <= 1, "Index has to be a vector/scalar");
  TORCH_CHECK(self.is_complex() || !value.is_complex(),
              "index_fill_(): Converting complex Scalar to non-complex type is "
              "not supported");
  warn_of_expanded(self, "index_fill_", "tensor[mask] = scalar");
  at::assert_no_overlap(self, index);
  dim = at::maybe_wrap_dim(dim, self.dim());
  check_has_slices(self, dim, index, "index_fill_");
  if (self.numel() == 0 || index.numel() == 0) return self;
  const c10::DeviceGuard guard(self.device());
  write_slices(self, dim, index.to(self.device()), value.to(self.device(), self.scalar_type()), true, site);
  return self;
}

at::Tensor& index_fill_scalar(at::Tensor& self, int64_t dim, const at::Tensor& index,
                              const c10::Scalar& value) {
  TORCH_CHECK(self.is_complex() || !value.isComplex(),
              "index_fill_(): Converting complex Scalar to non-complex type is "
              "not supported");
  return index_fill_tensor(self, dim, index, scalar_on(self, value));
}

at::Tensor& put_(at::Tensor& self, const at::Tensor& index, const at::Tensor& source, bool accumulating) {
  static const int32_t site = index_error_site("put_");
  TORCH_CHECK(index.scalar_type() == at::kLong, "put_(): Expected a long tensor for index, but got ",
              index.scalar_type());
  TORCH_CHECK(self.scalar_type() == source.scalar_type(),
              "put_(): self and source expected to have the same dtype, but "
              "got self.dtype = ",
              self.scalar_type(), " and source.dtype = ", source.scalar_type());
  check_same_device(self, index, "put_");
  check_same_device(self, source, "put_");
  TORCH_CHECK_INDEX(source.numel() == index.numel(),
                    "put_(): Expected source and index to have the same number of elements, "
                    "but got source.numel() = ",
                    source.numel(), ", index.numel() = ", index.numel());
  TORCH_CHECK_INDEX(!(self.numel() == 0 && index.numel() != 0),
                    "put_(): Tried to put elements into an empty tensor");
  at::assert_no_internal_overlap(self);
  at::assert_no_overlap(self, index);
  at::assert_no_overlap(self, source);
  if (self.numel() == 0 || index.numel() == 0) return self;
  const c10::DeviceGuard guard(self.device());
  const at::Tensor dense = self.contiguous(), flat = dense.view({-1}), values = source.reshape({-1});
  if (accumulating)
    accumulate(flat, 0, index.reshape({-1}), values.resolve_conj().resolve_neg(),
               {.op = Combine::Sum, .site = site, .wraps = true, .deterministic = true});
  else
    write_slices(flat, 0, index, values, true, site);
  if (!dense.is_same(self)) self.copy_(dense);
  return self;
}

void index_put_combine(const AdvancedIndexing& plan, const at::Tensor& values, Combine op) {
  const at::Tensor target = plan.permuted_self();
  const at::Tensor index = plan.row_index();
  const int64_t rows = plan.rows(), inner = target.numel() / rows;
  const at::Tensor dense = target.contiguous();
  static const int32_t site = index_error_site("index_put_");
  accumulate(dense.view({rows, inner}), 0, index,
             plan.permuted_values(values).reshape({index.numel(), inner}),
             {.op = op, .site = site, .wraps = true, .deterministic = true});
  if (!dense.is_same(target)) target.copy_(dense);
}

// The mask that is all there is of the indices, as masked_fill_() takes it; else nothing.
std::optional<at::Tensor> only_mask(const at::Tensor& self,
                                    const c10::List<std::optional<at::Tensor>>& indices) {
  at::Tensor mask;
  int64_t dims = 0;
  for (const std::optional<at::Tensor>& index : indices) {
    if (!index || !index->defined()) {
      dims++;
      continue;
    }
    const bool is_mask = index->scalar_type() == at::kBool || index->scalar_type() == at::kByte;
    if (!is_mask || mask.defined() || index->device() != self.device()) return std::nullopt;
    if (dims + index->dim() > self.dim() || index->sizes() != self.sizes().slice(dims, index->dim()))
      return std::nullopt;  // index_put() says what is wrong
    mask = *index, dims += index->dim();
  }
  if (!mask.defined()) return std::nullopt;
  for (; dims < self.dim(); dims++) mask = mask.unsqueeze(-1);
  return mask;
}

at::Tensor& index_put(at::Tensor& self, const c10::List<std::optional<at::Tensor>>& indices,
                      const at::Tensor& given, bool accumulating, bool unsafe) {
  TORCH_CHECK_INDEX(static_cast<int64_t>(indices.size()) <= self.dim(),
                    "too many indices for tensor of dimension ", self.dim(), " (got ", indices.size(), ")");
  warn_of_expanded(self, "index_put_", "tensor[indices] = tensor");
  const c10::DeviceGuard guard(self.device());
  if (!accumulating && given.device().is_cpu() && given.numel() == 1)  // of any dtype, as PyTorch's own
    if (const auto mask = only_mask(self, indices)) return self.masked_fill_(*mask, given.item());
  const at::Tensor values =
      (given.device() != self.device() && given.numel() == 1 && given.dim() == 0 ? given.to(self.device())
                                                                                 : given)
          .resolve_conj()
          .resolve_neg();
  check_same_device(self, values, "index_put_");
  at::assert_no_overlap(self, values);
  for (const std::optional<at::Tensor>& index : indices)
    if (index && index->defined()) at::assert_no_overlap(self, *index);
  const AdvancedIndexing plan(self, indices, "index_put_");
  TORCH_CHECK(at::is_expandable_to(values.sizes(), plan.sizes()), "shape mismatch: value tensor of shape ",
              values.sizes(), " cannot be broadcast to indexing result of shape ", plan.sizes());
  TORCH_CHECK(self.scalar_type() == given.scalar_type(),
              "Index put requires the source and destination dtypes match, "
              "got ",
              self.scalar_type(), " for the destination and ", given.scalar_type(), " for the source.");
  IndexAccess access;
  if (accumulating || sorts_writes(self)) {
    bool empty = self.numel() == 0;
    for (int64_t size : plan.sizes()) empty |= size == 0;
    if (!empty) index_put_combine(plan, values, accumulating ? Combine::Sum : Combine::Last);
    return self;
  }
  access = plan.access();
  const at::Tensor wide = values.expand(plan.sizes());
  access.plain = wide;
  access.plain_strides = wide.strides();
  access.write = true;
  access.ordered = at::globalContext().deterministicAlgorithms();
  run_index_access(access);
  return self;
}

}  // namespace

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("scatter.src_out", scatter_src);
  m.impl("scatter.value_out", scatter_value);
  m.impl("scatter.reduce_out", scatter_src_reduce);
  m.impl("scatter.value_reduce_out", scatter_value_reduce);
  m.impl("scatter_add.out", scatter_add_out);
  m.impl("index_add.out", index_add_out);
  m.impl("index_copy.out", index_copy_out);
  m.impl("index_fill_.int_Scalar", index_fill_scalar);
  m.impl("index_fill_.int_Tensor", index_fill_tensor);
  m.impl("put_", put_);
  m.impl("_index_put_impl_", index_put);
}

}  // namespace dlb
