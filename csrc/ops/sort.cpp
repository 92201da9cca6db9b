// sort, topk, kthvalue, median. Every type becomes integer keys whose order is the wanted one (NaN last, -0
// equal to 0, inverted when descending); the keys are sorted stably, and values are read through the
// resulting places.
#include <ATen/WrapDimUtils.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/gather.h>
#include <ATen/ops/sort.h>
#include <ATen/ops/sort_meta.h>
#include <ATen/ops/topk_meta.h>
#include <ATen/ops/where.h>

#include <cmath>

#include "ops/common/pointwise.h"
#include "ops/common/structured.h"
#include "ops/fallback.h"
#include "ops/index/compact.h"
#include "runtime/family.h"
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

const codegen::RegisterOps kRegistered(codegen::RowKind::Pointwise,
                                       {{kFloatKey, "sort.values_stable topk.values", "fixed"},
                                        {kIntKey, "sort.values_stable topk.values", "fixed"}});

// How a dtype's keys are made.
struct KeyForm {
  at::ScalarType bits;  // the integer type of the same size, for floats
  int64_t infinity;     // 0: an integer type
  int width;            // bits that keys differ in, the sign included
  bool wide;            // 64-bit keys
};

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
  const int64_t flip = descending ? -1 : 0;
  if (form.infinity) {
    const int64_t magnitude = static_cast<int64_t>((uint64_t{1} << (form.width - 1)) - 1);
    run_pointwise(kFloatKey, iter, type, {form.infinity, magnitude, flip});
  } else {
    run_pointwise(kIntKey, iter, type, c10::Scalar(flip));
  }
  return keys;
}

// Sorts the rows of contiguous keys [rows, n]. Result: int32 places [rows, n].
class RowSorter {
 public:
  RowSorter(const at::Tensor& keys, const KeyForm& form)
      : keys_(keys),
        form_(form),
        stream_(current_stream(keys.device().index())),
        rows_(static_cast<uint32_t>(keys.size(0))),
        n_(static_cast<uint32_t>(keys.size(1))) {}

  at::Tensor sort() {
    places_ = like(at::kInt, n_);
    other_keys_ = like(keys_.scalar_type(), n_);
    other_places_ = like(at::kInt, n_);
    const bool cpu = stream_.device().cls == cl::DeviceClass::kCpu;
    const uint32_t units = stream_.device().compute_units;
    if (cpu ? (rows_ >= units || n_ < 16384) : n_ <= kBitonic)
      whole_rows(cpu);
    else
      by_digits(cpu ? 8 : 4, cpu ? std::max(4096u, (n_ + 2 * units - 1) / (2 * units)) : 64);
    return places_;
  }

  // Places of the k smallest of each row [rows, k]; CPUs.
  at::Tensor select(uint32_t k) {
    const at::Tensor best = like(keys_.scalar_type(), k);
    places_ = like(at::kInt, k);
    const uint32_t per_item = rows_per_item();
    launch("dlb_select_rows", cl::Range::linear((rows_ + per_item - 1) / per_item, 1), keys_, best, places_,
           rows_, n_, k, per_item, Bias{this});
    return places_;
  }

 private:
  static constexpr uint32_t kBitonic = 1024;  // BITONIC of the kernel
  struct Bias {
    const RowSorter* sorter;
  };

  at::Tensor like(at::ScalarType type, int64_t columns) const {
    return at::empty({keys_.size(0), columns}, keys_.options().dtype(type));
  }
  uint32_t rows_per_item() const {
    const uint32_t most = stream_.device().compute_units * 4;
    const uint32_t worth = std::max(1u, 4096 / std::max(1u, n_));
    return std::max(worth, (rows_ + most - 1) / most);
  }

  void add(cl::Kernel::Arguments& arguments, const at::Tensor& tensor) const {
    const Operand operand = operand_of(tensor);
    arguments.add(operand.mem);
    arguments.add(operand.offset);
  }
  void add(cl::Kernel::Arguments& arguments, Bias) const {
    const uint64_t bias = uint64_t{1} << (form_.width - 1);
    if (form_.wide)
      arguments.add(bias);
    else
      arguments.add(static_cast<uint32_t>(bias));
  }
  template <class T>
  void add(cl::Kernel::Arguments& arguments, const T& value) const {
    arguments.add(value);
  }
  // Tensors are passed as buffer and offset.
  template <class... Args>
  void launch(const char* name, const cl::Range& range, const Args&... args) {
    family_kernel(stream_.device(), "sort/sort.cl", name, codegen::DType::U8, {},
                  form_.wide ? "-DK=ulong" : "-DK=uint")
        .launch_with(stream_.queue(), range,
                     [&](cl::Kernel::Arguments& arguments) { (add(arguments, args), ...); });
  }

