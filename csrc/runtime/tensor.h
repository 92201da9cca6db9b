// Small bridges between ATen and the layers below: element types, device memory of tensors, scalars as kernel
// arguments.
#pragma once
#include <ATen/core/Tensor.h>
#include <c10/core/Scalar.h>

#include "cl/buffer.h"
#include "codegen/dtype.h"
#include "runtime/allocator.h"
#include "runtime/stream.h"

namespace dlb {

// The code generator's name for a PyTorch dtype. Raises NotImplementedError for dtypes that kernels do not
// handle (quantised, float8), naming the op.
codegen::DType dtype_of(c10::ScalarType type, const char* op);

// The same with the dtypes that have no arithmetic: float8.
codegen::DType storage_dtype_of(c10::ScalarType type, const char* op);

// The PyTorch dtype that dtype_of() gives the name of.
c10::ScalarType scalar_type_of(codegen::DType type);

// False for float64 and complex128 on a device whose driver does not build kernels with double.
bool device_computes(c10::Device device, c10::ScalarType type);

// Raises NotImplementedError when the device lacks double precision and the dtype needs it.
void check_device_supports(const cl::Device& device, codegen::DType type, const char* op);

// The place of a tensor's first element. The offset of a MemRef is in bytes. A lazy clone has memory of its
// own from here on, as the caller may write; operands of a TensorIterator, which knows what is written, do
// not come here.
inline MemRef mem_of(const at::TensorBase& tensor) {
  if (is_shared(tensor.storage().data_ptr())) [[unlikely]]
    unshare(*tensor.storage().unsafeGetStorageImpl());
  return resolve(tensor.storage().data_ptr(), tensor.const_data_ptr());
}

// The same as kernels take it.
inline Buffer buffer_of(const at::TensorBase& tensor) {
  const MemRef ref = mem_of(tensor);
  return {ref.mem, static_cast<int64_t>(ref.offset / tensor.itemsize())};
}

// A scalar as kernels take it, of the type codegen::scalar_name(compute).
struct ScalarArg {
  union {
    int64_t i;
    float f;
    double d;
    float c[2];
    double z[2];
  };
  uint32_t size;
};
ScalarArg scalar_arg(const c10::Scalar& value, codegen::DType compute);

// The value as a number of `type`, where that has 8 or 16 bits; else itself.
c10::Scalar rounded_to(const c10::Scalar& value, c10::ScalarType type);

// The value of a CPU tensor of one element.
c10::Scalar cpu_scalar(const at::TensorBase& tensor);

}  // namespace dlb
