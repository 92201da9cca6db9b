// Chooses among the sorting kernels of GPUs: rows of a few hundred elements are sorted by networks, those
// that fit into local memory by a work-group each, longer ones by many; of long rows few elements are
// selected first.
#include "ops/sort/rows_gpu.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <algorithm>

#include "cl/rounding.h"
#include "runtime/fetch_kernel.h"
#include "runtime/tensor.h"

namespace dlb {
namespace {

using params::RadixParams;
using params::SelectParams;
using params::SortRowsParams;

// How kernels read a dtype.
struct Numbers {
  int bits;
  const char* options;
};

Numbers numbers_of(at::ScalarType type) {
  switch (type) {
    case at::kHalf:
      return {16, "-DR=ushort -DK=uint -DWIDTH=16 -DINFINITE=0x7c00u"};
    case at::kBFloat16:
      return {16, "-DR=ushort -DK=uint -DWIDTH=16 -DINFINITE=0x7f80u"};
    case at::kFloat:
      return {32, "-DR=uint -DK=uint -DWIDTH=32 -DINFINITE=0x7f800000u"};
    case at::kDouble:
      return {64, "-DR=ulong -DK=ulong -DWIDTH=64 -DINFINITE=0x7ff0000000000000ul"};
    case at::kBool:
    case at::kByte:
      return {8, "-DR=uchar -DK=uint -DWIDTH=8"};
    case at::kChar:
      return {8, "-DR=uchar -DK=uint -DWIDTH=8 -DSIGNED"};
    case at::kShort:
      return {16, "-DR=ushort -DK=uint -DWIDTH=16 -DSIGNED"};
    case at::kUInt16:
      return {16, "-DR=ushort -DK=uint -DWIDTH=16"};
    case at::kInt:
      return {32, "-DR=uint -DK=uint -DWIDTH=32 -DSIGNED"};
    case at::kUInt32:
      return {32, "-DR=uint -DK=uint -DWIDTH=32"};
    case at::kLong:
      return {64, "-DR=ulong -DK=ulong -DWIDTH=64 -DSIGNED"};
    default:
      TORCH_INTERNAL_ASSERT(type == at::kUInt64, "no order is known of ", c10::toString(type));
      return {64, "-DR=ulong -DK=ulong -DWIDTH=64"};
  }
}

constexpr size_t kGroup = params::SORT_GROUP;

// The state that all launches for one call share. Results may be undefined; kernels then get the source's
// buffer, which they leave alone.
class Rows {
 public:
  Rows(const at::Tensor& rows, const at::Tensor& values, const at::Tensor& indices)
      : rows_(rows),
        values_(values.defined() ? values : rows),
        indices_(indices.defined() ? indices : rows),
        wants_values_(values.defined()),
        wants_indices_(indices.defined()),
        numbers_(numbers_of(rows.scalar_type())),
        stream_(current_stream(rows.device().index())) {}

  void sort_within_groups(const GpuOrder& order, int64_t k) const {
    const at::Tensor& places = order.places.defined() ? order.places : rows_;
    SortRowsParams p = common<SortRowsParams>(order.descending);
    p.places = buffer_of(places).offset;
    p.k = static_cast<uint32_t>(k);
    p.bits = static_cast<uint32_t>(bits(order));
    p.has_places = order.places.defined();
    p.wants_values = wants_values_, p.wants_indices = wants_indices_;
    const bool small = p.n <= params::SORT_SHORT;
    size_t padded = 1;
    while (padded < p.n) padded *= 2;
    const size_t groups = small ? ceil_div<size_t>(p.rows, params::SORT_SHORT / padded) : p.rows;
    kernel("sort/gpu_rows.cl", small ? "dlb_sort_short" : "dlb_sort_block")
        .launch(stream_.queue(), cl::Range::linear(groups, kGroup), mem(rows_), mem(places), mem(values_),
                mem(indices_), p);
  }

