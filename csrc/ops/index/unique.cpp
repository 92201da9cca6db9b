// Unique values: torch.unique in all its forms.
#include <ATen/WrapDimUtils.h>
#include <ATen/ops/empty.h>

#include "kernels/index/params.h"
#include "ops/index/compact.h"
#include "ops/sort/sort.h"
#include "primitives/common/split.h"
#include "runtime/fetch_kernel.h"
#include "runtime/tensor.h"

namespace dlb {
namespace {

using codegen::DType;

constexpr const char* kFile = "index/unique.cl";

// Rows [n, width] that are grouped, contiguous, and the order to read them in (int32 [n]; undefined: as they
// lie).
class Rows {
 public:
  Rows(const at::Tensor& rows, int64_t width, const char* op)
      : rows_(rows),
        stream_(current_stream(rows.device().index())),
        device_(stream_.device()),
        type_(dtype_of(rows.scalar_type(), op)),
        n_(static_cast<uint32_t>(rows.numel() / width)),
        width_(static_cast<uint32_t>(width)) {
    TORCH_CHECK_NOT_IMPLEMENTED(codegen::class_of(type_) != codegen::DClass::Complex, "\"", op,
                                "\" not implemented for '", c10::toString(rows.scalar_type()), "'");
    TORCH_CHECK(rows.numel() / width < (int64_t{1} << 31), op, " of 2^31 or more rows is not supported");
    check_device_supports(device_, type_, op);
  }

  // The rows lie in order: `places` (int32 [n]) says where each of them was, for the inverse.
  void came_from(const at::Tensor& places) { origins_ = places; }

  // Orders rows of any width by merging.
  void order() {
    at::Tensor from = ints(n_), to = ints(n_);
    for (uint64_t run = 1; run < n_ || run == 1; run *= 2) {
      const size_t pairs = (n_ + 2 * run - 1) / (2 * run);
      const cl::Range range =
          cpu() ? cl::Range::linear(pairs, 1) : cl::Range::linear((size_t{n_} + 255) / 256, 256);
      const Buffer x = buffer_of(rows_), source = buffer_of(from), target = buffer_of(to);
      kernel("dlb_merge_rows")
          .launch(stream_.queue(), range, x.mem, x.offset, width_, source.mem, source.offset, target.mem,
                  target.offset, n_, static_cast<uint32_t>(run), static_cast<int32_t>(run == 1));
      std::swap(from, to);
    }
    places_ = from;
  }

  struct Groups {
    at::Tensor starts;   // where in the order each group begins, int64
    at::Tensor values;   // of rows of one element
    at::Tensor inverse;  // the group of each row, int64 [n]; undefined unless wanted
    at::Tensor lengths;  // of each group, int64; undefined unless wanted
  };

  // Waits for the device to learn how many groups there are.
  Groups groups(bool wants_inverse, bool wants_lengths) {
    const uint32_t most = device_.compute_units * 4;
    const uint32_t per_run =
        cpu() ? std::max(8192u, (n_ + most - 1) / most) : params::SCAN_GROUP * params::RUN_ITEMS;
    const int64_t runs = (int64_t{n_} + per_run - 1) / per_run;
    const cl::Range range =
        cl::Range::linear(static_cast<size_t>(runs), cpu() ? 1 : size_t{params::SCAN_GROUP});
    const at::Tensor counts = ints(runs + 1).view({1, runs + 1});
    const auto ordered = static_cast<int32_t>(places_.defined());
    const bool placed = places_.defined() || origins_.defined();
    const Buffer x = buffer_of(rows_), count = buffer_of(counts),
                 places = placed ? buffer_of(ordered ? places_ : origins_) : count;
    kernel("dlb_count_groups")
        .launch(stream_.queue(), range, x.mem, x.offset, places.mem, places.offset, ordered, width_, n_,
                per_run, count.mem, count.offset);
    exclusive_scan(counts);
    const int64_t total = counts.select(1, -1).item<int32_t>();
    const auto longs = rows_.options().memory_format(std::nullopt).dtype(at::kLong);
    Groups found;
    found.starts = at::empty({total}, longs);
    if (wants_inverse) found.inverse = at::empty({n_}, longs);
    if (width_ == 1) found.values = at::empty({total}, rows_.options().memory_format(std::nullopt));
    const Buffer starts = buffer_of(found.starts),
                 inverse = wants_inverse ? buffer_of(found.inverse) : starts,
                 values = width_ == 1 ? buffer_of(found.values) : x;
    kernel("dlb_write_groups")
        .launch(stream_.queue(), range, x.mem, x.offset, places.mem, places.offset, ordered, width_, n_,
                per_run, count.mem, count.offset, starts.mem, starts.offset, inverse.mem, inverse.offset,
                static_cast<int32_t>(wants_inverse), static_cast<int32_t>(placed), values.mem, values.offset,
                static_cast<int32_t>(width_ == 1));
    if (wants_lengths) {
      found.lengths = at::empty({total}, longs);
      const Split split = split_work(device_, static_cast<uint64_t>(total));
      const Buffer lengths = buffer_of(found.lengths);
      kernel("dlb_group_lengths")
          .launch(stream_.queue(), split.range, starts.mem, starts.offset, lengths.mem, lengths.offset,
                  static_cast<uint32_t>(total), int64_t{n_}, split.per_item);
    }
    return found;
  }

