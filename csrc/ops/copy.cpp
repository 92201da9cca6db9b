// copy_ in all its forms: between devices, dtypes, layouts and conjugations; fills; reading one element.
#include <ATen/Dispatch_v2.h>
#include <ATen/EmptyTensor.h>
#include <ATen/ExpandUtils.h>
#include <ATen/TensorIterator.h>
#include <ATen/native/Resize.h>
#include <ATen/ops/_copy_from.h>
#include <ATen/ops/_to_copy_native.h>
#include <ATen/ops/clone_native.h>
#include <ATen/ops/empty_strided.h>
#include <c10/core/DeviceGuard.h>
#include <torch/library.h>

#include "cl/recording.h"
#include "ops/common/pointwise.h"
#include "ops/transpose.h"
#include "runtime/graph.h"
#include "runtime/host_allocator.h"
#include "runtime/new_tensor.h"
#include "runtime/transfer.h"

namespace dlb {
namespace {

using codegen::PointwiseOp;

constexpr PointwiseOp kCopy{.name = "copy",
                            .on_float = "x0",
                            .on_int = "x0",
                            .on_bool = "x0",
                            .on_complex = "x0",
                            .takes_float8 = true};
constexpr PointwiseOp kCopyConj{.name = "copy_conj", .on_complex = "(T)(x0.x, -x0.y)"};
constexpr PointwiseOp kCopyNeg{
    .name = "copy_neg", .on_float = "-x0", .on_int = "-x0", .on_bool = "x0", .on_complex = "-x0"};
constexpr PointwiseOp kCopyNegConj{.name = "copy_neg_conj", .on_complex = "(T)(-x0.x, x0.y)"};
constexpr PointwiseOp kFill{.name = "fill",
                            .on_float = "s0",
                            .on_int = "s0",
                            .on_bool = "s0",
                            .on_complex = "s0",
                            .scalars = 1,
                            .takes_float8 = true};

const codegen::RegisterOps kCopyOps(codegen::RowKind::Pointwise,
                                    {{kCopy, "_copy_from _copy_from_and_resize", "result"},
                                     {kCopyConj, "_copy_from _copy_from_and_resize", "result"},
                                     {kCopyNeg, "_copy_from _copy_from_and_resize", "result"},
                                     {kCopyNegConj, "_copy_from _copy_from_and_resize", "result"},
                                     {kFill, "fill_.Scalar fill_.Tensor zero_", "result"}});

bool same_layout_dense(const at::Tensor& a, const at::Tensor& b) {
  return a.scalar_type() == b.scalar_type() && a.sizes() == b.sizes() && a.strides() == b.strides() &&
         a.is_non_overlapping_and_dense() && a.is_conj() == b.is_conj() && a.is_neg() == b.is_neg();
}

// Whether run_pointwise_flat() takes the tensor.
bool is_flat(const at::Tensor& t) {
  return t.is_non_overlapping_and_dense() && t.numel() < (int64_t{1} << 31);
}

void copy_on_device(const at::Tensor& source, const at::Tensor& destination) {
  if (c10::isFloat8Type(source.scalar_type()) && source.scalar_type() == destination.scalar_type())
    return copy_on_device(source.view(at::kByte), destination.view(at::kByte));
  // A conjugate between complex tensors is a kernel of its own; a conjugate that becomes real is the real
  // part.
  const bool conj = source.is_conj() != destination.is_conj() && destination.is_complex();
  const bool neg = source.is_neg() != destination.is_neg();
  const PointwiseOp& op = conj ? (neg ? kCopyNegConj : kCopyConj) : neg ? kCopyNeg : kCopy;
  if (source.sizes() == destination.sizes() && source.strides() == destination.strides() &&
      is_flat(destination) && is_flat(source) && !source.is_alias_of(destination))
    return run_pointwise_flat(op, {&destination, &source}, 1, destination.scalar_type());
  if (copy_transposed(source, destination)) return;
  auto iter = at::TensorIteratorConfig()
                  .add_output(destination)
                  .add_const_input(source)
                  .resize_outputs(false)
                  .check_all_same_dtype(false)
                  .build();
  run_pointwise(op, iter, destination.scalar_type());
}

size_t dense_bytes(const at::Tensor& t) {
  return static_cast<size_t>(t.numel()) * t.itemsize();
}

// A tensor of the same layout and dtype as `like` on `device`, without its conjugate and negative bits set.
at::Tensor empty_like_on(const at::Tensor& like, c10::Device device, bool pinned = false) {
  return at::empty_strided(
      like.sizes(), like.strides(),
      at::TensorOptions().dtype(like.scalar_type()).device(device).pinned_memory(pinned));
}

// The same values with the bits applied, in a layout that is dense.
at::Tensor densify(const at::Tensor& t) {
  if (t.is_non_overlapping_and_dense() && !t.is_conj() && !t.is_neg()) return t;
  return t.resolve_conj().resolve_neg().contiguous();
}

void host_to_device(const at::Tensor& source, const at::Tensor& destination, bool non_blocking) {
  Stream& stream = current_stream(destination.device().index());
  if (same_layout_dense(source, destination)) {
    if (cl::Recording::current()) return;
    copy_to_device(mem_of(destination), source.const_data_ptr(), dense_bytes(source), stream, non_blocking);
    if (Graph* const graph = stream.graph()) [[unlikely]]
      graph->keep(std::make_shared<at::Tensor>(source));
    else if (non_blocking && is_pinned(source.const_data_ptr()))
      host_allocator()->record_event(const_cast<void*>(source.const_data_ptr()),
                                     source.storage().data_ptr().get_context(), stream.unwrap());
    return;
  }
  // The device converts and scatters: what crosses is dense and in the narrower of the two layouts' dtypes.
  const at::Tensor dense = densify(source);
  const at::Tensor there = empty_like_on(dense, destination.device());
  host_to_device(dense, there, non_blocking);
  copy_on_device(there, destination);
}

void device_to_host(const at::Tensor& source, const at::Tensor& destination, bool non_blocking) {
  Stream& stream = current_stream(source.device().index());
  if (same_layout_dense(source, destination)) {
    void* to = destination.mutable_data_ptr();
    copy_to_host(to, mem_of(source), dense_bytes(source), stream, non_blocking);
    if (Graph* const graph = stream.graph()) [[unlikely]]
      graph->keep(std::make_shared<at::Tensor>(destination));
    else if (non_blocking && is_pinned(to))
      host_allocator()->record_event(to, destination.storage().data_ptr().get_context(), stream.unwrap());
    return;
  }
  const at::Tensor dense = densify(source);
  const at::Tensor here = empty_like_on(dense, c10::Device(c10::kCPU));
  device_to_host(dense, here, false);
  destination.copy_(here);
}

void device_to_device(const at::Tensor& source, const at::Tensor& destination) {
  if (source.device() == destination.device()) {
    const c10::DeviceGuard guard(destination.device());
    return copy_on_device(source, destination);
  }
  at::Tensor dense = densify(source);
  const at::Tensor there =
      same_layout_dense(dense, destination) ? destination : empty_like_on(dense, destination.device());
  copy_between_devices(mem_of(there), current_stream(there.device().index()), mem_of(dense),
                       current_stream(dense.device().index()), dense_bytes(dense));
  if (!there.is_same(destination)) device_to_device(there, destination);
}

bool lacks_double(const at::Tensor& t) {
  return t.device().type() == kDeviceType && !current_stream(t.device().index()).device().fp64;
}

bool is_wide(const at::Tensor& t) {
  return t.scalar_type() == at::kDouble || t.scalar_type() == at::kComplexDouble;
}

// The memory that a tensor's elements lie in, from first to last, as one dense dimension.
at::Tensor span_of(const at::Tensor& t) {
  int64_t last = 0;
  for (int64_t d = 0; d < t.dim(); ++d) last += (t.size(d) - 1) * t.stride(d);
  return t.as_strided({last + 1}, {1});
}

// Where a device without double precision would have to read or write it: such tensors are kept there, and
// converted and rearranged here.
void copy_through_host(const at::Tensor& source, const at::Tensor& destination) {
  const auto on_host = [](const at::Tensor& t) {
    const at::Tensor span = span_of(t), here = empty_like_on(span, c10::Device(c10::kCPU));
    device_to_host(span, here, false);
    return here;
  };
  at::Tensor plain = source.is_conj() ? source.conj() : source;  // as_strided() would keep the bits
  if (source.is_neg()) plain = plain._neg_view();
  at::Tensor values =
      plain.device().is_cpu() ? plain : on_host(plain).as_strided(plain.sizes(), plain.strides());
  if (source.is_conj()) values = values.conj();
  if (source.is_neg()) values = values._neg_view();
  if (destination.device().is_cpu()) {
    destination.copy_(values);
    return;
  }
  at::Tensor target = destination.is_conj() ? destination.conj() : destination;
  if (destination.is_neg()) target = target._neg_view();
  const at::Tensor span = on_host(target);  // with what lies between the elements
  at::Tensor here = span.as_strided(target.sizes(), target.strides());
  if (destination.is_conj()) here = here.conj();
  if (destination.is_neg()) here = here._neg_view();
  here.copy_(values);
  host_to_device(span, span_of(target), false);
}

at::Tensor copy_from(const at::Tensor& self, const at::Tensor& destination, bool non_blocking) {
  const at::Tensor source =
      self.sizes() == destination.sizes() ? self : *at::expand_inplace(destination, self);
  if (destination.numel() == 0 || source.is_same(destination)) return destination;
  const bool from_here = source.device().type() == kDeviceType,
             to_here = destination.device().type() == kDeviceType;
  TORCH_CHECK((from_here || source.device().is_cpu()) && (to_here || destination.device().is_cpu()),
              "copies between ", source.device(), " and ", destination.device(),
              " are not supported: go through the CPU");
  if ((is_wide(source) || is_wide(destination)) && (lacks_double(source) || lacks_double(destination)))
      [[unlikely]]
    copy_through_host(source, destination);
  else if (from_here && to_here)
    device_to_device(source, destination);
  else if (to_here)
    host_to_device(source, destination, non_blocking);
  else
    device_to_host(source, destination, non_blocking);
  return destination;
}

at::Tensor copy_from_and_resize(const at::Tensor& self, const at::Tensor& destination) {
  at::native::resize_output(destination, self.sizes());
  return copy_from(self, destination, false);
}

// Whether a copy of that dtype on the same device needs nothing of PyTorch's own forms of clone() and to().
bool is_plain(const at::Tensor& self, c10::ScalarType dtype, at::MemoryFormat format) {
  const bool laid_out = format != at::MemoryFormat::Preserve || self.is_non_overlapping_and_dense();
  return laid_out && !self._is_zerotensor() && (!self.is_complex() || c10::isComplexType(dtype));
}

at::Tensor plain_copy(const at::Tensor& self, c10::ScalarType dtype, at::MemoryFormat format) {
  at::Tensor copy = format == at::MemoryFormat::Preserve
                        ? new_strided_tensor(self.sizes(), self.strides(), dtype, self.device())
                        : new_tensor(self.sizes(), dtype, self.device(), format);
  copy_from(self, copy, false);
  return copy;
}

// PyTorch's are an empty tensor and a copy, each through the dispatcher.
at::Tensor clone(const at::Tensor& self, std::optional<at::MemoryFormat> format) {
  const at::MemoryFormat wanted = format.value_or(at::MemoryFormat::Preserve);
  if (!is_plain(self, self.scalar_type(), wanted)) return at::native::clone(self, format);
  return plain_copy(self, self.scalar_type(), wanted);
}

at::Tensor to_copy(const at::Tensor& self, std::optional<at::ScalarType> dtype,
                   std::optional<at::Layout> layout, std::optional<at::Device> device,
                   std::optional<bool> pin_memory, bool non_blocking,
                   std::optional<at::MemoryFormat> format) {
  const at::ScalarType type = dtype.value_or(self.scalar_type());
  const at::MemoryFormat wanted = format.value_or(at::MemoryFormat::Preserve);
  const bool stays = !device || *device == self.device();
  if (!stays || layout.value_or(at::kStrided) != at::kStrided || pin_memory.value_or(false) ||
      !is_plain(self, type, wanted))
    return at::native::_to_copy(self, dtype, layout, device, pin_memory, non_blocking, format);
  return plain_copy(self, type, wanted);
}

c10::Scalar local_scalar_dense(const at::Tensor& self) {
  at::Tensor here = at::detail::empty_cpu({}, self.scalar_type(), false, std::nullopt);
  copy_to_host(here.mutable_data_ptr(), mem_of(self), self.itemsize(), current_stream(self.device().index()),
               false);
  return cpu_scalar(here);
}

at::Tensor& fill_scalar(at::Tensor& self, const c10::Scalar& value) {
  // Raises as the CPU does when the value does not fit the dtype; there one element of 16 bits may be
  // infinite.
  if (self.numel() != 1 || !at::isReducedFloatingType(self.scalar_type()))
    AT_DISPATCH_V2(self.scalar_type(), "fill_out", AT_WRAP([&] { (void)value.to<scalar_t>(); }),
                   AT_EXPAND(AT_ALL_TYPES_AND_COMPLEX), at::kHalf, at::kBFloat16, at::kBool,
                   AT_EXPAND(AT_BAREBONES_UNSIGNED_TYPES), AT_EXPAND(AT_FLOAT8_TYPES), at::kComplexHalf);
  if (is_flat(self)) {
    run_pointwise_flat(kFill, {&self}, 1, self.scalar_type(), value);
    return self;
  }
  const c10::DeviceGuard guard(self.device());
  auto iter = at::TensorIteratorConfig()
                  .set_check_mem_overlap(false)
                  .check_all_same_dtype(false)
                  .add_output(self)
                  .resize_outputs(false)
                  .build();
  run_pointwise(kFill, iter, self.scalar_type(), value);
  return self;
}

at::Tensor& fill_tensor(at::Tensor& self, const at::Tensor& value) {
  TORCH_CHECK(value.dim() == 0, "fill_ only supports 0-dimension value tensor but got tensor with ",
              value.dim(), " dimensions.");
  if (value.device().is_cpu()) return fill_scalar(self, cpu_scalar(value));
  return self.copy_(value);
}

at::Tensor& zero_(at::Tensor& self) {
  return fill_scalar(self, 0);
}

}  // namespace

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("clone", clone);
  m.impl("_to_copy", to_copy);
  m.impl("_copy_from", copy_from);
  m.impl("_copy_from_and_resize", copy_from_and_resize);
  m.impl("_local_scalar_dense", local_scalar_dense);
  m.impl("fill_.Scalar", fill_scalar);
  m.impl("fill_.Tensor", fill_tensor);
  m.impl("zero_", zero_);
}

// The kernel honours these bits itself; the default handling of the keys would call copy_ again, without end.
TORCH_LIBRARY_IMPL(aten, Conjugate, m) {
  m.impl("_copy_from", torch::CppFunction::makeFallthrough());
}
TORCH_LIBRARY_IMPL(aten, Negative, m) {
  m.impl("_copy_from", torch::CppFunction::makeFallthrough());
}

}  // namespace dlb
