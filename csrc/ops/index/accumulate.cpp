// Chooses between owned ranges (CPUs), atomics and sorted segments (GPUs) for accumulation through indices.
#include "ops/index/accumulate.h"

#include <ATen/Context.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>

#include <array>
#include <bit>
#include <limits>

#include "ops/sort/rows_gpu.h"
#include "primitives/common/atomic.h"
#include "primitives/common/split.h"
#include "runtime/fetch_kernel.h"
#include "runtime/tensor.h"

namespace dlb {
namespace {

using codegen::DClass;
using codegen::DType;

using Params = params::AccumulateParams;

// Contiguous operands of one call: target [outer, bound, inner], source [outer, n, inner].
struct Job {
  at::Tensor target, source, index;
  Params p{};
};

cl::Kernel& kernel_for(const Job& job, cl::Device& device, const char* name) {
  const DType dst = storage_dtype_of(job.target.scalar_type(), name),
              src = storage_dtype_of(job.source.scalar_type(), name);
  check_device_supports(device, dst, name);
  return fetch_kernel(device, "index/accumulate.cl", name, codegen::compute_type(dst), {dst, src},
                      atomic_options(device, dst));
}

// The same of the kernels for indices that have been sorted, as numbers of type `key`.
cl::Kernel& sorted_kernel_for(const Job& job, cl::Device& device, const char* name, DType key) {
  const DType dst = storage_dtype_of(job.target.scalar_type(), name),
              src = storage_dtype_of(job.source.scalar_type(), name);
  check_device_supports(device, dst, name);
  return fetch_kernel(device, "index/accumulate.cl", name, codegen::compute_type(dst), {dst, src, key},
                      atomic_options(device, dst));
}

// Work-items own outer slices where there are enough, else columns. Else they share the indices and have a
// copy of the target each, where that is small, or they own rows of the target and all go through all
// indices.
void divide(Params& p, uint32_t units) {
  const uint64_t work = uint64_t{p.outer} * p.n * p.inner;
  const auto items = static_cast<uint32_t>(std::clamp<uint64_t>(work / 4096, 1, uint64_t{units} * 2));
  p.outer_parts = std::min(p.outer, items);
  p.inner_parts = p.bound_parts = p.copy_parts = 1;
  const uint32_t rest = items / p.outer_parts;
  if (rest <= 1) return;
  if (p.inner >= 16 * rest) {
    p.inner_parts = rest;
    return;
  }
  const uint64_t cells = uint64_t{p.outer} * static_cast<uint64_t>(p.bound) * p.inner;
  const auto copies =
      std::min<uint64_t>(units, std::max<uint64_t>(1, work / 8 / std::max<uint64_t>(1, cells)));
  if (copies > 1 || units == 1) {
    p.outer_parts = 1;
    p.copy_parts = static_cast<uint32_t>(std::min<uint64_t>(copies, p.n));
  } else {
    p.bound_parts = static_cast<uint32_t>(std::clamp<int64_t>(p.bound, 1, std::min(rest, units)));
  }
}

void run_owned(Job& job, Stream& stream) {
  Params& p = job.p;
  divide(p, stream.device().compute_units);
  const auto cells = static_cast<int64_t>(uint64_t{p.outer} * static_cast<uint64_t>(p.bound) * p.inner);
  at::Tensor copies = job.target;
  if (p.copy_parts > 1) copies = at::empty({(p.copy_parts - 1) * cells}, job.target.options());
  const Buffer target = buffer_of(job.target), more = buffer_of(copies);
  p.perm_offset = more.offset;
  const size_t items = size_t{p.outer_parts} * p.inner_parts * p.bound_parts * p.copy_parts;
  kernel_for(job, stream.device(), "dlb_accumulate")
      .launch(stream.queue(), cl::Range::linear(items, 1), target.mem, more.mem, buffer_of(job.source).mem,
              buffer_of(job.index).mem, ErrorBuffer(stream).mem(), p);
  if (p.copy_parts == 1) return;
  const Split split = split_work(stream.device(), static_cast<uint64_t>(cells));
  kernel_for(job, stream.device(), "dlb_accumulate_merge")
      .launch(stream.queue(), split.range, target.mem, more.mem, p, split.per_item);
}

cl::Range all_elements(const Params& p) {
  const uint64_t work = uint64_t{p.outer} * p.n * p.inner;
  return cl::Range::linear((work + 255) / 256, 256);
}

void run_atomic(Job& job, Stream& stream) {
  kernel_for(job, stream.device(), "dlb_accumulate")
      .launch(stream.queue(), all_elements(job.p), buffer_of(job.target).mem, buffer_of(job.source).mem,
              buffer_of(job.index).mem, ErrorBuffer(stream).mem(), job.p);
}

void run_sorted(Job& job, Stream& stream) {
  Params& p = job.p;
  const bool wide = p.bound >= std::numeric_limits<int32_t>::max();
  const auto options = job.index.options();
  const DType key_type = wide ? DType::I64 : DType::I32;
  const int64_t lines = p.full ? int64_t{p.outer} * p.inner : 1;
  const at::Tensor keys = at::empty({lines, p.n}, options.dtype(wide ? at::kLong : at::kInt)),
                   sorted = at::empty_like(keys), perm = at::empty({lines, p.n}, options.dtype(at::kInt));
  const Buffer key = buffer_of(keys), in_order = buffer_of(sorted), from = buffer_of(perm);
  const size_t all = static_cast<size_t>(keys.numel());
  sorted_kernel_for(job, stream.device(), "dlb_index_keys", key_type)
      .launch(stream.queue(), cl::Range::linear((all + 255) / 256, 256), buffer_of(job.index).mem, key.mem,
              key.offset, ErrorBuffer(stream).mem(), p);
  GpuOrder order;
  order.bits = static_cast<int>(std::bit_width(static_cast<uint64_t>(p.bound)));
  gpu_sort_rows(keys, order, sorted, perm);
  p.index_offset = in_order.offset;
  p.perm_offset = from.offset;
  sorted_kernel_for(job, stream.device(), "dlb_accumulate_sorted", key_type)
      .launch(stream.queue(), all_elements(p), buffer_of(job.target).mem, buffer_of(job.source).mem,
              in_order.mem, from.mem, p);
}

// Atomics combine in any order, which only shows where rounding depends on it.
bool may_use_atomics(const Job& job, const cl::Device& device, const Accumulation& how) {
  if (how.op == Combine::Last) return false;
  const DType type = storage_dtype_of(job.target.scalar_type(), "accumulate");
  const bool sum = how.op == Combine::Sum && has_native_add(device, type);
  const size_t bytes = codegen::size_of(type);
  if (!sum && (bytes == 16 || (bytes == 8 && !device.int64_atomics))) return false;
  const DClass cls = codegen::class_of(type);
  const bool rounds = (cls == DClass::Float || cls == DClass::Complex) && how.op <= Combine::Product;
  return !rounds || !(how.deterministic || at::globalContext().deterministicAlgorithms());
}

int64_t product(at::IntArrayRef sizes) {
  int64_t n = 1;
  for (int64_t s : sizes) n *= s;
  return n;
}

Job make_job(const at::Tensor& target, int64_t dim, const at::Tensor& index, const at::Tensor& source,
             const Accumulation& how) {
  const auto d = static_cast<size_t>(dim);
  Job job;
  job.target = target;
  job.source = source.contiguous();
  Params& p = job.p;
  const at::IntArrayRef sizes = source.sizes();
  const int64_t outer = product(sizes.slice(0, d)), inner = product(sizes.slice(d + 1));
  TORCH_CHECK(outer < (int64_t{1} << 31) && inner < (int64_t{1} << 31) && sizes[d] < (int64_t{1} << 31),
              "index accumulation over a dimension of 2^31 or more elements is not supported");
  p.outer = static_cast<uint32_t>(outer);
  p.n = static_cast<uint32_t>(sizes[d]);
  p.inner = static_cast<uint32_t>(inner);
  p.bound = target.size(dim);
  p.full = index.dim() > 1 || (source.dim() > 1 && index.sizes() == source.sizes());
  job.index = p.full ? index.contiguous().view({outer, sizes[d], inner}) : index.contiguous().view({-1});
  p.wide = index.scalar_type() == at::kLong;
  p.wraps = how.wraps;
  p.site = how.site;
  p.op = static_cast<int32_t>(how.op);
  p.dst_offset = buffer_of(job.target).offset;
  p.src_offset = buffer_of(job.source).offset;
  p.index_offset = buffer_of(job.index).offset;
  return job;
}

// The part of the target that the source can reach: other dimensions may be larger.
at::Tensor reachable(const at::Tensor& target, int64_t dim, const at::Tensor& source) {
  at::Tensor part = target;
  for (int64_t d = 0; d < target.dim(); ++d)
    if (d != dim && part.size(d) != source.size(d)) part = part.narrow(d, 0, source.size(d));
  return part;
}

// The same bits as integers, where there are any of that size.
at::Tensor bits_of(const at::Tensor& t) {
  constexpr std::array<at::ScalarType, 4> kIntegers = {at::kByte, at::kShort, at::kInt, at::kLong};
  const auto size = static_cast<uint32_t>(t.itemsize());
  return size > 8 ? t : t.view(kIntegers[static_cast<size_t>(std::bit_width(size)) - 1]);
}

}  // namespace

void accumulate(const at::Tensor& target, int64_t dim, const at::Tensor& index, const at::Tensor& source,
                const Accumulation& how) {
  if (source.numel() == 0 || index.numel() == 0) return;
  TORCH_CHECK_INDEX(target.numel() > 0, "index out of range: dimension ", dim, " has no elements");
  if (target.dim() == 0)
    return accumulate(target.view({1}), 0, index.reshape({-1}), source.reshape({-1}), how);
  const bool moves = how.op == Combine::Last;
  const at::Tensor part = reachable(moves ? bits_of(target) : target, dim, source);
  const bool narrow = at::isReducedFloatingType(part.scalar_type());
  const at::Tensor work =
      narrow ? part.to(at::kFloat, false, false, at::MemoryFormat::Contiguous) : part.contiguous();
  Stream& stream = current_stream(target.device().index());
  Job job = make_job(work, dim, index, moves ? bits_of(source) : source, how);
  if (stream.device().cls == cl::DeviceClass::kCpu)
    run_owned(job, stream);
  else if (may_use_atomics(job, stream.device(), how))
    run_atomic(job, stream);
  else
    run_sorted(job, stream);
  if (!work.is_same(part)) part.copy_(work);
}

bool sorts_writes(const at::Tensor& target) {
  return at::globalContext().deterministicAlgorithms() &&
         current_stream(target.device().index()).device().cls != cl::DeviceClass::kCpu;
}

}  // namespace dlb
