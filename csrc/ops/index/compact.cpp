// nonzero and what is made of it: masked_select, masked_scatter, boolean indexing.
#include "ops/index/compact.h"

#include <ATen/ExpandUtils.h>
#include <ATen/MemoryOverlap.h>
#include <ATen/native/Resize.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>

#include "ops/fallback.h"
#include "ops/index/access.h"
#include "runtime/family.h"
#include "runtime/tensor.h"

namespace dlb {
namespace {

constexpr size_t kDims = 16;  // DIMS of the kernel

// As the kernel declares it.
struct Coordinates {
  int64_t size[kDims];
  int64_t out_offset, element_stride, dim_stride;
  uint32_t dims, padding;
};

constexpr const char* kFile = "index/compact.cl";

cl::Kernel& kernel(cl::Device& device, const char* name) {
  return family_kernel(device, kFile, name, codegen::DType::U8, {});
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
    per_run = device.cls == cl::DeviceClass::kGpu ? 32 : std::max(8192u, (count + most - 1) / most);
    const int64_t runs = (int64_t{count} + per_run - 1) / per_run;
    counts = at::empty({1, runs + 1}, mask.options().dtype(at::kInt));
    const Operand from = operand_of(mask), to = operand_of(counts);
    kernel(device, "dlb_count_true")
        .launch(stream.queue(), range(device), from.mem, from.offset, count, per_run, to.mem, to.offset);
    exclusive_scan(counts);
  }

  cl::Range range(const cl::Device& device) const {
    const size_t runs = (size_t{count} + per_run - 1) / per_run;
    if (device.cls == cl::DeviceClass::kCpu) return cl::Range::linear(runs, 1);
    return cl::Range::linear((runs + 255) / 256, 256);
  }

  int64_t total() const { return count == 0 ? 0 : counts.select(1, -1).item<int32_t>(); }

  // Writes the coordinates within `sizes` of the first `limit` true elements to out [elements, dims].
  void write(const at::Tensor& out, at::IntArrayRef sizes, int64_t limit) const {
    if (count == 0 || limit == 0 || sizes.empty()) return;
    Stream& stream = current_stream(mask.device().index());
    Coordinates c{};
    c.dims = static_cast<uint32_t>(sizes.size());
    for (size_t d = 0; d < sizes.size(); ++d) c.size[d] = sizes[sizes.size() - 1 - d];
    const Operand from = operand_of(mask), before = operand_of(counts), to = operand_of(out);
    c.out_offset = to.offset;
    c.element_stride = out.stride(0);
    c.dim_stride = out.dim() > 1 ? out.stride(1) : 0;
    kernel(stream.device(), "dlb_true_positions")
        .launch(stream.queue(), range(stream.device()), from.mem, from.offset, count, per_run, before.mem,
                before.offset, to.mem, c, limit);
  }
};

at::Tensor& nonzero_out(const at::Tensor& self, at::Tensor& out) {
  TORCH_CHECK(out.scalar_type() == at::kLong,
              "nonzero: Expected out tensor to have scalar type Long but got scalar type ",
              out.scalar_type());
  TORCH_CHECK(out.device() == self.device(),
              "Expected all tensors to be on the same device, but found at least two "
              "devices, ",
              out.device(), " and ", self.device(), "!");
  if (self.dim() > static_cast<int64_t>(kDims))
    return call_cpu_fallback<at::Tensor&, const at::Tensor&, at::Tensor&>("aten::nonzero", "out", self, out);
  at::assert_no_internal_overlap(out);
  at::assert_no_overlap(out, self);
  const c10::DeviceGuard guard(self.device());
  const Runs runs(self);
  const int64_t total = runs.total();
  at::native::resize_output(out, {total, self.dim()});
  runs.write(out, self.sizes(), total);
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
  TORCH_CHECK(self.dim() <= static_cast<int64_t>(kDims), "nonzero_static: more than ", kDims, " dimensions");
  const c10::DeviceGuard guard(self.device());
  at::native::resize_output(out, {size, self.dim()});
  out.fill_(fill_value);
  if (out.numel() > 0 && self.numel() > 0) Runs(self).write(out, self.sizes(), size);
  return out;
}

at::Tensor nonzero_static(const at::Tensor& self, int64_t size, int64_t fill_value) {
  at::Tensor out = at::empty({0}, self.options().dtype(at::kLong));
  nonzero_static_out(self, size, fill_value, out);
  return out;
}

void check_mask(const at::Tensor& self, const at::Tensor& mask, const char* op) {
  TORCH_CHECK(mask.scalar_type() == at::kByte || mask.scalar_type() == at::kBool, op,
              ": expected BoolTensor or ByteTensor for mask");
  TORCH_CHECK(self.device() == mask.device(),
              "Expected all tensors to be on the same device, but found at least two "
              "devices, ",
              self.device(), " and ", mask.device(), "!");
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
  check_mask(self, mask, "masked_select");
  TORCH_CHECK(self.scalar_type() == out.scalar_type(),
              "masked_select(): self and result must have the same scalar type");
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
  TORCH_CHECK(self.device() == source.device(),
              "Expected all tensors to be on the same device, but found at least two "
              "devices, ",
              self.device(), " and ", source.device(), "!");
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
  const Operand data = operand_of(rows);
  const size_t local = stream.device().cls == cl::DeviceClass::kCpu ? 1 : 256;
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