  void sort_by_digits(const GpuOrder& order) const {
    RadixParams p = common<RadixParams>(order.descending);
    p.blocks = static_cast<uint32_t>(ceil_div(rows_.size(1), gpu_block(rows_.scalar_type())));
    p.passes = static_cast<uint32_t>(ceil_div(bits(order), int{params::SORT_DIGIT_BITS}));
    const at::Tensor& places = order.places.defined() ? order.places : rows_;
    const int64_t all = int64_t{p.rows} * p.blocks, radix = int64_t{1} << params::SORT_DIGIT_BITS;
    const bool moves = p.passes > 1;
    const at::Tensor keys = moves ? like_rows(rows_.scalar_type()) : rows_,
                     other_keys = p.passes > 2 ? like_rows(rows_.scalar_type()) : keys,
                     places_between = moves ? like_rows(at::kInt) : rows_,
                     other_places = p.passes > 2 ? like_rows(at::kInt) : places_between,
                     counts = ints(all * radix), totals = ints(p.rows * radix),
                     varying = at::empty({p.rows + all},
                                         rows_.options().dtype(numbers_.bits > 32 ? at::kLong : at::kInt));
    p.places = buffer_of(places).offset;
    p.keys = buffer_of(keys).offset, p.other_keys = buffer_of(other_keys).offset;
    p.order = buffer_of(places_between).offset, p.other_order = buffer_of(other_places).offset;
    p.counts = buffer_of(counts).offset, p.totals = buffer_of(totals).offset;
    p.varying = buffer_of(varying).offset;
    p.has_places = order.places.defined();
    p.wants_values = wants_values_, p.wants_indices = wants_indices_;
    const cl::Range blocks = cl::Range::linear(static_cast<size_t>(all), kGroup),
                    digits = cl::Range::linear(static_cast<size_t>(p.rows * radix / params::SORT_SCAN_DIGITS),
                                               kGroup);
    for (; p.pass < p.passes; ++p.pass) {
      kernel("sort/gpu_radix.cl", "dlb_radix_count")
          .launch(stream_.queue(), blocks, mem(rows_), mem(keys), mem(other_keys), mem(counts), mem(varying),
                  p);
      kernel("sort/gpu_radix.cl", "dlb_radix_scan")
          .launch(stream_.queue(), digits, mem(counts), mem(totals), mem(varying), p);
      kernel("sort/gpu_radix.cl", "dlb_radix_move")
          .launch(stream_.queue(), blocks, mem(rows_), mem(places), mem(keys), mem(places_between),
                  mem(other_keys), mem(other_places), mem(values_), mem(indices_), mem(counts), mem(totals),
                  mem(varying), p);
    }
  }

  // The k first, in the order in which they lie, or the one that `pick` says.
  void select(bool descending, int64_t k, std::optional<Pick> pick) const {
    SelectParams p = common<SelectParams>(descending);
    const cl::Device& device = stream_.device();
    p.k = static_cast<uint32_t>(k);
    p.mode = static_cast<int32_t>(pick.value_or(Pick::Kth));
    p.only_last = pick.has_value();
    p.passes = static_cast<uint32_t>(ceil_div(numbers_.bits, int{params::SELECT_DIGIT_BITS}));
    // Enough work-groups to fill the device, of a few thousand elements at least.
    const int64_t wanted = ceil_div<int64_t>(device.compute_units * 8, p.rows);
    const int64_t parts = std::clamp<int64_t>(std::min<int64_t>(wanted, p.n / 4096), 1, params::SELECT_PARTS);
    p.per_part = static_cast<uint32_t>(ceil_div<int64_t>(p.n, parts));
    p.parts = static_cast<uint32_t>(ceil_div<int64_t>(p.n, p.per_part));
    const at::Tensor bins = at::zeros({p.rows * (int64_t{p.passes} * params::SELECT_BINS + 1)},
                                      rows_.options().dtype(at::kInt)),
                     state =
                         at::empty({p.rows * (int64_t{p.passes} + 1) * 2}, rows_.options().dtype(at::kLong)),
                     tallies = ints(int64_t{p.rows} * p.parts * 2);
    p.bins = buffer_of(bins).offset, p.state = buffer_of(state).offset;
    p.tallies = buffer_of(tallies).offset;
    const cl::Range range = cl::Range::linear(size_t{p.rows} * p.parts, kGroup);
    kernel("sort/gpu_select.cl", "dlb_select_begin").launch(stream_.queue(), range, mem(rows_), mem(bins), p);
    for (p.pass = 1; p.pass < p.passes; ++p.pass)
      kernel("sort/gpu_select.cl", "dlb_select_count")
          .launch(stream_.queue(), range, mem(rows_), mem(bins), mem(state), p);
    kernel("sort/gpu_select.cl", "dlb_select_tally")
        .launch(stream_.queue(), range, mem(rows_), mem(bins), mem(state), mem(tallies), p);
    kernel("sort/gpu_select.cl", "dlb_select_take")
        .launch(stream_.queue(), range, mem(rows_), mem(state), mem(tallies), mem(values_), mem(indices_), p);
  }

