// sort, topk, kthvalue, median, mode. For CPUs every type becomes integer keys whose order is the wanted one
// (NaN last, -0 equal to 0, inverted when descending); the keys are sorted stably, and values are read
// through the resulting places. For GPUs see rows_gpu.h.
#include "ops/sort/sort.h"

#include <ATen/WrapDimUtils.h>
#include <ATen/native/ReduceOpsUtils.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/gather.h>
#include <ATen/ops/sort.h>
#include <ATen/ops/sort_meta.h>
#include <ATen/ops/topk_meta.h>
#include <ATen/ops/where.h>

#include <cmath>
#include <limits>

#include "ops/common/pointwise.h"
#include "ops/common/structured.h"
#include "ops/fallback.h"
#include "ops/sort/rows_cpu.h"
#include "ops/sort/rows_gpu.h"
#include "primitives/common/team.h"
#include "runtime/fetch_kernel.h"
#include "runtime/tensor.h"

namespace dlb {
namespace {

using codegen::PointwiseOp;

// Bits of a floating number, sign extended. s0: bits of infinity, s1: all but the sign, s2: -1 when
// descending.
constexpr PointwiseOp kFloatKey{
    .name = "sort_key_float",
    .on_int = "((x0 & s1) > s0 ? s1 : x0 == ~s1 ? (T)0 : x0 < 0 ? x0 ^ s1 : x0) ^ s2",
    .scalars = 3};
constexpr PointwiseOp kIntKey{.name = "sort_key_int", .on_int = "x0 ^ s0", .scalars = 1};

const codegen::RegisterOps kSortOps(codegen::RowKind::Pointwise,
                                    {{kFloatKey, "sort.values_stable topk.values", "fixed"},
                                     {kIntKey, "sort.values_stable topk.values", "fixed"}});

std::optional<KeyForm> key_form(at::ScalarType type) {
  switch (type) {
    case at::kHalf:
      return KeyForm{at::kShort, 0x7c00, 16, false};
    case at::kBFloat16:
      return KeyForm{at::kShort, 0x7f80, 16, false};
    case at::kFloat:
      return KeyForm{at::kInt, 0x7f800000, 32, false};
    case at::kDouble:
      return KeyForm{at::kLong, 0x7ff0000000000000, 64, true};
    case at::kBool:
    case at::kByte:
      return KeyForm{type, 0, 9, false};
    case at::kChar:
      return KeyForm{type, 0, 8, false};
    case at::kShort:
      return KeyForm{type, 0, 16, false};
    case at::kUInt16:
      return KeyForm{type, 0, 17, false};
    case at::kInt:
      return KeyForm{type, 0, 32, false};
    case at::kUInt32:
      return KeyForm{type, 0, 33, true};
    case at::kLong:
    case at::kUInt64:
      return KeyForm{type, 0, 64, true};
    default:
      return std::nullopt;
  }
}

// Keys of `rows` (any strides), contiguous, int32 or int64.
at::Tensor make_keys(const at::Tensor& rows, const KeyForm& form, bool descending) {
  const at::Tensor bits = form.bits == rows.scalar_type() ? rows : rows.view(form.bits);
  const at::ScalarType type = form.wide ? at::kLong : at::kInt;
  at::Tensor keys = at::empty(rows.sizes(), rows.options().dtype(type));
  auto iter = at::TensorIteratorConfig()
                  .add_output(keys)
                  .add_const_input(bits)
                  .check_all_same_dtype(false)
                  .resize_outputs(false)
                  .build();
  // Keys are signed: the sign of what is not is turned round.
  const int64_t sign = rows.scalar_type() == at::kUInt64 ? std::numeric_limits<int64_t>::min() : 0;
  const int64_t flip = descending ? ~sign : sign;
  if (form.infinity) {
    const int64_t magnitude = static_cast<int64_t>((uint64_t{1} << (form.width - 1)) - 1);
    run_pointwise(kFloatKey, iter, type, {form.infinity, magnitude, flip});
  } else {
    run_pointwise(kIntKey, iter, type, c10::Scalar(flip));
  }
  return keys;
}

bool on_gpu(const at::Tensor& self) {
  return current_stream(self.device().index()).device().cls == cl::DeviceClass::kGpu;
}

// As contiguous rows along `dim`, for GPUs.
at::Tensor rows_along(const at::Tensor& self, int64_t dim) {
  return self.movedim(dim, -1).contiguous().view({-1, self.size(dim)});
}

// CPUs: places of the first k elements in order along `dim` (moved last), int32, shaped as self with that
// dimension last.
at::Tensor sorted_places(const at::Tensor& self, int64_t dim, bool descending, int64_t k,
                         const KeyForm& form) {
  const at::Tensor rows = self.movedim(dim, -1);
  const int64_t n = rows.size(-1), count = rows.numel() / n;
  TORCH_CHECK(n < (int64_t{1} << 31) && count < (int64_t{1} << 31),
              "sorting 2^31 or more elements is not supported");
  const at::Tensor keys = make_keys(rows, form, descending).view({count, n});
  RowSorter sorter(keys, form);
  at::Tensor places = k * 4 <= n ? sorter.select(static_cast<uint32_t>(k)) : sorter.sort().narrow(1, 0, k);
  auto sizes = rows.sizes().vec();
  sizes.back() = k;
  return places.reshape(sizes);
}

// A result as contiguous rows along `dim`: itself where it lies so.
struct ResultRows {
  const at::Tensor given, moved, rows;
  ResultRows(const at::Tensor& result, int64_t dim)
      : given(result),
        moved(result.movedim(dim, -1)),
        rows((moved.is_contiguous() ? moved : at::empty(moved.sizes(), result.options()))
                 .view({-1, result.size(dim)})) {}
  void finish() const {
    if (!moved.is_contiguous()) moved.copy_(rows.view(moved.sizes()));
  }
};

void sort_on_gpu(const at::Tensor& source, int64_t dim, bool descending, const at::Tensor& values,
                 const at::Tensor& indices) {
  at::assert_no_internal_overlap(values);
  at::assert_no_overlap(values, source);
  const ResultRows to_values(values, dim), to_indices(indices, dim);
  gpu_sort_rows(rows_along(source, dim), {descending, 0, {}}, to_values.rows, to_indices.rows);
  to_values.finish();
  to_indices.finish();
}

void sort_into(const at::Tensor& self, int64_t dim, bool descending, const at::Tensor& values,
               const at::Tensor& indices, const KeyForm& form) {
  const c10::DeviceGuard guard(self.device());
  if (values.numel() == 0) return;
  if (self.dim() == 0) {
    values.copy_(self);
    indices.zero_();
    return;
  }
  // A result may lie where the input does. Where values do in part, gather_out() raises as the CPU does.
  const bool shared =
      indices.is_alias_of(self) ||
      (values.is_alias_of(self) && at::get_overlap_status(values, self) != at::MemOverlapStatus::Partial);
  const at::Tensor source = shared ? self.clone() : self;
  if (on_gpu(self)) return sort_on_gpu(source, dim, descending, values, indices);
  indices.movedim(dim, -1).copy_(sorted_places(source, dim, descending, values.size(dim), form));
  at::Tensor out = values;
  at::gather_out(out, source, dim, indices);
}

std::tuple<at::Tensor&, at::Tensor&> sort_out(const at::Tensor& self, std::optional<bool> stable, int64_t dim,
                                              bool descending, at::Tensor& values, at::Tensor& indices) {
  OutOp<at::meta::structured_sort_stable, 2> op({std::cref(values), std::cref(indices)});
  op.meta(self, stable, dim, descending);
  const auto form = key_form(self.scalar_type());
  if (!form)
    return call_cpu_fallback<std::tuple<at::Tensor&, at::Tensor&>, const at::Tensor&, std::optional<bool>,
                             int64_t, bool, at::Tensor&, at::Tensor&>(
        "aten::sort", "values_stable", self, stable, dim, descending, values, indices);
  sort_into(self, at::maybe_wrap_dim(dim, self.dim()), descending, values, indices, *form);
  return {values, indices};
}

std::tuple<at::Tensor&, at::Tensor&> topk_out(const at::Tensor& self, int64_t k, int64_t dim, bool largest,
                                              bool sorted, at::Tensor& values, at::Tensor& indices) {
  OutOp<at::meta::structured_topk, 2> op({std::cref(values), std::cref(indices)});
  op.meta(self, k, dim, largest, sorted);
  const auto form = key_form(self.scalar_type());
  if (!form)
    return call_cpu_fallback<std::tuple<at::Tensor&, at::Tensor&>, const at::Tensor&, int64_t, int64_t, bool,
                             bool, at::Tensor&, at::Tensor&>("aten::topk", "values", self, k, dim, largest,
                                                             sorted, values, indices);
  sort_into(self, at::maybe_wrap_dim(dim, self.dim()), largest, values, indices, *form);
  return {values, indices};
}

// The element at position[row] of each sorted row, with its index. `position` has `self`'s shape with dim of
// size 1.
struct Picked {
  at::Tensor values, indices;
};
Picked pick(const at::Tensor& self, int64_t dim, const at::Tensor& sorted_indices,
            const at::Tensor& position) {
  const at::Tensor indices = at::gather(sorted_indices, dim, position);
  return {at::gather(self, dim, indices), indices};
}

std::tuple<at::Tensor&, at::Tensor&> give(const Picked& picked, int64_t dim, bool keepdim, at::Tensor& values,
                                          at::Tensor& indices) {
  TORCH_CHECK(values.scalar_type() == picked.values.scalar_type(),
              "output values must be of same type as input, but got ", values.scalar_type(), " and ",
              picked.values.scalar_type());
  TORCH_CHECK(indices.scalar_type() == at::kLong, "output indices must be of scalar type Long, but got ",
              indices.scalar_type());
  const bool drop = !keepdim && picked.values.dim() > 0;
  const at::Tensor v = drop ? picked.values.squeeze(dim) : picked.values,
                   i = drop ? picked.indices.squeeze(dim) : picked.indices;
  at::native::resize_output(values, v.sizes());
  at::native::resize_output(indices, i.sizes());
  values.copy_(v);
  indices.copy_(i);
  return {values, indices};
}

// Whether an element of each row along `dim` is found without sorting the row.
bool is_selected(const at::Tensor& self, int64_t dim) {
  return self.dim() > 0 && self.numel() > 0 && key_form(self.scalar_type()) && on_gpu(self) &&
         self.size(dim) > gpu_block(self.scalar_type());
}

Picked select_on_gpu(const at::Tensor& self, int64_t dim, Pick which, int64_t k) {
  auto sizes = self.movedim(dim, -1).sizes().vec();
  sizes.back() = 1;
  const auto plain = self.options().memory_format(std::nullopt);
  const Picked picked{at::empty(sizes, plain), at::empty(sizes, plain.dtype(at::kLong))};
  gpu_pick_rows(rows_along(self, dim), which, k, picked.values.view({-1}), picked.indices.view({-1}));
  return {picked.values.movedim(-1, dim), picked.indices.movedim(-1, dim)};
}

at::Tensor order_of(const at::Tensor& self, int64_t dim) {
  TORCH_CHECK_NOT_IMPLEMENTED(!self.is_complex(), "complex numbers have no order: got ",
                              c10::toString(self.scalar_type()));
  return std::get<1>(at::sort(self, /*stable=*/true, dim, /*descending=*/false));
}

std::tuple<at::Tensor&, at::Tensor&> kthvalue_out(const at::Tensor& self, int64_t k, int64_t dim,
                                                  bool keepdim, at::Tensor& values, at::Tensor& indices) {
  dim = at::maybe_wrap_dim(dim, self.dim());
  const int64_t n = self.dim() ? self.size(dim) : 1;
  if (self.dim() > 0)
    TORCH_CHECK_INDEX(n > 0, "kthvalue(): Expected reduction dim ", dim, " to have non-zero size.");
  TORCH_CHECK(k >= 1 && k <= n, "kthvalue(): selected number k out of range for dimension ", dim);
  at::assert_no_overlap(self, values);
  const c10::DeviceGuard guard(self.device());
  if (is_selected(self, dim))
    return give(select_on_gpu(self, dim, Pick::Kth, k), dim, keepdim, values, indices);
  const at::Tensor indices_sorted = order_of(self, dim);
  const Picked picked = self.dim() == 0 ? Picked{self, indices_sorted}
                                        : Picked{at::gather(self, dim, indices_sorted.narrow(dim, k - 1, 1)),
                                                 indices_sorted.narrow(dim, k - 1, 1)};
  return give(picked, dim, keepdim, values, indices);
}

// Rows sorted along `dim`, which lies last, with places as int32.
SortedPlaces sorted_rows(const at::Tensor& self, int64_t dim, const char* op) {
  const auto form = key_form(self.scalar_type());
  TORCH_CHECK_NOT_IMPLEMENTED(form, "\"", op, "\" not implemented for '", c10::toString(self.scalar_type()),
                              "'");
  if (on_gpu(self)) {
    const at::Tensor rows = rows_along(self, dim);
    const SortedPlaces sorted{at::empty(rows.sizes(), rows.options()),
                              at::empty(rows.sizes(), rows.options().dtype(at::kInt))};
    gpu_sort_rows(rows, {}, sorted.values, sorted.places);
    return sorted;
  }
  const at::Tensor places = sorted_places(self, dim, false, self.size(dim), *form).contiguous();
  if (self.dim() == 1) return {self.index_select(0, places), places};
  return {at::gather(self.movedim(dim, -1), -1, places.to(at::kLong)).contiguous(), places};
}

std::tuple<at::Tensor&, at::Tensor&> mode_out(const at::Tensor& self, int64_t dim, bool keepdim,
                                              at::Tensor& values, at::Tensor& indices) {
  TORCH_CHECK(self.scalar_type() == values.scalar_type(), "expected scalar type '", self.scalar_type(),
              "' but got '", values.scalar_type(), "' for values output");
  TORCH_CHECK(indices.scalar_type() == at::kLong, "expected scalar type 'Long' but got '",
              indices.scalar_type(), "' for indices output");
  dim = at::maybe_wrap_dim(dim, self.dim());
  at::native::zero_numel_check_dims(self, dim, "mode()");
  at::assert_no_overlap(self, values);
  const c10::DeviceGuard guard(self.device());
  if (self.dim() == 0) {
    at::native::resize_output(values, {});
    at::native::resize_output(indices, {});
    values.copy_(self);
    indices.zero_();
    return {values, indices};
  }
  auto sizes = self.movedim(dim, -1).sizes().vec();
  const int64_t n = sizes.back();
  sizes.back() = 1;
  const auto plain = self.options().memory_format(std::nullopt);
  Picked picked{at::empty(sizes, plain), at::empty(sizes, plain.dtype(at::kLong))};
  if (picked.values.numel() > 0) {
    const SortedPlaces sorted = sorted_rows(self, dim, "mode");
    const auto type = dtype_of(self.scalar_type(), "mode");
    Stream& stream = current_stream(self.device().index());
    const auto rows = static_cast<uint32_t>(picked.values.numel());
    const Team team = make_team(stream.device(), rows, n, 1);
    const Buffer in = buffer_of(sorted.values), from = buffer_of(sorted.places),
                 to = buffer_of(picked.values), index = buffer_of(picked.indices);
    fetch_kernel(stream.device(), "index/unique.cl", "dlb_mode", codegen::compute_type(type), {type})
        .launch(stream.queue(), range_of(stream.device(), team), in.mem, in.offset, from.mem, from.offset,
                to.mem, to.offset, index.mem, index.offset, rows, static_cast<uint32_t>(n), team.per_item);
  }
  picked = {picked.values.movedim(-1, dim), picked.indices.movedim(-1, dim)};
  return give(picked, dim, keepdim, values, indices);
}

std::tuple<at::Tensor, at::Tensor> mode(const at::Tensor& self, int64_t dim, bool keepdim) {
  const auto plain = self.options().memory_format(std::nullopt);
  at::Tensor values = at::empty({0}, plain), indices = at::empty({0}, plain.dtype(at::kLong));
  mode_out(self, dim, keepdim, values, indices);
  return {values, indices};
}

// The lower median. A NaN makes it NaN, or is left out (`ignore_nan`).
Picked median_of(const at::Tensor& self, int64_t dim, bool ignore_nan) {
  if (is_selected(self, dim)) return select_on_gpu(self, dim, ignore_nan ? Pick::NanMedian : Pick::Median, 0);
  const at::Tensor order = order_of(self, dim);
  if (self.dim() == 0) return {self, order};
  const int64_t middle = (self.size(dim) - 1) / 2;
  if (!self.is_floating_point()) {
    const at::Tensor indices = order.narrow(dim, middle, 1);
    return {at::gather(self, dim, indices), indices};
  }
  const at::Tensor numbers = self.eq(self).sum(at::IntArrayRef(dim), /*keepdim=*/true);
  const at::Tensor position =
      ignore_nan ? numbers.sub(1).div(2, "floor").clamp_min(0)
                 : at::where(numbers.lt(self.size(dim)), numbers, at::full_like(numbers, middle));
  return pick(self, dim, order, position);
}

template <bool kIgnoreNan>
std::tuple<at::Tensor&, at::Tensor&> median_out(const at::Tensor& self, int64_t dim, bool keepdim,
                                                at::Tensor& values, at::Tensor& indices) {
  dim = at::maybe_wrap_dim(dim, self.dim());
  if (self.dim() > 0)
    TORCH_CHECK_INDEX(self.size(dim) > 0, "median(): Expected reduction dim ", dim,
                      " to have non-zero size.");
  const c10::DeviceGuard guard(self.device());
  return give(median_of(self, dim, kIgnoreNan), dim, keepdim, values, indices);
}

template <bool kIgnoreNan>
at::Tensor median(const at::Tensor& self) {
  const c10::DeviceGuard guard(self.device());
  if (self.numel() == 0)
    return at::empty({}, self.options())
        .fill_(self.is_floating_point() ? c10::Scalar(std::nan("")) : c10::Scalar(0));
  return median_of(self.reshape({-1}), 0, kIgnoreNan).values.squeeze(0);
}

}  // namespace

SortedPlaces sorted_vector(const at::Tensor& vector) {
  return sorted_rows(vector, 0, "sort");
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("sort.values_stable", sort_out);
  m.impl("topk.values", topk_out);
  m.impl("kthvalue.values", kthvalue_out);
  m.impl("mode", mode);
  m.impl("mode.values", mode_out);
  m.impl("median.dim_values", median_out<false>);
  m.impl("nanmedian.dim_values", median_out<true>);
  m.impl("median", median<false>);
  m.impl("nanmedian", median<true>);
}

}  // namespace dlb
