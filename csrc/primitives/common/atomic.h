// Atomic combining with elements in memory (kernels/common/atomic.clh): what a device can do, and the options of kernels.
#pragma once
#include "cl/device.h"
#include "codegen/dtype.h"

namespace dlb {

// Whether sums of the type are added to memory by an instruction of the device, so that many work-items may add to one
// element without waiting for each other in turns.
inline bool has_native_add(const cl::Device& device, codegen::DType type) {
  using codegen::DType;
  switch (type) {
    case DType::I32:
      return true;
    case DType::I64:
      return static_cast<bool>(device.int64_atomics);
    case DType::F32:
    case DType::F64:
    case DType::C64:
    case DType::C128:
      return static_cast<bool>(device.ptx_atomics);
    default:
      return false;
  }
}

// The options for an element type: literals, so that looking a kernel up builds no string.
inline const char* atomic_options(const cl::Device& device, codegen::DType type) {
  using codegen::DType;
  const bool native = has_native_add(device, type);
  switch (type) {
    case DType::I32:
      return "-DDLB_BYTES=4 -DDLB_INT_ADD";
    case DType::I64:
      return native ? "-DDLB_BYTES=8 -DDLB_INT_ADD" : "-DDLB_BYTES=8";
    case DType::F32:
      return native ? "-DDLB_BYTES=4 -DDLB_PTX_ADD" : "-DDLB_BYTES=4";
    case DType::F64:
      return native ? "-DDLB_BYTES=8 -DDLB_PTX_ADD" : "-DDLB_BYTES=8";
    case DType::C64:
      return native ? "-DDLB_BYTES=8 -DCOMPLEX -DDLB_PTX_ADD" : "-DDLB_BYTES=8 -DCOMPLEX";
    case DType::C128:
      return native ? "-DDLB_BYTES=16 -DCOMPLEX -DDLB_PTX_ADD" : "-DDLB_BYTES=16 -DCOMPLEX";
    default:
      break;
  }
  const bool complex = codegen::class_of(type) == codegen::DClass::Complex;
  switch (codegen::size_of(type)) {
    case 1:
      return "-DDLB_BYTES=1";
    case 2:
      return "-DDLB_BYTES=2";
    case 4:
      return complex ? "-DDLB_BYTES=4 -DCOMPLEX" : "-DDLB_BYTES=4";
    default:
      return "-DDLB_BYTES=8";
  }
}

}  // namespace dlb