 private:
  // The members that the kernels' arguments have in common.
  template <class P>
  P common(bool descending) const {
    P p{};
    p.from = buffer_of(rows_).offset;
    p.values = buffer_of(values_).offset;
    p.indices = buffer_of(indices_).offset;
    p.flip = descending ? ~uint64_t{0} : 0;
    p.rows = static_cast<uint32_t>(rows_.size(0));
    p.n = static_cast<uint32_t>(rows_.size(1));
    p.wide = indices_.scalar_type() == at::kLong;
    return p;
  }
  int bits(const GpuOrder& order) const {
    return order.bits ? std::min(order.bits, numbers_.bits) : numbers_.bits;
  }
  at::Tensor like_rows(at::ScalarType type) const {
    return at::empty(rows_.sizes(), rows_.options().dtype(type));
  }
  at::Tensor ints(int64_t n) const { return at::empty({n}, rows_.options().dtype(at::kInt)); }
  cl_mem mem(const at::Tensor& tensor) const { return buffer_of(tensor).mem; }
  cl::Kernel& kernel(const char* file, const char* name) const {
    return fetch_kernel(stream_.device(), file, name, codegen::DType::U8, {}, numbers_.options);
  }

  const at::Tensor rows_, values_, indices_;
  const bool wants_values_, wants_indices_;
  const Numbers numbers_;
  Stream& stream_;
};

// Rows whose bins for selection take a few dozen megabytes together.
int64_t rows_at_once(const at::Tensor& rows) {
  const int passes = ceil_div(numbers_of(rows.scalar_type()).bits, int{params::SELECT_DIGIT_BITS});
  return (int64_t{32} << 20) / (int64_t{4} * params::SELECT_BINS * passes);
}

// The k first of long rows: selected, then sorted.
void sort_selected(const at::Tensor& rows, const GpuOrder& order, const at::Tensor& values,
                   const at::Tensor& indices, int64_t k) {
  const int64_t count = rows.size(0), step = rows_at_once(rows);
  for (int64_t first = 0; first < count; first += step) {
    const int64_t now = std::min(step, count - first);
    const auto part = [&](const at::Tensor& t) { return t.defined() ? t.narrow(0, first, now) : t; };
    const at::Tensor chosen = at::empty({now, k}, rows.options()),
                     places = at::empty({now, k}, rows.options().dtype(at::kInt));
    Rows(part(rows), chosen, places).select(order.descending, k, std::nullopt);
    gpu_sort_rows(chosen, {order.descending, order.bits, places}, part(values), part(indices));
  }
}

void check_sizes(const at::Tensor& rows) {
  TORCH_CHECK(rows.size(0) < (int64_t{1} << 31) && rows.size(1) < (int64_t{1} << 31),
              "sorting 2^31 or more elements is not supported");
}

}  // namespace

int64_t gpu_block(at::ScalarType type) {
  return kGroup * (numbers_of(type).bits > 32 ? params::SORT_ITEMS_WIDE : params::SORT_ITEMS);
}

void gpu_sort_rows(const at::Tensor& rows, const GpuOrder& order, const at::Tensor& values,
                   const at::Tensor& indices) {
  check_sizes(rows);
  const int64_t n = rows.size(1), k = values.defined() ? values.size(1) : indices.size(1);
  if (rows.size(0) == 0 || k == 0) return;
  if (n <= gpu_block(rows.scalar_type())) return Rows(rows, values, indices).sort_within_groups(order, k);
  if (k == n) return Rows(rows, values, indices).sort_by_digits(order);
  TORCH_INTERNAL_ASSERT(!order.places.defined());
  if (k <= n / 2) return sort_selected(rows, order, values, indices, k);
  const auto whole = [&](const at::Tensor& t) {
    return t.defined() ? at::empty(rows.sizes(), t.options()) : t;
  };
  const at::Tensor all_values = whole(values), all_indices = whole(indices);
  Rows(rows, all_values, all_indices).sort_by_digits(order);
  if (values.defined()) values.copy_(all_values.narrow(1, 0, k));
  if (indices.defined()) indices.copy_(all_indices.narrow(1, 0, k));
}

void gpu_pick_rows(const at::Tensor& rows, Pick pick, int64_t k, const at::Tensor& values,
                   const at::Tensor& indices) {
  check_sizes(rows);
  const int64_t count = rows.size(0), step = rows_at_once(rows);
  for (int64_t first = 0; first < count; first += step) {
    const int64_t now = std::min(step, count - first);
    Rows(rows.narrow(0, first, now), values.narrow(0, first, now), indices.narrow(0, first, now))
        .select(false, k, pick);
  }
}

}  // namespace dlb
