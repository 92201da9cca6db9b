// nonzero and what is made of it: masked_select, masked_scatter, boolean indexing.
#include "ops/index/compact.h"

#include <ATen/ExpandUtils.h>
#include <ATen/MemoryOverlap.h>
#include <ATen/native/Resize.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>

#include "kernels/index/params.h"
#include "ops/index/access.h"
#include "runtime/fetch_kernel.h"
#include "runtime/tensor.h"

namespace dlb {
namespace {

constexpr size_t kDims = params::COORDINATE_RANK;

constexpr const char* kFile = "index/compact.cl";

cl::Kernel& kernel(cl::Device& device, const char* name) {
  return fetch_kernel(device, kFile, name, codegen::DType::U8, {});
}

// A contiguous mask cut into runs, with the number of true elements before each run.
struct Runs {
  at::Tensor mask;
  at::Tensor counts;  // int32 [1, runs + 1]
  uint32_t count = 0, per_run = 1;

  explicit Runs(const at::Tensor& values) {
    const at::Tensor truth = values.scalar_type() == at::kBool ? values : values.ne(0);
    TORCH_CHECK(truth.numel() < (int64_t{1} << 31), "nonzero of 2^31 or more elements is not supported");
    mask = truth.contiguous();
    count = static_cast<uint32_t>(mask.numel());
    if (count == 0) return;
    Stream& stream = current_stream(mask.device().index());
    cl::Device& device = stream.device();
    const uint32_t most = device.compute_units * 4;
    per_run = device.cls == cl::DeviceClass::kGpu ? params::SCAN_GROUP * params::RUN_ITEMS
                                                  : std::max(8192u, (count + most - 1) / most);
    const int64_t runs = (int64_t{count} + per_run - 1) / per_run;
    counts = at::empty({1, runs + 1}, mask.options().dtype(at::kInt));
    const Buffer from = buffer_of(mask), to = buffer_of(counts);
    kernel(device, "dlb_count_true")
        .launch(stream.queue(), range(device), from.mem, from.offset, count, per_run, to.mem, to.offset);
    exclusive_scan(counts);
  }

  cl::Range range(const cl::Device& device) const {
    const size_t runs = (size_t{count} + per_run - 1) / per_run;
    if (device.cls == cl::DeviceClass::kCpu) return cl::Range::linear(runs, 1);
    return cl::Range::linear(runs, params::SCAN_GROUP);
  }

  int64_t total() const { return count == 0 ? 0 : counts.select(1, -1).item<int32_t>(); }

