// Hand-written kernels: one embedded file, compiled once per combination of element types. It may #include
// other embedded files by name, and sees
//   T, REAL, C(literal)            the compute type and its literals (codegen/dtype.h)
//   DLB_CPU or DLB_GPU             the device class
//   X_T, LOAD_X(p, i), STORE_X(p, i, v)   per storage type, X being A, B, C_, D in the order given: the
//   memory type, a
//                                  load of p[i] converted to T, a store of the T value v to p[i]
//   dlb_divider, dlb_divide        division by run-time constants (codegen/pointwise.h)
//   dlb_report                     errors found on the device (runtime/device_error.h)
#pragma once
#include <array>
#include <initializer_list>

#include "cl/kernel.h"
#include "codegen/dtype.h"

namespace dlb {

constexpr size_t kMaxFamilyTypes = 4;

// The kernel `kernel` of csrc/kernels/.../`file`, for these types, on this device; built on first use.
// `file`, `kernel` and `options` (extra -D options for variants, never sizes) must be string literals: a hit
// compares pointers and allocates nothing. All kernels of a file come from one program per type combination.
cl::Kernel& family_kernel(cl::Device& device, const char* file, const char* kernel, codegen::DType compute,
                          std::initializer_list<codegen::DType> types, const char* options = "");

}  // namespace dlb