  void whole_rows(bool cpu) {
    const uint32_t per_item = cpu ? rows_per_item() : 1;
    const cl::Range range =
        cpu ? cl::Range::linear((rows_ + per_item - 1) / per_item, 1) : cl::Range::linear(rows_, 256);
    launch("dlb_sort_rows", range, keys_, places_, other_keys_, other_places_, rows_, n_, per_item,
           Bias{this}, static_cast<uint32_t>(form_.width));
  }

  void by_digits(int digit_bits, uint32_t per_chunk) {
    const uint32_t chunks = (n_ + per_chunk - 1) / per_chunk;
    const at::Tensor counts = at::empty({rows_, (int64_t{chunks} << digit_bits) + 1}, places_.options());
    const size_t local = stream_.device().cls == cl::DeviceClass::kCpu ? 1 : 64;
    const cl::Range range = cl::Range::linear((size_t{rows_} * chunks + local - 1) / local, local);
    int32_t first = 1;
    for (int shift = 0; shift < form_.width; shift += digit_bits, first = 0) {
      const auto s = static_cast<uint32_t>(shift);
      launch("dlb_radix_count", range, keys_, rows_, n_, chunks, per_chunk, Bias{this}, s, counts);
      exclusive_scan(counts);
      launch("dlb_radix_move", range, keys_, places_, other_keys_, other_places_, rows_, n_, chunks,
             per_chunk, Bias{this}, s, counts, first);
      std::swap(keys_, other_keys_);
      std::swap(places_, other_places_);
    }
  }

  at::Tensor keys_, places_, other_keys_, other_places_;
  const KeyForm form_;
  Stream& stream_;
  const uint32_t rows_, n_;
};

// Places of the first k elements in order along `dim` (moved last), int32, shaped as self with that dimension
// last.
at::Tensor sorted_places(const at::Tensor& self, int64_t dim, bool descending, int64_t k,
                         const KeyForm& form) {
  const at::Tensor rows = self.movedim(dim, -1);
  const int64_t n = rows.size(-1), count = rows.numel() / n;
  TORCH_CHECK(n < (int64_t{1} << 31) && count < (int64_t{1} << 31),
              "sorting 2^31 or more elements is not supported");
  const at::Tensor keys = make_keys(rows, form, descending).view({count, n});
  RowSorter sorter(keys, form);
  const bool few =
      k <= 64 && k * 4 <= n && current_stream(self.device().index()).device().cls == cl::DeviceClass::kCpu;
  at::Tensor places = few ? sorter.select(static_cast<uint32_t>(k)) : sorter.sort().narrow(1, 0, k);
  auto sizes = rows.sizes().vec();
  sizes.back() = k;
  return places.reshape(sizes);
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
  const bool drop = !keepdim && picked.values.dim() > 0;
  const at::Tensor v = drop ? picked.values.squeeze(dim) : picked.values,
                   i = drop ? picked.indices.squeeze(dim) : picked.indices;
  at::native::resize_output(values, v.sizes());
  at::native::resize_output(indices, i.sizes());
  values.copy_(v);
  indices.copy_(i);
  return {values, indices};
}

at::Tensor order_of(const at::Tensor& self, int64_t dim) {
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
  const at::Tensor indices_sorted = order_of(self, dim);
  const Picked picked = self.dim() == 0 ? Picked{self, indices_sorted}
                                        : Picked{at::gather(self, dim, indices_sorted.narrow(dim, k - 1, 1)),
                                                 indices_sorted.narrow(dim, k - 1, 1)};
  return give(picked, dim, keepdim, values, indices);
}

// PyTorch's own kernel for all devices, which would come before the fallback, knows CPUs and CUDA alone.
std::tuple<at::Tensor&, at::Tensor&> mode_out(const at::Tensor& self, int64_t dim, bool keepdim,
                                              at::Tensor& values, at::Tensor& indices) {
  at::assert_no_overlap(self, values);
  return call_cpu_fallback<std::tuple<at::Tensor&, at::Tensor&>, const at::Tensor&, int64_t, bool,
                           at::Tensor&, at::Tensor&>("aten::mode", "values", self, dim, keepdim, values,
                                                     indices);
}

// The lower median. A NaN makes it NaN, or is left out (`ignore_nan`).
Picked median_of(const at::Tensor& self, int64_t dim, bool ignore_nan) {
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

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("sort.values_stable", sort_out);
  m.impl("topk.values", topk_out);
  m.impl("kthvalue.values", kthvalue_out);
  m.impl("mode.values", mode_out);
  m.impl("median.dim_values", median_out<false>);
  m.impl("nanmedian.dim_values", median_out<true>);
  m.impl("median", median<false>);
  m.impl("nanmedian", median<true>);
}

}  // namespace dlb