  // Writes the coordinates within `sizes` of the first `limit` true elements to out [elements, dims].
  void write(const at::Tensor& out, at::IntArrayRef sizes, int64_t limit) const {
    if (count == 0 || limit == 0 || sizes.empty()) return;
    Stream& stream = current_stream(mask.device().index());
    params::Coordinates c{};
    c.dims = static_cast<uint32_t>(sizes.size());
    for (size_t d = 0; d < sizes.size(); ++d) c.size[d] = sizes[sizes.size() - 1 - d];
    const Buffer from = buffer_of(mask), before = buffer_of(counts), to = buffer_of(out);
    c.out_offset = to.offset;
    c.element_stride = out.stride(0);
    c.dim_stride = out.dim() > 1 ? out.stride(1) : 0;
    kernel(stream.device(), "dlb_true_positions")
        .launch(stream.queue(), range(stream.device()), from.mem, from.offset, count, per_run, before.mem,
                before.offset, to.mem, c, limit);
  }
};

// The kernel divides by up to kDims sizes; the coordinates of more dimensions follow from linear positions.
void write_coordinates(const Runs& runs, const at::Tensor& out, at::IntArrayRef sizes, int64_t limit) {
  if (sizes.size() <= kDims) return runs.write(out, sizes, limit);
  if (out.numel() == 0) return;
  const int64_t written = std::min(limit, runs.total());
  const at::Tensor positions = at::empty({written}, out.options());
  runs.write(positions, {runs.mask.numel()}, written);
  int64_t inner = 1;
  for (size_t d = sizes.size(); d-- > 0;) {
    out.select(1, static_cast<int64_t>(d))
        .narrow(0, 0, written)
        .copy_(positions.div(inner, "floor").remainder_(sizes[d]));
    inner *= sizes[d];
  }
}

at::Tensor& nonzero_out(const at::Tensor& self, at::Tensor& out) {
  TORCH_CHECK(out.scalar_type() == at::kLong,
              "nonzero: Expected out tensor to have scalar type Long but got scalar type ",
              out.scalar_type());
  check_same_device(out, self);
  at::assert_no_internal_overlap(out);
  at::assert_no_overlap(out, self);
  const c10::DeviceGuard guard(self.device());
  const Runs runs(self);
  const int64_t total = runs.total();
  // As on the CPU one dimension's coordinates lie together, so that taking one of them needs no copy.
  if (at::native::resize_output(out, {total, self.dim()})) out.as_strided_(out.sizes(), {1, total});
  write_coordinates(runs, out, self.sizes(), total);
  return out;
}

at::Tensor nonzero(const at::Tensor& self) {
  at::Tensor out = at::empty({0}, self.options().dtype(at::kLong));
  nonzero_out(self, out);
  return out;
}

at::Tensor& nonzero_static_out(const at::Tensor& self, int64_t size, int64_t fill_value, at::Tensor& out) {
  TORCH_CHECK(size >= 0, "nonzero_static: 'size' must be an non-negative integer");
  TORCH_CHECK(out.scalar_type() == at::kLong,
              "nonzero_static: Expected out tensor to have scalar type Long but got "
              "scalar type ",
              out.scalar_type());
  const c10::DeviceGuard guard(self.device());
  at::native::resize_output(out, {size, self.dim()});
  out.fill_(fill_value);
  if (out.numel() > 0 && self.numel() > 0) write_coordinates(Runs(self), out, self.sizes(), size);
  return out;
}

at::Tensor nonzero_static(const at::Tensor& self, int64_t size, int64_t fill_value) {
  at::Tensor out = at::empty({0}, self.options().dtype(at::kLong));
  nonzero_static_out(self, size, fill_value, out);
  return out;
}

// A walk over `positions`, which are linear in the contiguous `indexed`.
IndexAccess linear_access(const at::Tensor& plain, const at::Tensor& indexed, const at::Tensor& positions) {
  IndexAccess access;
  access.plain = plain;
  access.indexed = indexed;
  access.index = positions;
  access.sizes = positions.sizes();
  access.plain_strides = plain.strides();
  access.indexed_strides = at::DimVector(1, 0);
  access.index_strides = positions.strides();
  access.bound = indexed.numel();
  access.step = 1;
  return access;
}

at::Tensor& masked_select_out(const at::Tensor& self, const at::Tensor& mask, at::Tensor& out) {
  TORCH_CHECK(mask.scalar_type() == at::kBool, "masked_select: expected BoolTensor for mask");
  check_same_device(self, mask);
  TORCH_CHECK(self.scalar_type() == out.scalar_type(),
              "masked_select(): self and result must have the same scalar type");
  TORCH_CHECK_NOT_IMPLEMENTED(!c10::isBarebonesUnsignedType(self.scalar_type()),
                              "\"masked_select\" not implemented for '", c10::toString(self.scalar_type()),
                              "'");
  at::assert_no_internal_overlap(out);
  at::assert_no_overlap(out, self);
  at::assert_no_overlap(out, mask);
  const c10::DeviceGuard guard(self.device());
  const auto [wide_mask, wide_self] = at::expand_outplace(mask, self);
  const at::Tensor positions = true_positions(*wide_mask);
  at::native::resize_output(out, positions.sizes());
  if (out.numel() > 0)
    run_index_access(linear_access(out, wide_self->resolve_conj().resolve_neg().contiguous(), positions));
  return out;
}

at::Tensor masked_select(const at::Tensor& self, const at::Tensor& mask) {
  at::Tensor out = at::empty({0}, self.options());
  masked_select_out(self, mask, out);
  return out;
}

at::Tensor& masked_scatter_(at::Tensor& self, const at::Tensor& mask, const at::Tensor& source) {
  TORCH_CHECK(self.scalar_type() == source.scalar_type(),
              "masked_scatter: expected self and source to have same dtypes "
              "but got ",
              self.scalar_type(), " and ", source.scalar_type());
  check_same_device(self, source);
  TORCH_CHECK(mask.scalar_type() == at::kBool,
              "masked_scatter_ only supports boolean masks, but got mask with dtype ", mask.scalar_type());
  at::assert_no_internal_overlap(self);
  const c10::DeviceGuard guard(self.device());
  const auto wide = at::expand_inplace(self, mask, "masked_scatter_");
  const at::Tensor positions = true_positions(*wide);
  TORCH_CHECK(source.numel() >= positions.numel(),
              "masked_scatter: expected the source to have at least as many "
              "elements as the mask has ones: Number of elements of source < number of ones in mask");
  if (positions.numel() == 0) return self;
  const at::Tensor dense = self.contiguous();
  const at::Tensor values = source.contiguous().view({-1});
  IndexAccess access = linear_access(values, dense, positions);
  access.write = true;
  run_index_access(access);
  if (!dense.is_same(self)) self.copy_(dense);
  return self;
}

}  // namespace

at::Tensor true_positions(const at::Tensor& mask) {
  const Runs runs(mask);
  const int64_t total = runs.total();
  at::Tensor out = at::empty({total}, mask.options().dtype(at::kLong));
  runs.write(out, {mask.numel()}, total);
  return out;
}

void exclusive_scan(const at::Tensor& rows) {
  Stream& stream = current_stream(rows.device().index());
  const auto length = static_cast<uint32_t>(rows.size(1) - 1);
  const Buffer data = buffer_of(rows);
  const size_t local = stream.device().cls == cl::DeviceClass::kCpu ? 1 : size_t{params::SCAN_GROUP};
  kernel(stream.device(), "dlb_scan")
      .launch(stream.queue(), cl::Range::linear(static_cast<size_t>(rows.size(0)), local), data.mem,
              data.offset, length, rows.stride(0));
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("nonzero", nonzero);
  m.impl("nonzero.out", nonzero_out);
  m.impl("nonzero_static", nonzero_static);
  m.impl("nonzero_static.out", nonzero_static_out);
  m.impl("masked_select", masked_select);
  m.impl("masked_select.out", masked_select_out);
  m.impl("masked_scatter_", masked_scatter_);
}

}  // namespace dlb
