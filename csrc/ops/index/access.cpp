// Launches the walk of csrc/kernels/index/access.cl: merges dimensions, widens elements, splits at 32 bits.
#include "ops/index/access.h"

#include <ATen/EmptyTensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>

#include <optional>

#include "codegen/pointwise.h"
#include "kernels/index/params.h"
#include "primitives/common/split.h"
#include "runtime/fetch_kernel.h"
#include "runtime/tensor.h"

namespace dlb {
namespace {

using params::INDEX, params::INDEXED, params::PLAIN, params::SIDES;
using Walk = params::IndexWalk;
constexpr uint32_t kRank = params::INDEX_RANK;

// Dimensions innermost first, merged where all sides allow.
struct Dims {
  struct Dim {
    int64_t size, stride[SIDES];
  };
  c10::SmallVector<Dim, 8> dims;
  int64_t base[SIDES];

  int64_t count() const {
    int64_t n = 1;
    for (const Dim& d : dims) n *= d.size;
    return n;
  }
};

bool mergeable(const Dims::Dim& inner, const Dims::Dim& outer) {
  for (int s = 0; s < SIDES; ++s)
    if (outer.stride[s] != inner.stride[s] * inner.size) return false;
  return true;
}

Dims collect(const IndexAccess& a) {
  Dims all{};
  for (size_t i = a.sizes.size(); i-- > 0;) {
    if (a.sizes[i] == 1) continue;
    const Dims::Dim dim{
        a.sizes[i], {a.plain_strides[i], a.indexed_strides[i], a.index.defined() ? a.index_strides[i] : 0}};
    if (!all.dims.empty() && mergeable(all.dims.back(), dim))
      all.dims.back().size *= dim.size;
    else
      all.dims.push_back(dim);
  }
  if (all.dims.empty()) all.dims.push_back({1, {0, 0, 0}});
  return all;
}

// GPU: takes 2, 4 ... neighbours as one element of up to 16 bytes where whole rows move.
size_t widen(Dims& all, int64_t& step, size_t bytes) {
  for (int64_t f = static_cast<int64_t>(16 / bytes); f > 1; f /= 2) {
    Dims::Dim& row = all.dims[0];
    bool fits = row.stride[INDEX] == 0 && row.size % f == 0 && step % f == 0;
    for (int s = 0; s < INDEX && fits; ++s) {
      fits = row.stride[s] == 1 && all.base[s] % f == 0;
      for (size_t d = 1; d < all.dims.size(); ++d) fits &= all.dims[d].stride[s] % f == 0;
    }
    if (!fits) continue;
    row.size /= f;
    step /= f;
    for (int s = 0; s < INDEX; ++s) {
      all.base[s] /= f;
      for (size_t d = 1; d < all.dims.size(); ++d) all.dims[d].stride[s] /= f;
    }
    return bytes * static_cast<size_t>(f);
  }
  return bytes;
}

void fill_walk(Walk& w, const Dims& all) {
  w.rank = static_cast<uint32_t>(all.dims.size());
  w.count = static_cast<uint32_t>(all.count());
  for (int s = 0; s < SIDES; ++s) w.base[s] = all.base[s];
  for (uint32_t d = 0; d < w.rank; ++d) {
    w.size[d] = codegen::make_divider(static_cast<uint32_t>(all.dims[d].size));
    for (int s = 0; s < SIDES; ++s) w.stride[s][d] = all.dims[d].stride[s];
  }
}

// Calls `launch` for parts that the kernel can take: at most kRank dimensions and 2^31 - 1 elements.
template <class Launch>
void for_each_part(Dims& all, const Launch& launch) {
  constexpr int64_t kMost = (int64_t{1} << 31) - 1;
  const int64_t count = all.count();
  if (count <= kMost && all.dims.size() <= kRank) return launch(all);
  const Dims::Dim outer = all.dims.back();
  const int64_t inner = count / outer.size;
  const int64_t part = all.dims.size() > kRank ? 1 : std::max<int64_t>(1, kMost / inner);
  for (int64_t k = 0; k < outer.size; k += part) {
    Dims some = all;
    some.dims.back().size = std::min(part, outer.size - k);
    for (int s = 0; s < SIDES; ++s) some.base[s] += k * outer.stride[s];
    if (some.dims.back().size == 1 && some.dims.size() > 1) some.dims.pop_back();
    for_each_part(some, launch);
  }
}

// The work-items of a walk. On GPUs those of a large one have INDEX_TOGETHER elements each, where all
// work-items that run at once still have some.
Split split_moves(const cl::Device& device, uint32_t count, const IndexAccess& a) {
  if (device.cls == cl::DeviceClass::kCpu)
    return split_work(device, count, a.ordered ? ~0u : a.index.defined() ? 2048 : 8192);
  constexpr uint32_t kTogether = params::INDEX_TOGETHER, kItemsAtOnce = 2048;  // of a compute unit
  if (count / kTogether < device.compute_units * kItemsAtOnce / 2) return split_work(device, count);
  return {split_work(device, (count + kTogether - 1) / kTogether).range, kTogether};
}

// The part of an access that the walks along a dimension share.
IndexAccess access_along(const at::Tensor& plain, const at::Tensor& indexed, const at::Tensor& index,
                         size_t dim, int32_t site) {
  IndexAccess access;
  access.plain = plain;
  access.indexed = indexed;
  access.index = index;
  access.plain_strides = plain.strides();
  access.indexed_strides = indexed.strides();
  access.indexed_strides[dim] = 0;
  access.bound = indexed.sizes()[dim];
  access.step = indexed.strides()[dim];
  access.site = site;
  return access;
}

}  // namespace

const char* width_option(size_t bytes) {
  switch (bytes) {
    case 1:
      return "-DE=uchar";
    case 2:
      return "-DE=ushort";
    case 4:
      return "-DE=uint";
    case 8:
      return "-DE=ulong";
    default:
      return "-DE=uint4";
  }
}

at::Tensor at_least_1d(const at::Tensor& t) {
  return t.dim() == 0 ? t.view({1}) : t;
}

void check_same_device(const at::Tensor& a, const at::Tensor& b, const char* op) {
  TORCH_CHECK(a.device() == b.device(), op, *op ? ": " : "",
              "Expected all tensors to be on the same device, but found at least two devices, ", a.device(),
              " and ", b.device(), "!");
}

int32_t index_error_site(const char* op, bool is_index) {
  return register_error_site({op, kIndexMessage, is_index});
}

IndexAccess access_elements(const at::Tensor& plain, const at::Tensor& indexed, const at::Tensor& index,
                            size_t dim, int32_t site) {
  IndexAccess access = access_along(plain, indexed, index, dim, site);
  access.sizes = index.sizes();
  access.index_strides = index.strides();
  return access;
}

IndexAccess access_slices(const at::Tensor& plain, const at::Tensor& indexed, const at::Tensor& index,
                          size_t dim, int32_t site) {
  IndexAccess access = access_along(plain, indexed, index, dim, site);
  access.sizes = plain.sizes();
  access.index_strides = at::DimVector(access.sizes.size(), 0);
  access.index_strides[dim] = index.stride(0);
  return access;
}

void run_index_access(const IndexAccess& a) {
  Dims all = collect(a);
  if (all.count() == 0) return;
  Stream& stream = current_stream(a.plain.device().index());
  cl::Device& device = stream.device();
  const Buffer plain = buffer_of(a.plain), indexed = buffer_of(a.indexed);
  const Buffer index = a.index.defined() ? buffer_of(a.index) : Buffer{plain.mem, 0};
  all.base[PLAIN] = plain.offset;
  all.base[INDEXED] = indexed.offset + a.indexed_offset;
  all.base[INDEX] = index.offset;
  Walk w{};
  w.bound = a.bound;
  w.indexed = a.index.defined();
  w.step = a.step;
  w.wide = a.index.defined() && a.index.scalar_type() == at::kLong;
  w.wraps = a.wraps, w.write = a.write, w.site = a.site;
  size_t bytes = a.plain.itemsize();
  if (device.cls == cl::DeviceClass::kGpu) bytes = widen(all, w.step, bytes);
  cl::Kernel& kernel =
      fetch_kernel(device, "index/access.cl", "dlb_index_move", codegen::DType::U8, {}, width_option(bytes));
  std::optional<ErrorBuffer> errors;
  if (a.index.defined()) errors.emplace(stream);
  const cl_mem error = errors ? errors->mem() : plain.mem;
  for_each_part(all, [&](const Dims& part) {
    fill_walk(w, part);
    const Split split = split_moves(device, w.count, a);
    w.per_item = split.per_item;
    kernel.launch(stream.queue(), split.range, plain.mem, indexed.mem, index.mem, error, w);
  });
}

void check_range(const at::Tensor& numbers, int64_t bound, int32_t site) {
  IndexAccess a;  // with a step of 0: whatever is in range reads the first element
  a.plain = at::empty_like(numbers, at::MemoryFormat::Contiguous);
  a.indexed = a.index = numbers;
  a.sizes = numbers.sizes();
  a.plain_strides = a.plain.strides(), a.indexed_strides = {0}, a.index_strides = numbers.strides();
  a.bound = bound;
  a.site = site;
  run_index_access(a);
}

at::Tensor linear_offsets(at::TensorList indices, at::IntArrayRef bounds, at::IntArrayRef steps,
                          int32_t site) {
  const at::Tensor& shape = indices[0];
  at::Tensor offsets = at::empty(shape.sizes(), shape.options().dtype(at::kLong));
  if (offsets.numel() == 0) return offsets;
  TORCH_CHECK(offsets.numel() < (int64_t{1} << 31),
              "indexing with 2^31 or more elements of index is not supported");
  Stream& stream = current_stream(shape.device().index());
  cl::Kernel& kernel = fetch_kernel(stream.device(), "index/access.cl", "dlb_index_linear",
                                    codegen::DType::U8, {}, width_option(4));
  const Buffer out = buffer_of(offsets);
  for (size_t i = 0; i < indices.size(); ++i) {
    IndexAccess a;
    a.index = indices[i];
    a.sizes = offsets.sizes();
    a.plain_strides = a.indexed_strides = offsets.strides();
    a.index_strides = indices[i].strides();
    Dims all = collect(a);
    TORCH_CHECK(all.dims.size() <= kRank, "index tensors of more than ", kRank,
                " dimensions are not supported");
    const Buffer index = buffer_of(indices[i]);
    all.base[PLAIN] = all.base[INDEXED] = out.offset;
    all.base[INDEX] = index.offset;
    Walk w{};
    w.bound = bounds[i], w.step = steps[i], w.site = site, w.indexed = 1;
    w.wide = indices[i].scalar_type() == at::kLong;
    w.wraps = 1;
    fill_walk(w, all);
    const Split split = split_work(stream.device(), w.count, 2048);
    w.per_item = split.per_item;
    kernel.launch(stream.queue(), split.range, out.mem, index.mem, ErrorBuffer(stream).mem(), w,
                  static_cast<int32_t>(i == 0));
  }
  return offsets;
}

}  // namespace dlb
