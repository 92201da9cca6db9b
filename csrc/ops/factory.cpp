// Tensor creation, storage and views: the ops without arithmetic that every backend must have.
#include <ATen/EmptyTensor.h>
#include <ATen/native/Resize.h>
#include <ATen/native/ResizeCommon.h>
#include <ATen/native/TensorFactories.h>
#include <ATen/ops/_has_compatible_shallow_copy_type_native.h>
#include <ATen/ops/_lazy_clone_native.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/is_set_to_native.h>
#include <ATen/ops/resize_native.h>
#include <ATen/ops/set_native.h>
#include <ATen/ops/unfold_native.h>
#include <ATen/ops/view_as_complex_native.h>
#include <ATen/ops/view_as_real_native.h>
#include <ATen/ops/view_native.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/DeviceGuard.h>
#include <torch/library.h>

#include "runtime/allocator.h"
#include "runtime/stream.h"

namespace dlb {
namespace {

constexpr c10::DispatchKeySet kKeys(c10::DispatchKey::PrivateUse1);

c10::Device device_or_current(std::optional<c10::Device> device) {
  if (!device || !device->has_index()) return {kDeviceType, current_device()};
  device_of(device->index());
  return *device;
}

void check_options(std::optional<c10::Layout> layout, std::optional<bool> pin_memory) {
  TORCH_CHECK(!layout || *layout == c10::Layout::Strided, "ocl tensors are strided; layout ", *layout,
              " is not supported");
  TORCH_CHECK(!pin_memory || !*pin_memory, "Only dense CPU tensors can be pinned");
}

// torch.use_deterministic_algorithms() also fills what would be uninitialised: NaN, or an integer's maximum.
// Not float8 and complex32, which no kernel writes.
bool fills_empty(at::ScalarType type) {
  const at::Context& context = at::globalContext();
  return context.deterministicAlgorithms() && context.deterministicFillUninitializedMemory() &&
         !c10::isFloat8Type(type) && type != at::kComplexHalf;
}
at::Tensor filled_if_deterministic(at::Tensor tensor) {
  if (fills_empty(tensor.scalar_type())) [[unlikely]]
    at::native::fill_empty_deterministic_(tensor);
  return tensor;
}

at::Tensor empty(at::IntArrayRef size, std::optional<at::ScalarType> dtype, std::optional<c10::Layout> layout,
                 std::optional<c10::Device> device, std::optional<bool> pin_memory,
                 std::optional<at::MemoryFormat> format) {
  check_options(layout, pin_memory);
  const c10::DeviceGuard guard(device_or_current(device));
  return filled_if_deterministic(
      at::detail::empty_generic(size, allocator(), kKeys, c10::dtype_or_default(dtype), format));
}

at::Tensor empty_strided(at::IntArrayRef size, at::IntArrayRef stride, std::optional<at::ScalarType> dtype,
                         std::optional<c10::Layout> layout, std::optional<c10::Device> device,
                         std::optional<bool> pin_memory) {
  check_options(layout, pin_memory);
  const c10::DeviceGuard guard(device_or_current(device));
  return filled_if_deterministic(
      at::detail::empty_strided_generic(size, stride, allocator(), kKeys, c10::dtype_or_default(dtype)));
}

// Zeros without memory, which PyTorch's kernels for its ZeroTensor key make real where they are read.
at::Tensor efficient_zeros(at::IntArrayRef size, std::optional<at::ScalarType> dtype,
                           std::optional<c10::Layout> layout, std::optional<c10::Device> device,
                           std::optional<bool> pin_memory) {
  check_options(layout, pin_memory);
  at::native::ZeroTensorAllocator nothing(device_or_current(device));
  return at::detail::empty_generic(size, &nothing, kKeys | c10::DispatchKeySet(c10::DispatchKey::ZeroTensor),
                                   c10::dtype_or_default(dtype), std::nullopt);
}

// The storage of a tensor that holds nothing, on the tensor's device.
at::Tensor& set_(at::Tensor& self) {
  const c10::DeviceGuard guard(self.device());
  at::Storage storage(at::Storage::use_byte_size_t(), 0, allocator()->allocate(0), allocator(), true);
  return at::native::set_storage_cpu_(self, std::move(storage), 0, {0}, {});
}

// PyTorch's own resizing copies with memcpy, which device memory does not survive: storages are grown here
// before.
void fit_storage(const at::Storage& storage, size_t bytes) {
  if (bytes > storage.nbytes()) resize_storage(storage, bytes);
}

const at::Tensor& resize_(const at::Tensor& self, at::IntArrayRef size,
                          std::optional<at::MemoryFormat> format) {
  const c10::DeviceGuard guard(self.device());
  const auto before = static_cast<int64_t>(self.storage().nbytes());
  fit_storage(self.storage(),
              at::detail::computeStorageNbytesContiguous(size, self.itemsize(), self.storage_offset()));
  at::native::resize_(self, size, format);
  if (fills_empty(self.scalar_type())) [[unlikely]]
    at::native::fill_resize_deterministic_(self, before);
  return self;
}

at::Tensor& set_storage(at::Tensor& self, at::Storage storage, int64_t offset, at::IntArrayRef size,
                        at::IntArrayRef stride) {
  const c10::DeviceGuard guard(self.device());
  const bool on_device = storage.device().type() == kDeviceType;  // others are refused below
  if (on_device && stride.empty())
    fit_storage(storage, at::detail::computeStorageNbytesContiguous(size, self.itemsize(), offset));
  else if (on_device && stride.size() == size.size())
    fit_storage(storage, at::detail::computeStorageNbytes(size, stride, self.itemsize(), offset));
  return at::native::set_storage_cpu_(self, std::move(storage), offset, size, stride);
}

void record_stream(at::Tensor& self, c10::Stream stream) {
  TORCH_CHECK(stream.device_type() == kDeviceType, "record_stream: a tensor on ", self.device(),
              " is used by streams of its own device type, got a stream of ", stream.device());
  allocator()->recordStream(self.storage().data_ptr(), stream);
}

at::Tensor lazy_clone(const at::Tensor& self) {
  make_lazily_clonable(*self.storage().unsafeGetStorageImpl());
  return at::native::_lazy_clone(self);
}

// model.to("ocl") keeps its Parameter objects (tied weights, optimizers made before) only if data may be
// swapped in.
bool has_compatible_shallow_copy_type(const at::Tensor& self, const at::Tensor& from) {
  auto strided_here = [](const at::Tensor& t) {
    return (t.device().is_cpu() || t.device().type() == kDeviceType) && t.layout() == c10::Layout::Strided;
  };
  return strided_here(self) && strided_here(from);
}

}  // namespace

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("empty.memory_format", empty);
  m.impl("empty_strided", empty_strided);
  m.impl("_efficientzerotensor", efficient_zeros);
  m.impl("as_strided", at::native::as_strided_tensorimpl);
  m.impl("view", at::native::view);
  m.impl("_reshape_alias", at::native::_reshape_alias);
  m.impl("unfold", at::native::unfold);
  m.impl("view_as_real", at::native::view_as_real);
  m.impl("view_as_complex", at::native::view_as_complex);
  m.impl("resize_", resize_);
  m.impl("set_.source_Tensor", at::native::set_tensor_);
  m.impl("set_.source_Storage", at::native::set_);
  m.impl("set_.source_Storage_storage_offset", set_storage);
  m.impl("set_", set_);
  m.impl("is_set_to", at::native::is_set_to);
  m.impl("record_stream", record_stream);
  m.impl("_lazy_clone", lazy_clone);
  m.impl("_has_compatible_shallow_copy_type", has_compatible_shallow_copy_type);
}

}  // namespace dlb