  const at::Tensor& places() const { return places_; }

 private:
  bool cpu() const { return device_.cls == cl::DeviceClass::kCpu; }
  at::Tensor ints(int64_t n) const {
    return at::empty({n}, rows_.options().memory_format(std::nullopt).dtype(at::kInt));
  }
  cl::Kernel& kernel(const char* name) const {
    return fetch_kernel(device_, kFile, name, codegen::compute_type(type_), {type_});
  }

  const at::Tensor rows_;
  at::Tensor places_, origins_;
  Stream& stream_;
  cl::Device& device_;
  const DType type_;
  const uint32_t n_, width_;
};

using Unique = std::tuple<at::Tensor, at::Tensor, at::Tensor>;

Unique unique_of(const at::Tensor& self, bool sort, bool return_inverse, bool return_counts) {
  const c10::DeviceGuard guard(self.device());
  const at::TensorOptions longs = self.options().memory_format(std::nullopt).dtype(at::kLong);
  at::Tensor inverse = at::empty({0}, longs), counts = at::empty({0}, longs);
  if (self.numel() == 0) {
    if (return_inverse) inverse.resize_(self.sizes());
    return {at::empty({0}, self.options().memory_format(std::nullopt)), inverse, counts};
  }
  const at::Tensor flat = self.reshape({-1}).contiguous();
  const bool sorts = sort && !flat.is_complex();
  const SortedPlaces sorted = sorts ? sorted_vector(flat) : SortedPlaces{flat, {}};
  Rows rows(sorted.values, 1, "unique");
  if (sorts && return_inverse) rows.came_from(sorted.places);
  const Rows::Groups groups = rows.groups(return_inverse, return_counts);
  return {groups.values, return_inverse ? groups.inverse.view(self.sizes()) : inverse,
          return_counts ? groups.lengths : counts};
}

// Slices along a dimension, as rows.
Unique unique_slices(const at::Tensor& self, int64_t dim, bool consecutive, bool return_inverse,
                     bool return_counts) {
  dim = at::maybe_wrap_dim(dim, self.dim());
  const c10::DeviceGuard guard(self.device());
  const at::TensorOptions longs = self.options().memory_format(std::nullopt).dtype(at::kLong);
  const int64_t n = self.size(dim), empty = std::count(self.sizes().begin(), self.sizes().end(), 0);
  if (n == 0) {
    TORCH_CHECK(empty == 1, "Number of zero sized dimensions is more than one, so unique cannot be applied ");
    return {at::empty(self.sizes(), self.options()), at::empty({0}, longs), at::empty({0}, longs)};
  }
  TORCH_CHECK(empty == 0,
              "There are 0 sized dimensions, and they aren't selected, so unique cannot be applied");
  Rows rows(self.movedim(dim, 0).contiguous(), self.numel() / n, "unique_dim");
  if (!consecutive) rows.order();
  const Rows::Groups groups = rows.groups(return_inverse, return_counts);
  const at::Tensor first = consecutive ? groups.starts : rows.places().index_select(0, groups.starts);
  const auto or_empty = [&](const at::Tensor& t) { return t.defined() ? t : at::empty({0}, longs); };
  return {self.index_select(dim, first), or_empty(groups.inverse), or_empty(groups.lengths)};
}

std::tuple<at::Tensor, at::Tensor> unique(const at::Tensor& self, bool sorted, bool return_inverse) {
  auto [values, inverse, counts] = unique_of(self, true, return_inverse, false);
  return {values, inverse};
}

Unique unique2(const at::Tensor& self, bool sorted, bool return_inverse, bool return_counts) {
  return unique_of(self, true, return_inverse, return_counts);
}

Unique unique_dim(const at::Tensor& self, int64_t dim, bool sorted, bool return_inverse, bool return_counts) {
  return unique_slices(self, dim, false, return_inverse, return_counts);
}

Unique unique_dim_consecutive(const at::Tensor& self, int64_t dim, bool return_inverse, bool return_counts) {
  return unique_slices(self, dim, true, return_inverse, return_counts);
}

Unique unique_consecutive(const at::Tensor& self, bool return_inverse, bool return_counts,
                          std::optional<int64_t> dim) {
  if (dim && !(self.dim() == 1 && self.numel() > 0))
    return unique_slices(self, *dim, true, return_inverse, return_counts);
  return unique_of(self, false, return_inverse, return_counts);
}

}  // namespace

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("_unique", unique);
  m.impl("_unique2", unique2);
  m.impl("unique_dim", unique_dim);
  m.impl("unique_dim_consecutive", unique_dim_consecutive);
  m.impl("unique_consecutive", unique_consecutive);
}

}  // namespace dlb
